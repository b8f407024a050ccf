"""Arrays: rows, texts or pictures in memory with their labels, data sets of torch, .npz and .npy files.

Nothing in a file is run: arrays of objects are not read, and none is unpacked to more than its bytes can hold.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bayesmooth.data.arrow import find_rows
from bayesmooth.data.labels import (
    MISSING,
    SEPARATOR,
    Labels,
    Vocabulary,
    VotedLabels,
    as_text,
    label_texts,
    name_classes,
)
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles, as_bytes
from bayesmooth.data.source import Columns, Inputs, Mapped, Source, take
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


class InMemory(Table):
    """Rows N × D, texts or pictures, and one label each: a class, a set of tags, or 0 and 1 for each of T tags."""

    names_rows = False
    usual_labels = ("labels",)

    def __init__(self, rows: Any, labels: Any, columns: Columns, predicted: bool = False) -> None:
        super().__init__("arrays", replace(columns, label=None, id=None))
        self.inputs: Tensor | None = None
        self.pictures: Inputs | None = None
        self.words: list[str] | None = None
        self._take_inputs(rows)
        self.given = labels if isinstance(labels, Labels) else None
        self.cells: dict[str, list[Any]] = {}
        if self.given is None and not self._take_tags(labels):
            self._take_classes(labels, rows, predicted)
        self.names = list(self.cells)
        for cells in self.cells.values():
            if len(cells) != len(self):
                raise InputError(f"{len(cells)} labels for {len(self)} rows; give one label per row")

    def _take_inputs(self, rows: Any) -> None:
        kind = getattr(getattr(rows, "dtype", None), "kind", "O")
        flat = getattr(rows, "ndim", 1) == 1 and not hasattr(rows, "columns") and kind in "OUT"
        items = list(rows) if flat and isinstance(rows, Iterable) else []
        first = items[0] if items else None
        if isinstance(first, str):
            self.words = [as_text(text) for text in items]
        elif isinstance(first, Path) or is_picture(first):
            files = [str(item) if isinstance(item, Path) else _save(item) for item in items]
            self.pictures = ImageFiles(Path(), files, SHOWN_SIZE)
        else:
            tensor = as_tensor(rows, "the rows")
            if tensor.ndim == 4 or (tensor.ndim == 3 and tensor.dtype == torch.uint8):
                self.pictures = as_pictures(tensor)
            elif tensor.ndim != 2 or not len(tensor):
                raise InputError(f"rows of shape {tuple(tensor.shape)}: must be N × D, N ≥ 1")
            else:
                self.inputs = tensor

    def _take_classes(self, labels: Any, rows: Any, predicted: bool) -> None:
        names = tuple(map(str, self.columns.class_names or ()))
        given = as_array(labels, "labels")
        if given.ndim != 1:
            raise InputError(f"labels of shape {given.shape}: must be one per row, ({len(self)},)")
        whole, self.cells = given.dtype.kind in "iu", {"labels": given.tolist()}
        if predicted and not names and self.inputs is not None:
            heads = tuple(map(str, getattr(rows, "columns", ())))
            if whole:
                names = tuple(map(str, range(self.inputs.shape[1])))
            elif heads and {*label_texts(self.cells["labels"])} - {*MISSING} <= {*heads}:
                names = heads
        if names:
            self.class_names, self.numbered = names, whole

    def _take_tags(self, labels: Any) -> bool:
        """Whether the labels are sets: an array N × T of 0 and 1, or a list of sets."""
        separator, named = self.columns.separator or SEPARATOR, self.columns.class_names
        if not isinstance(labels, list | tuple) and np.ndim(labels) == 2:
            table = np.asarray(labels)
            heads: Any = named or getattr(labels, "columns", range(table.shape[1]))
            if len(heads) != table.shape[1]:
                raise InputError(f"{len(heads)} class names for {table.shape[1]} columns of labels")
            tags = tuple(map(str, heads))
            self.cells = dict(zip(tags, table.T.tolist(), strict=True))
            self.columns = replace(self.columns, tags=tags, class_names=None)
            return True
        sets = (set, frozenset, list, tuple)
        if not isinstance(labels, list | tuple) or not any(isinstance(y, sets) for y in labels):
            return False
        every = [_read_set(number, row) for number, row in enumerate(labels)]
        tags = tuple(map(str, named or name_classes({*chain(*every)})))
        words = Vocabulary(tags, separator)
        texts = [words.write(row, f"labels[{number}]") for number, row in enumerate(every)]
        self.cells = {"labels": texts}
        self.columns = replace(self.columns, separator=separator, class_names=tags)
        return True

    def __len__(self) -> int:
        held = (self.inputs, self.pictures, self.words)
        return next(len(rows) for rows in held if rows is not None)

    def values(self, name: str) -> list[Any]:
        """The labels, or those of a tag."""
        return self.cells[name]

    def fill(self, source: Source, rows: Array) -> Source:
        """With what is learned from."""
        at = torch.from_numpy(rows)
        if self.words is not None:
            return replace(source, meta={"text": [self.words[i] for i in rows]})
        if self.inputs is not None:
            return replace(source, inputs=self.inputs[at])
        assert self.pictures is not None
        return replace(source, pictures=take(self.pictures, at))


def is_picture(item: Any) -> bool:
    """Whether it is a picture of Pillow, which is not loaded to find out."""
    return hasattr(item, "convert") and hasattr(item, "save")


def _save(picture: Any) -> bytes:
    content = io.BytesIO()
    picture.convert("RGB").save(content, "PNG")
    return content.getvalue()


def as_pictures(pictures: Tensor) -> Tensor:
    """(N, C, H, W) bytes, from (N, H, W), (N, C, H, W) or (N, H, W, C), bytes or brightness."""
    shaped = pictures.unsqueeze(1) if pictures.ndim == 3 else pictures
    if shaped.ndim == 4 and shaped.shape[1] not in (1, 3):
        shaped = shaped.permute(0, 3, 1, 2)
    if shaped.ndim != 4 or shaped.shape[1] not in (1, 3):
        raise InputError(
            f"rows of shape {tuple(pictures.shape)}: neither N × D nor pictures, N × H × W, N × 3 × H × W or "
            "N × H × W × 3"
        )
    return shaped if shaped.dtype == torch.uint8 else torch.from_numpy(as_bytes(shaped.numpy()))


def _read_set(number: int, tags: Any) -> set[str]:
    words = isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags)
    if not words and not isinstance(tags, set | frozenset):
        raise InputError(
            f"labels[{number}] = {str(tags)[:80]}: must be a set of tags; a list of numbers may be a row of 0 and 1 or "
            "numbers of tags: give an array N × T, or sets"
        )
    return {as_text(tag).strip() for tag in tags}


def open_torch(what: Any, columns: Columns) -> InMemory:
    """A data set of pairs (x, y), all of them in memory, in its own order; a loader's order does not count."""
    names = getattr(getattr(what, "dataset", what), "classes", None)
    if isinstance(what, DataLoader) and not isinstance(what.dataset, IterableDataset):
        what = what.dataset
    if isinstance(what, DataLoader) and what.batch_size is not None:
        pairs = [pair for batch in what for pair in zip(*_as_pair(batch), strict=True)]
    elif isinstance(what, DataLoader | IterableDataset):
        pairs = [_as_pair(item) for item in what]
    else:
        pairs = [_as_pair(what[i]) for i in range(len(what))]
    if not pairs:
        raise InputError(f"{type(what).__name__}: holds no examples; give one with some")
    if columns.class_names is None and isinstance(names, list | tuple):
        columns = replace(columns, class_names=tuple(map(str, names)))
    inputs: Any = [x for x, _ in pairs]
    if not isinstance(inputs[0], str) and not is_picture(inputs[0]):
        shapes = {tuple(np.shape(x)) for x in inputs}
        if len(shapes) > 1:
            raise InputError(
                f"{type(what).__name__}: its inputs have several shapes ({str(sorted(shapes))[:80]}); give them one, "
                "or audit the folder of the pictures"
            )
        inputs = torch.stack([as_tensor(x, "an input") for x in inputs])
    labels = [y.item() if hasattr(y, "item") else y for _, y in pairs]
    return InMemory(inputs, labels, columns)


def _as_pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise InputError(f"a data set of {type(item).__name__}: its items must be pairs (x, y)")
    return item[0], item[1]


def read_vote_array(votes: Any, class_names: Sequence[str] | None) -> VotedLabels:
    """The majority of each row, and the votes, of an array or a frame N × A; gaps are −1, NaN or None."""
    table = np.asarray(votes, dtype=object)
    if table.ndim != 2:
        raise InputError(f"votes of shape {table.shape}: must be examples × annotators")
    people = [str(name) for name in getattr(votes, "columns", range(table.shape[1]))]
    texts = np.array(label_texts(table.flatten().tolist()), object).reshape(table.shape)
    there = ~np.isin(texts, [*{*MISSING, "-1"} - {*(class_names or ())}])
    if not there.any(1).all():
        silent = there.any(1).argmin()
        raise InputError(f"votes[{silent}]: nobody labelled it; leave the example out")
    said = [(int(i), people[a], str(texts[i, a])) for i, a in np.argwhere(there)]
    return VotedLabels.of(said, class_names, "votes")


def as_tensor(values: Any, what: str) -> Tensor:
    """Numbers as a tensor."""
    array = values if isinstance(values, Tensor) else as_array(values, what)
    try:
        tensor = array if isinstance(array, Tensor) else torch.as_tensor(array, device="cpu")
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array of numbers ({error})") from None
    if tensor.is_complex():
        raise InputError(f"{what}: complex numbers; must be real: give real and imaginary parts")
    return tensor.detach()


def as_array(values: Any, what: str) -> Array:
    """An array that owns its numbers; a mask would be lost, so it is refused."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what}: a masked array; fill it in, or leave the masked rows out")
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        return np.require(values, requirements="W")  # a view of a frame may be read-only
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array ({error})") from None


class Npz(Table):
    """A .npz: embeddings (or features, X), labels (or y), and, if there are any, clean_labels, class_names, ids, texts,
    images (paths, or pictures as bytes), and probabilities (or pred_probs) that a model predicted."""

    usual_labels = KEYS["labels"]
    part = "array"
    arrays: Mapping[str, Array]

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
        return next((self.arrays[name] for name in KEYS[key] if name in self.arrays), None)

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
        at, images = torch.from_numpy(rows), self.arrays.get("images")
        meta = dict[str, list[str]]()
        pictures: Inputs | None = None
        if "texts" in self.arrays:
            meta["text"] = [self._strings("texts")[i] for i in rows]
        if images is not None and images.dtype.kind in "US":
            meta["path"] = [self._strings("images")[i] for i in rows]
            pictures = ImageFiles(self.folder, meta["path"], SHOWN_SIZE)
        elif images is not None:
            if images.dtype != np.uint8:
                raise InputError(
                    f"{self.where}: images are {images.dtype} of shape {images.shape}; must be paths, or bytes (uint8)"
                )
            with name_errors(self.where, "picture"):
                pictures = as_pictures(torch.from_numpy(images))[at]
        inputs = self._numbers("embeddings", at)
        source = source if inputs is None else replace(source, inputs=inputs)
        predicted = self._numbers("predicted", at)
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
            raise InputError(f"{self.where}: {name} are {array.dtype} of shape {array.shape}; must be N strings")
        return [as_text(value) for value in array.tolist()]

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """All that is in the file, with these rows of the arrays that have one entry per example."""
        changed = {name: self._change(name, some) for name, some in changes.items()}
        if len(rows) < len(self):
            changed = {k: ({**self.arrays} | changed)[k][rows] for k in self._per_example()}
        entries = {f"{name}.npy": array for name, array in changed.items()}

        def save(beside: Path) -> None:
            with zipfile.ZipFile(self.path or "") as old, zipfile.ZipFile(beside, "w") as new:
                for entry in old.infolist():
                    array = entries.get(entry.filename)
                    content = old.read(entry) if array is None else _npy(array)
                    new.writestr(entry, content, entry.compress_type)

        replace_with(out, save)

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


class Npy(Npz):
    """A .npy of rows, which stay on the disk, with the labels of another file; or a .npy of labels alone."""

    def __init__(self, path: Path, columns: Columns, labels: Path | None, labelled: bool) -> None:
        Table.__init__(self, str(path), columns)
        self.path, self.folder, self.rows = path, path.parent, None
        alone = labels is None and labelled
        if not alone:
            self.rows = read_npy(path, mapped=True)
            if self.rows.ndim != 2 or self.rows.dtype.kind not in "fiu":
                raise InputError(f"{path}: {self.rows.dtype} of shape {self.rows.shape}; must be N × D numbers")
        self.arrays = {"labels": read_npy(labels or path)} if labelled else {}
        if alone and self.arrays["labels"].ndim != 1:
            raise InputError(f"{path}: has no labels; name a .npy of them with labels (--labels)")
        self.names = sorted(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays["labels"] if self.rows is None else self.rows)

    def fill(self, source: Source, rows: Array) -> Source:
        """With the rows, read when they are asked for."""
        if self.rows is None:
            return source
        at = None if len(rows) == len(self) else torch.from_numpy(rows)
        return replace(source, inputs=Mapped(self.rows, at))

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """A .npy of labels."""
        write_atomically(out, _npy(self._change("labels", changes["labels"])[rows]))


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def read_npz(file: Path, raw: bool = False) -> dict[str, Array]:
    """All arrays of a .npz; bytes become text, unless they are to stay `raw`."""
    with name_errors(file, ".npz"), zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        packed, unpacked = file.stat().st_size, sum(entry.file_size for entry in entries)
        if unpacked > MAX_BYTES:
            raise InputError(f"more than {MAX_BYTES >> 30} GB unpacked; read it in parts")
        if unpacked > max(LIMIT, MAX_RATIO * packed):
            raise InputError(
                f"{packed:,} bytes that unpack to {unpacked:,}, more than {MAX_RATIO} times as many; "
                "if that is right, save it unpacked with numpy.savez"
            )
        arrays = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            with name_errors(name, "numpy array"), archive.open(entry) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                _check_array(array, entry.file_size)
            text = array.dtype.kind == "S" and not raw
            arrays[name] = np.char.decode(array, "utf-8") if text else array
        return arrays


def read_npy(file: Path, mapped: bool = False) -> Array:
    """The array of a .npy; a `mapped` one stays on the disk, and its rows are read when they are asked for."""
    again = "; if it ends too early, download it again, or copy it again"
    with name_errors(file, "numpy array", again), file.open("rb") as stream:
        if mapped:
            array: Array = np.lib.format.open_memmap(file, mode="r")
        else:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        _check_array(array, file.stat().st_size)
        return array


def _check_array(array: Array, size: int) -> None:
    if array.ndim and len(array) > size:  # rows without bytes: a header can claim any number
        raise InputError(f"{len(array):,} rows in {size:,} bytes: rows must not be empty")
    if array.dtype.kind not in "biufUS":
        raise InputError("not an array of numbers or strings")
    if array.dtype.kind == "U":  # what Python cannot write down would fail later, far from the file
        points = array.ravel("K").view(array.dtype.str[0] + "u4")
        if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
            raise InputError("holds invalid characters")


def as_finite(array: Array, where: str, what: str) -> Tensor:
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
