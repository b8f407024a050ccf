"""Arrays: rows, texts or pictures in memory with their labels, data sets of torch, .npz and .npy files.

Nothing in a file is run: arrays of objects are not read.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bayesmooth.data.labels import MISSING, SEPARATOR, Labels, Vocabulary, as_text, label_texts, name_classes
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles, as_bytes, as_rgb
from bayesmooth.data.source import Columns, Mapped
from bayesmooth.data.tables import Array, Changes, Table
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors, write_atomically

# Arrays of a .npz that have one entry per example, under their usual names: the first that is there counts.
EMBEDDINGS, PREDICTED, LABELS = ("embeddings", "features", "X"), ("probabilities", "pred_probs"), ("labels", "y")
USUAL = (*LABELS, *EMBEDDINGS, *PREDICTED, "clean_labels", "ids", "texts", "images")


def read_arrays(rows: Any, labels: Any, columns: Columns, predicted: bool = False) -> Table:
    """Rows N × D, texts or pictures, and one label each: a class, a set of tags, or 0 and 1 for each of T tags."""
    table = Table("arrays", replace(columns, label=None, id=None), {}, 0, parts={})
    items: Any = _list_items(rows)
    if any(isinstance(item, str) for item in items):
        table.parts = {"meta": {"text": [as_text(text) for text in items]}}
    elif items and (isinstance(items[0], Path) or hasattr(items[0], "convert")):
        files = [str(item) if isinstance(item, Path) else as_png(item) for item in items]
        table.parts = {"pictures": ImageFiles(Path(), files, SHOWN_SIZE)}
    else:
        items = as_tensor(rows, "the rows")
        if items.ndim == 4 or (items.ndim == 3 and items.dtype == torch.uint8):
            table.parts = {"pictures": as_pictures(items)}
        elif items.ndim != 2 or not len(items):
            raise InputError(f"rows of shape {tuple(items.shape)}: must be N × D, N ≥ 1")
        else:
            table.parts = {"inputs": items}
    table.count = len(items)
    if isinstance(labels, Labels):
        table.given, table.cells = labels, {"labels": np.array(labels.texts(), object)}
    elif not _take_tags(table, labels):
        _take_classes(table, labels, rows, predicted)
    for cells in table.cells.values():
        if len(cells) != table.count:
            raise InputError(f"{len(cells)} labels for {table.count} rows; give one label per row")
    return table


def _list_items(rows: Any) -> list[Any]:
    """Texts or pictures (of Pillow, or their paths) one by one; nothing where it is an array of numbers."""
    kind = getattr(getattr(rows, "dtype", None), "kind", "O")
    flat = getattr(rows, "ndim", 1) == 1 and not hasattr(rows, "columns") and kind in "OUT"
    return list(rows) if flat and isinstance(rows, Iterable) else []


def _take_classes(table: Table, labels: Any, rows: Any, predicted: bool) -> None:
    names = tuple(map(str, table.columns.class_names or ()))
    given = as_array(labels, "labels")
    if given.ndim != 1:
        raise InputError(f"labels of shape {given.shape}: must be one per row, ({table.count},)")
    numbered, table.cells = given.dtype.kind in "iu", {"labels": given}
    if predicted and not names and table.parts and "inputs" in table.parts:
        heads = tuple(map(str, getattr(rows, "columns", ())))
        if numbered:
            names = tuple(map(str, range(np.shape(rows)[1])))
        elif heads and {*label_texts(given.tolist())} - {*MISSING} <= {*heads}:
            names = heads
    if names:
        table.class_names, table.numbered = names, numbered


def _take_tags(table: Table, labels: Any) -> bool:
    """Whether the labels are sets: an array N × T of 0 and 1, or a list of sets."""
    separator, named = table.columns.separator or SEPARATOR, table.columns.class_names
    if not isinstance(labels, list | tuple) and np.ndim(labels) == 2:
        values = np.asarray(labels)
        heads: Any = named or getattr(labels, "columns", range(values.shape[1]))
        if len(heads) != values.shape[1]:
            raise InputError(f"{len(heads)} class names for {values.shape[1]} columns of labels")
        table.cells = {str(name): column for name, column in zip(heads, values.T, strict=True)}
        table.columns = replace(table.columns, tags=tuple(table.cells), class_names=None)
        return True
    sets = (set, frozenset, list, tuple)
    if not isinstance(labels, list | tuple) or not any(isinstance(y, sets) for y in labels):
        return False
    every = [_read_set(number, row) for number, row in enumerate(labels)]
    words = Vocabulary(tuple(map(str, named or name_classes(set().union(*every)))), separator)
    texts = [words.write(row, f"labels[{number}]") for number, row in enumerate(every)]
    table.cells = {"labels": np.array(texts, object)}
    table.columns = replace(table.columns, separator=separator, class_names=words.names)
    return True


def as_png(picture: Any) -> bytes:
    """A picture of Pillow as a file."""
    content = io.BytesIO()
    as_rgb(picture).save(content, "PNG")
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


def read_torch(what: Any, columns: Columns) -> Table:
    """A data set of pairs (x, y), all of them in memory, in its own order; a loader's order does not count."""
    data: Any = what.dataset if isinstance(what, DataLoader) else what
    pairs = [*data] if isinstance(data, IterableDataset) else [data[i] for i in range(len(data))]
    if not pairs or not all(isinstance(pair, list | tuple) and len(pair) > 1 for pair in pairs):
        raise InputError(f"{type(data).__name__}: its items must be pairs (x, y), and there must be some")
    if columns.class_names is None and isinstance(names := getattr(data, "classes", None), list | tuple):
        columns = replace(columns, class_names=tuple(map(str, names)))
    inputs: Any = [pair[0] for pair in pairs]
    if isinstance(inputs[0], Tensor):
        if len({x.shape for x in inputs}) > 1:
            raise InputError(f"{type(data).__name__}: its inputs have several shapes; give them one")
        inputs = torch.stack(inputs)
    return read_arrays(inputs, [y.item() if hasattr(y, "item") else y for _, y, *_ in pairs], columns)


def read_vote_array(votes: Any, class_names: Sequence[str] | None) -> Labels:
    """The majority of each row, and the votes, of an array or a frame N × A; gaps are −1, NaN or None."""
    table = np.asarray(votes, dtype=object)
    if table.ndim != 2:
        raise InputError(f"votes of shape {table.shape}: must be examples × annotators")
    people = [str(name) for name in getattr(votes, "columns", range(table.shape[1]))]
    texts = np.array(label_texts(table.flatten().tolist()), object).reshape(table.shape)
    mask = ~np.isin(texts, [*{*MISSING, "-1"} - {*(class_names or ())}])
    if not mask.any(1).all():
        silent = mask.any(1).argmin()
        raise InputError(f"votes[{silent}]: nobody labelled it; leave the example out")
    said = [(int(i), people[a], str(texts[i, a])) for i, a in np.argwhere(mask)]
    return Labels.of_votes(said, class_names, "votes")


def as_tensor(values: Any, what: str) -> Tensor:
    """Numbers as a tensor."""
    array = as_array(values, what)
    if array.dtype.kind == "c":
        raise InputError(f"{what}: complex numbers; must be real: give real and imaginary parts")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InputError(f"{what}: not an array of numbers ({error}); convert it, as with astype(float)") from None


def as_array(values: Any, what: str) -> Array:
    """An array that owns its numbers; a mask would be lost, so it is refused."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what}: a masked array; fill it in, or leave the masked rows out")
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    values = values.toarray() if hasattr(values, "toarray") else values  # of scipy.sparse
    try:
        return np.require(values, requirements="W")  # a view of a frame may be read-only
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array ({error})") from None


def open_npz(path: Path, columns: Columns) -> Table:
    """A .npz: embeddings (or features, X), labels (or y), and, if there are any, clean_labels, class_names, ids, texts,
    images (paths, or pictures as bytes), and probabilities (or pred_probs) that a model predicted."""
    arrays = {name: np.atleast_1d(array) for name, array in sorted(read_npz(path).items())}
    usual = next((name for name in (columns.label, *USUAL) if name in arrays), None)
    if usual is None:
        raise InputError(f"{path}: {', '.join(arrays)}: none is called {', '.join(USUAL)}; rename them")
    if usual in (columns.label, *LABELS) and arrays[usual].ndim != 1:
        raise InputError(f"{path}: {usual} of shape {arrays[usual].shape}: must be N labels")
    count = len(arrays[usual])
    parts: dict[str, Any] = {"meta": {}}
    table = Table(str(path), columns, arrays, count, path=path, parts=parts)
    table.write = lambda out, changes, rows: _write_npz(table, out, changes, rows)
    if "class_names" in arrays:
        table.class_names = tuple(_strings(table, "class_names"))
    if "texts" in arrays:
        parts["meta"]["text"] = _strings(table, "texts")
    if (images := arrays.get("images")) is not None:
        if images.dtype.kind in "US":
            parts["meta"]["path"] = _strings(table, "images")
            parts["pictures"] = ImageFiles(path.parent, parts["meta"]["path"], SHOWN_SIZE)
        else:
            with name_errors(path, "picture"):
                parts["pictures"] = as_pictures(torch.from_numpy(images))
    for part, names in (("inputs", EMBEDDINGS), ("predicted", PREDICTED)):
        if name := next((name for name in names if name in arrays), None):
            if arrays[name].ndim != 2 or len(arrays[name]) != count:
                raise InputError(f"{path}: {name} of shape {arrays[name].shape}: must be {count} × D")
            parts[part] = as_finite(arrays[name], str(path), name)
    content = [arrays[name] for name in (*EMBEDDINGS, "texts", "images") if name in arrays]
    table.known_by = [array for array in content if array.shape[:1] == (table.count,)]
    return table


def _strings(table: Table, name: str) -> list[str]:
    array = table.cells[name]
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise InputError(f"{table.where}: {name} are {array.dtype} of shape {array.shape}; must be N strings")
    return [as_text(value) for value in array.tolist()]


def _write_npz(table: Table, out: Path, changes: Changes, rows: list[int]) -> None:
    """All that is in the file, with these rows of the arrays that have one entry per example."""
    changed = {name: _change(table, name, some) for name, some in changes.items()}
    if len(rows) < table.count:
        changed = {name: ({**table.cells} | changed)[name][rows] for name in _per_example(table)}

    def save(beside: Path) -> None:
        with zipfile.ZipFile(table.path or "") as old, zipfile.ZipFile(beside, "w") as new:
            for entry in old.infolist():
                array = changed.get(entry.filename.removesuffix(".npy"))
                content = old.read(entry) if array is None else _npy(array)
                new.writestr(entry, content, entry.compress_type)

    write_atomically(out, save)


def _change(table: Table, name: str, changed: Mapping[int, str]) -> Array:
    """An array of labels with other values, in its own type."""
    array = table.cells[name]
    kind = array.dtype.kind if array.dtype.kind in "SU" else array.dtype
    try:
        return np.array(table.change(name, changed), kind)
    except OverflowError:
        odd = min({*changed.values()} - {*table.texts(name)})
        raise InputError(f"{table.where}: labels are {array.dtype}; {odd!r} is not one") from None


def _per_example(table: Table) -> list[str]:
    """The arrays that have one entry per example, by their names; nothing is cut if one is in doubt."""
    usual = {*table.label_columns, table.id_column, *USUAL}
    long = [name for name, array in table.cells.items() if array.shape[:1] == (table.count,)]
    unsure = [name for name in long if name not in {*usual, "class_names"}]
    if unsure:
        raise InputError(
            f"{table.where}: {unsure[0]} has as many rows as there are examples ({table.count}), and may belong "
            "to them or not; take it out of the file, or clean without its removals"
        )
    return [name for name in long if name in usual]


def open_npy(path: Path, columns: Columns, labels: Path | None, labelled: bool) -> Table:
    """A .npy of rows, which stay on the disk, with the labels of another file; or a .npy of labels alone."""
    alone = labels is None and labelled
    rows = None if alone else read_npy(path, mapped=True)
    if rows is not None and (rows.ndim != 2 or rows.dtype.kind not in "fiu"):
        raise InputError(f"{path}: {rows.dtype} of shape {rows.shape}; must be N × D numbers")
    cells = {"labels": read_npy(labels or path)} if labelled else {}
    if labelled and cells["labels"].ndim != 1:
        raise InputError(f"{labels or path}: has no labels, one per row; name a .npy of them with labels (--labels)")
    table = Table(str(path), columns, cells, len(cells["labels"] if rows is None else rows), path=path, parts={})
    table.write = lambda out, changes, kept: write_atomically(
        out, _npy(_change(table, "labels", changes["labels"])[kept])
    )
    if rows is not None:
        table.parts = {"inputs": Mapped(rows)}
    return table


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of a .npz."""
    arrays = {}
    with name_errors(file, ".npz"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        for name in archive.files:
            with name_errors(name, "numpy array", "; save texts as strings, with astype(str)"):
                content = archive[name]
                if isinstance(content, np.ndarray):  # else it is another file
                    arrays[name] = _check_array(content)
    return arrays


def read_npy(file: Path, mapped: bool = False) -> Array:
    """The array of a .npy; a `mapped` one stays on the disk, and its rows are read when they are asked for."""
    again = "; if it ends too early, download it again, or copy it again"
    with name_errors(file, "numpy array", again):
        return _check_array(np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False))


def _check_array(array: Array) -> Array:
    if array.ndim and len(array) > array.nbytes:  # rows without bytes: a header can claim any number
        raise InputError(f"{len(array):,} rows in {array.nbytes:,} bytes: rows must not be empty")
    if array.dtype.kind not in "biufUS":
        raise InputError("not an array of numbers or strings")
    if array.dtype.kind == "U":
        array.tolist()  # an invalid character fails here, and not far from the file
    return array


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
    return torch.from_numpy(np.require(numbers, requirements="W"))  # that of a frame may be read-only
