"""Arrays: a .npz, a .npy of rows with its labels in another, or a .npy of labels."""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.reading import Array, as_finite, map_npy, read_npy, read_npz
from bayesmooth.data.source import Columns, Inputs, Mapped
from bayesmooth.data.tables import Table, digest, find_name, find_rows
from bayesmooth.data.tags import as_text
from bayesmooth.errors import InputError
from bayesmooth.files import replace_with, write_atomically

# Arrays of a .npz that have one entry per example, under their usual names: the first that is there counts.
KEYS = {
    "embeddings": ("embeddings", "features", "X"),
    "predicted": ("probabilities", "pred_probs"),
    "labels": ("labels", "y"),
    "clean_labels": ("clean_labels",),
    "ids": ("ids",),
    "texts": ("texts",),
    "images": ("images",),
}
# In this order: the labels say how many examples there are.
USUAL = tuple(name for key in ("labels", *KEYS) for name in KEYS[key])


class Arrays(Table):
    """A .npz: embeddings (or features, X), labels (or y), and, if there are any, clean_labels, class_names, ids, texts,
    images (paths, or pictures as bytes), and probabilities (or pred_probs) that a model predicted."""

    usual_labels = KEYS["labels"]

    def __init__(self, path: Path, columns: Columns) -> None:
        super().__init__(str(path), columns)
        if columns.tags is not None or columns.separator is not None:
            raise InputError(
                f"{path}: tags are read from tables; for arrays use Python, with labels N × T, or a list of sets"
            )
        self.path, self.folder, self.arrays = path, path.parent, read_npz(path, raw=True)
        self.names = sorted(self.arrays)
        names = self.arrays.get("class_names")
        if names is not None:
            self.class_names = tuple(self._strings("class_names"))

    def __len__(self) -> int:
        named = next((n for n in (self.columns.label, *USUAL) if n in self.arrays), None)
        return 0 if named is None else len(self.arrays[named])

    @property
    def label(self) -> str:
        """The array of labels."""
        wanted = (self.columns.label,) if self.columns.label else self.usual_labels
        name = find_name(self.where, self.names, wanted, "name another", "array")
        if self.arrays[name].ndim != 1:
            shape = self.arrays[name].shape
            raise InputError(f"{self.where}: {name} of shape {shape}: must be N labels")
        return name

    def values(self, name: str) -> list[Any]:
        """The entries of an array."""
        if name not in self.arrays:
            find_name(self.where, self.names, (name,), "name another", "array")
        values: list[Any] = self.arrays[name].tolist()
        return values

    def find(self, wanted: str | None, usual: Sequence[str], way_out: str) -> str | None:
        """The array that is named, which must be there; else the first with a usual name, or none."""
        if wanted is not None:
            return find_name(self.where, self.names, (wanted,), way_out, "array")
        return next((name for name in usual if name in self.names), None)

    def get(self, key: str) -> Array | None:
        """The array of one of KEYS, where there is one."""
        name = next((name for name in KEYS[key] if name in self.arrays), None)
        return None if name is None else self.arrays[name]

    def digests(self, without: Iterable[str]) -> list[str]:
        """From the bytes of what an example is known by: embeddings, texts, pictures."""
        found = [a for a in map(self.get, ("embeddings", "texts", "images")) if a is not None]
        known = [np.ascontiguousarray(a) for a in found if a.shape[:1] == (len(self),)]
        if not known:
            return super().digests(without)
        rows = zip(*known, strict=True)
        return [digest(b"\x1f".join(np.asarray(a).tobytes() for a in row)) for row in rows]

    def inputs(self, rows: Tensor) -> Inputs | None:
        """The embeddings."""
        return self._numbers("embeddings", rows)

    def predicted(self, rows: Tensor) -> Tensor | None:
        """The probabilities."""
        return self._numbers("predicted", rows)

    def _numbers(self, key: str, rows: Tensor) -> Tensor | None:
        array = self.get(key)
        if array is None:
            return None
        if array.ndim != 2 or len(array) != len(self):
            raise InputError(f"{self.where}: {key} of shape {array.shape}: must be {len(self)} × D")
        what = {"predicted": "probabilities"}.get(key, key)
        return as_finite(array, self.where, what)[rows]

    def texts_to_show(self, rows: Tensor) -> dict[str, list[str]]:
        """The texts, and the paths of pictures."""
        shown = {"text": "texts"} if "texts" in self.arrays else {}
        images = self.arrays.get("images")
        if images is not None and images.dtype.kind in "US":
            shown["path"] = "images"
        columns = {key: self._strings(name) for key, name in shown.items()}
        return {key: [column[i] for i in rows.tolist()] for key, column in columns.items()}

    def pictures(self, rows: Tensor) -> Inputs | None:
        """(N, C, H, W) bytes from (N, H, W) or (N, H, W, C); or the pictures at paths beside the file."""
        array = self.arrays.get("images")
        if array is None:
            return None
        if array.dtype.kind in "US" and array.ndim == 1:
            paths = self._strings("images")
            return ImageFiles(self.folder, [paths[i] for i in rows.tolist()], SHOWN_SIZE)
        pictures = array[..., None] if array.ndim == 3 else array
        if array.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] not in (1, 3):
            raise InputError(
                f"{self.where}: images are {array.dtype} of shape {array.shape}; must be paths, or bytes (uint8) "
                "of shape N × H × W or N × H × W × 3"
            )
        return torch.from_numpy(pictures).permute(0, 3, 1, 2)[rows]

    def _strings(self, name: str) -> list[str]:
        array = self.arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "US":
            raise InputError(
                f"{self.where}: {name} are {array.dtype} of shape {array.shape}; must be N strings"
            )
        return [as_text(value) for value in array.tolist()]

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """All that is in the file, with these rows of the arrays that have one entry per example."""
        changed = {name: self._change(name, some) for name, some in changes.items()}
        if len(rows) < len(self):
            changed = {k: (self.arrays | changed)[k][rows] for k in self._per_example()}
        replace_with(out, lambda beside: self._copy_archive(beside, changed))

    def _change(self, name: str, changed: Mapping[int, str]) -> Array:
        """Labels keep their type: a changed one is copied from a row that has it, or made."""
        array = self.arrays[name]
        new, index = find_rows(self.texts(name), changed)
        if new:
            array = np.concatenate([array, *(self._make(text, array) for text in new)])
        return np.asarray(array[index])

    def _make(self, text: str, array: Array) -> Array:
        """A label that no row has yet, in the type of the others."""
        kind = array.dtype.kind
        try:
            if kind in "SU":
                return np.array([text.encode() if kind == "S" else text])
            value = np.array([text == "True" if kind == "b" else float(text)], array.dtype)
        except (ValueError, OverflowError):
            value = np.array([])
        if [*map(as_text, value.tolist())] != [text]:
            raise InputError(f"{self.where}: labels are {array.dtype}; {text!r} is not one")
        return value

    def _per_example(self) -> list[str]:
        """The arrays that have one entry per example, by their names; nothing is cut if one is in doubt."""
        usual = {self.label, self.id_column, *USUAL}
        long = [name for name, array in self.arrays.items() if array.shape[:1] == (len(self),)]
        unsure = [name for name in long if name not in {*usual, "class_names"}]
        if unsure:
            raise InputError(
                f"{self.where}: {unsure[0]} has as many rows as there are examples ({len(self)}), and may belong "
                "to them or not; take it out of the file, or clean without its removals"
            )
        return [name for name in long if name in usual]

    def _copy_archive(self, out: Path, changed: Mapping[str, Array]) -> None:
        entries = {f"{name}.npy": array for name, array in changed.items()}
        with zipfile.ZipFile(self.path or "") as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                array = entries.get(entry.filename)
                content = old.read(entry) if array is None else _npy(array)
                new.writestr(entry, content, entry.compress_type)


class Npy(Arrays):
    """A .npy of rows, which stay on the disk, with the labels of another file; or a .npy of labels alone."""

    def __init__(self, path: Path, columns: Columns, labels: Path | None, labelled: bool) -> None:
        Table.__init__(self, str(path), columns)
        self.path, self.folder, self.rows = path, path.parent, None
        self.arrays = {}
        alone = labels is None and labelled
        if not alone:
            self.rows = map_npy(path)
            if self.rows.ndim != 2 or self.rows.dtype.kind not in "fiu":
                raise InputError(
                    f"{path}: {self.rows.dtype} of shape {self.rows.shape}; must be N × D numbers"
                )
        if labelled:
            self.arrays["labels"] = read_npy(labels or path, raw=True)
            if alone and self.arrays["labels"].ndim != 1:
                raise InputError(
                    f"{path}: has no labels; name a .npy of them with labels (--labels)"
                )
        self.names = sorted(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays["labels"] if self.rows is None else self.rows)

    def inputs(self, rows: Tensor) -> Inputs | None:
        """The rows, read when they are asked for."""
        if self.rows is None:
            return None
        return Mapped(self.rows) if len(rows) == len(self) else Mapped(self.rows, rows)

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """A .npy of labels."""
        write_atomically(out, _npy(self._change("labels", changes["labels"])[rows]))


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
