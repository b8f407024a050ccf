"""Arrays: in memory, a .npz, a .npy of rows with its labels in another, or a .npy of labels.

Nothing in a file is run: arrays of objects are not read, and none is unpacked to more than its bytes can hold.
"""

import io
import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrow import find_rows
from bayesmooth.data.labels import as_text
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.source import Columns, Mapped, Source
from bayesmooth.data.tables import LIMIT, MAX_RATIO, Array, Changes, Table, digest
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors, replace_with, write_atomically

MAX_BYTES = 8 << 30  # of all arrays in a .npz
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
    """Arrays under names, of which some have one entry per example."""

    usual_labels = KEYS["labels"]
    part = "array"
    arrays: Mapping[str, Array]

    def __len__(self) -> int:
        named = next((n for n in (self.columns.label, *USUAL) if n in self.arrays), None)
        return 0 if named is None else len(self.arrays[named])

    @property
    def label(self) -> str:
        """The array of labels."""
        name, shape = super().label, self.arrays[super().label].shape
        if len(shape) != 1:
            raise InputError(f"{self.where}: {name} of shape {shape}: must be N labels")
        return name

    def values(self, name: str) -> list[Any]:
        """The entries of an array."""
        values: list[Any] = self.arrays[self.find(name, (), "name another") or ""].tolist()
        return values

    def get(self, key: str) -> Array | None:
        """The array of one of KEYS, where there is one."""
        name = next((name for name in KEYS[key] if name in self.arrays), None)
        return None if name is None else self.arrays[name]

    def digests(self, without: Iterable[str]) -> list[str]:
        """From the bytes of what an example is known by: embeddings, texts, pictures."""
        found = [a for a in map(self.get, ("embeddings", "texts", "images")) if a is not None]
        known = [np.ascontiguousarray(a) for a in found if a.shape[:1] == (len(self),)]
        if not known:
            return super().digests(self.names)
        rows = zip(*known, strict=True)
        return [digest(b"\x1f".join(np.asarray(a).tobytes() for a in row)) for row in rows]

    def fill(self, source: Source, rows: Array) -> Source:
        """With the embeddings, the probabilities, and what can be shown."""
        at = torch.from_numpy(rows)
        inputs, predicted = self._numbers("embeddings", at), self._numbers("predicted", at)
        shown = {"text": "texts"} if "texts" in self.arrays else {}
        images = self.arrays.get("images")
        paths = images is not None and images.dtype.kind in "US" and images.ndim == 1
        if paths:
            shown["path"] = "images"
        texts = {key: self._strings(name) for key, name in shown.items()}
        meta = {key: [column[i] for i in rows] for key, column in texts.items()}
        pictures: Tensor | ImageFiles | None = None
        if paths:
            pictures = ImageFiles(self.folder, meta["path"], SHOWN_SIZE)
        elif images is not None:
            pictures = as_pictures(images, f"{self.where}: images")[at]
        if inputs is not None:
            source = replace(source, inputs=inputs)
        return replace(source, meta=meta, pictures=pictures, predicted=predicted)

    def _numbers(self, key: str, rows: Tensor) -> Tensor | None:
        array = self.get(key)
        if array is None:
            return None
        if array.ndim != 2 or len(array) != len(self):
            raise InputError(f"{self.where}: {key} of shape {array.shape}: must be {len(self)} × D")
        what = {"predicted": "probabilities"}.get(key, key)
        return as_finite(array, self.where, what)[rows]

    def _strings(self, name: str) -> list[str]:
        array = self.arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "US":
            raise InputError(
                f"{self.where}: {name} are {array.dtype} of shape {array.shape}; must be N strings"
            )
        return [as_text(value) for value in array.tolist()]


class Npz(Arrays):
    """A .npz: embeddings (or features, X), labels (or y), and, if there are any, clean_labels, class_names, ids, texts,
    images (paths, or pictures as bytes), and probabilities (or pred_probs) that a model predicted."""

    def __init__(self, path: Path, columns: Columns) -> None:
        super().__init__(str(path), columns)
        if columns.tags is not None or columns.separator is not None:
            raise InputError(
                f"{path}: tags are read from tables; for arrays use Python, with labels N × T, or a list of sets"
            )
        self.path, self.folder, self.arrays = path, path.parent, read_npz(path, raw=True)
        self.names = sorted(self.arrays)
        if "class_names" in self.arrays:
            self.class_names = tuple(self._strings("class_names"))

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """All that is in the file, with these rows of the arrays that have one entry per example."""
        changed = {name: self._change(name, some) for name, some in changes.items()}
        if len(rows) < len(self):
            changed = {k: ({**self.arrays} | changed)[k][rows] for k in self._per_example()}
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


class Npy(Npz):
    """A .npy of rows, which stay on the disk, with the labels of another file; or a .npy of labels alone."""

    def __init__(self, path: Path, columns: Columns, labels: Path | None, labelled: bool) -> None:
        Table.__init__(self, str(path), columns)
        self.path, self.folder, self.rows = path, path.parent, None
        alone = labels is None and labelled
        if not alone:
            self.rows = map_npy(path)
            if self.rows.ndim != 2 or self.rows.dtype.kind not in "fiu":
                raise InputError(
                    f"{path}: {self.rows.dtype} of shape {self.rows.shape}; must be N × D numbers"
                )
        self.arrays = {"labels": read_npy(labels or path, raw=True)} if labelled else {}
        if alone and self.arrays["labels"].ndim != 1:
            raise InputError(f"{path}: has no labels; name a .npy of them with labels (--labels)")
        self.names = sorted(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays["labels"] if self.rows is None else self.rows)

    def fill(self, source: Source, rows: Array) -> Source:
        """With the rows, read when they are asked for."""
        if self.rows is None:
            return source
        every = len(rows) == len(self)
        at = None if every else torch.from_numpy(rows)
        return replace(source, inputs=Mapped(self.rows, at))

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """A .npy of labels."""
        write_atomically(out, _npy(self._change("labels", changes["labels"])[rows]))


def as_pictures(array: Array, what: str) -> Tensor:
    """(N, C, H, W) bytes from (N, H, W) or (N, H, W, C)."""
    pictures = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] not in (1, 3):
        raise InputError(
            f"{what} are {array.dtype} of shape {array.shape}; must be paths, or bytes (uint8) "
            "of shape N × H × W or N × H × W × 3"
        )
    return torch.from_numpy(pictures).permute(0, 3, 1, 2)


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def read_npz(file: Path, raw: bool = False) -> dict[str, Array]:
    """All arrays of a .npz; bytes become text, unless they are to stay `raw`."""
    with name_errors(file, ".npz"), zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        _check_unpacked(file.stat().st_size, sum(entry.file_size for entry in entries))
        arrays = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            with name_errors(name, "array"), archive.open(entry) as stream:
                arrays[name] = _read_array(stream, entry.file_size, raw)
        return arrays


def _check_unpacked(packed: int, unpacked: int) -> None:
    if unpacked > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES >> 30} GB unpacked; read it in parts")
    if unpacked > max(LIMIT, MAX_RATIO * packed):
        raise InputError(
            f"{packed:,} bytes that unpack to {unpacked:,}, more than {MAX_RATIO} times as many; "
            "if that is right, save it unpacked with numpy.savez"
        )


def read_npy(file: Path, raw: bool = False) -> Array:
    """The array of a .npy; bytes become text, unless they are to stay `raw`."""
    with name_errors(file, "array"), file.open("rb") as stream:
        return _read_array(stream, file.stat().st_size, raw)


def map_npy(file: Path) -> Array:
    """The array of a .npy, left on the disk: rows are read when they are asked for."""
    with name_errors(file, "array"), file.open("rb") as stream:
        _check_header(stream, file.stat().st_size)
        return np.lib.format.open_memmap(file, mode="r")


def _read_array(stream: IO[bytes], size: int, raw: bool) -> Array:
    _check_header(stream, size)
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "S" and not raw:
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "U":  # what Python cannot write down would fail later, far from the file
        points = array.ravel("K").view(array.dtype.str[0] + "u4")
        if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
            raise InputError("holds invalid characters")
    return array


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array that `size` bytes cannot hold, before any memory is taken, and one of objects."""
    if stream.read(6) != b"\x93NUMPY":
        raise InputError("not in numpy's format")
    stream.seek(0)
    try:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except Exception as error:  # it is parsed as Python
        raise InputError(f"not an array with a shape, or not a type of numbers ({error})") from None
    if dtype.kind not in "biufUS":
        raise InputError("not an array of numbers or strings (objects are not read)")
    count = math.prod(shape) * dtype.itemsize
    if not 0 < count <= size - stream.tell():
        raise InputError(
            f"the shape {shape} of {dtype} does not go with {size} bytes; if it ends too early, download it again, or "
            "copy it again"
        )


def as_finite(array: Array, where: str, what: str) -> torch.Tensor:
    """Numbers as float32, every one of them finite."""
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {what} are {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    broken = np.argwhere(~np.isfinite(numbers))
    if len(broken):
        i, j = broken[0]
        raise InputError(f"{where}: {what}[{i}, {j}] is {array[i, j]}; must be finite")
    return torch.from_numpy(numbers)
