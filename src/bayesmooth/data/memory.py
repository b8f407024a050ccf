"""What Python has in memory: rows, texts or pictures with their labels apart, and data sets of torch."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bayesmooth.data.labels import (
    MISSING,
    SEPARATOR,
    Labels,
    Vocabulary,
    VotedLabels,
    as_text,
    encode,
    find_majority,
    label_texts,
    name_classes,
    refuse_shares,
)
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles, as_bytes
from bayesmooth.data.source import Columns, Inputs, Source
from bayesmooth.data.tables import Array, Table
from bayesmooth.errors import InputError


class InMemory(Table):
    """Rows N × D, texts or pictures, and one label each: a class, a set of tags, or 0 and 1 for each of T tags."""

    names_rows = False
    usual_labels = ("labels",)

    def __init__(self, rows: Any, labels: Any, columns: Columns, predicted: bool = False) -> None:
        super().__init__("arrays", replace(columns, label=None, id=None))
        self.inputs: Tensor | None = None
        self.texts_to_learn: list[str] | None = None
        self.pictures: Inputs | None = None
        self._take_inputs(rows)
        self.given = labels if isinstance(labels, Labels) else None
        self.cells: dict[str, list[Any]] = {}
        if self.given is None:
            self._take_labels(labels, rows, predicted)
        self.names = list(self.cells)
        for cells in self.cells.values():
            if len(cells) != len(self):
                raise InputError(
                    f"{len(cells)} labels for {len(self)} rows; give one label per row"
                )

    def _take_inputs(self, rows: Any) -> None:
        first = rows[0] if isinstance(rows, list | tuple) and len(rows) else None
        if hasattr(first, "convert") and hasattr(first, "save"):  # a picture of Pillow
            self.pictures, self.count = (
                ImageFiles(Path(), [*map(_save, rows)], SHOWN_SIZE),
                len(rows),
            )
            return
        if isinstance(first, str) or getattr(getattr(rows, "dtype", None), "kind", "") in (
            "U",
            "T",
        ):
            self.texts_to_learn, self.count = [as_text(text) for text in rows], len(rows)
            return
        tensor = as_tensor(rows, "the rows")
        self.count = len(tensor) if tensor.ndim else 0
        if tensor.ndim == 4 or (tensor.ndim == 3 and tensor.dtype == torch.uint8):
            self.pictures = _as_pictures(tensor)
        elif tensor.ndim != 2 or not len(tensor):
            raise InputError(f"rows of shape {tuple(tensor.shape)}: must be N × D, N ≥ 1")
        else:
            self.inputs = tensor

    def _take_labels(self, labels: Any, rows: Any, predicted: bool) -> None:
        names = tuple(map(str, self.columns.class_names or ()))
        if self._take_tags(labels):
            return
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
        return self.count

    def values(self, name: str) -> list[Any]:
        """The labels, or those of a tag."""
        return self.cells[name]

    def fill(self, source: Source, rows: Array) -> Source:
        """With what is learned from."""
        at, texts = torch.from_numpy(rows), self.texts_to_learn
        if texts is not None:
            return replace(source, meta={"text": [texts[i] for i in rows]})
        if self.inputs is not None:
            return replace(source, inputs=self.inputs[at])
        pictures = self.pictures
        assert pictures is not None
        chosen = pictures[at] if isinstance(pictures, Tensor) else pictures.take(at)
        return replace(source, pictures=chosen)


def _save(picture: Any) -> bytes:
    content = io.BytesIO()
    picture.convert("RGB").save(content, "PNG")
    return content.getvalue()


def _as_pictures(pictures: Tensor) -> Tensor:
    """(N, C, H, W) bytes, from (N, H, W), (N, C, H, W) or (N, H, W, C), bytes or brightness."""
    if pictures.ndim == 3:
        pictures = pictures.unsqueeze(1)
    elif pictures.shape[1] not in (1, 3):
        pictures = pictures.permute(0, 3, 1, 2)
    if pictures.shape[1] not in (1, 3):
        raise InputError(
            f"rows of shape {tuple(pictures.shape)}: neither N × D nor pictures, N × 3 × H × W or N × H × W × 3"
        )
    return (
        pictures if pictures.dtype == torch.uint8 else torch.from_numpy(as_bytes(pictures.numpy()))
    )


def _read_set(number: int, tags: Any) -> set[str]:
    words = isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags)
    if not words and not isinstance(tags, set | frozenset):
        raise InputError(
            f"labels[{number}] = {str(tags)[:80]}: must be a set of tags; a list of numbers may be a row of 0 and 1 or "
            "numbers of tags: give an array N × T, or sets"
        )
    return {as_text(tag).strip() for tag in tags}


def is_torch_data(what: Any) -> bool:
    """Whether it is a data set of torch, or a loader of one."""
    return isinstance(what, Dataset | DataLoader)


def open_torch(what: Any, columns: Columns) -> InMemory:
    """A data set of pairs (x, y), all of them in memory, in its own order; a loader's order does not count."""
    names = getattr(getattr(what, "dataset", what), "classes", None)
    if isinstance(what, DataLoader) and not isinstance(what.dataset, IterableDataset):
        what = what.dataset
    if isinstance(what, DataLoader):
        batches = [_as_pair(batch) for batch in what]
        pairs: Iterable[tuple[Any, Any]] = chain(*(zip(x, y, strict=True) for x, y in batches))
    elif isinstance(what, IterableDataset):
        pairs = map(_as_pair, what)
    else:
        pairs = (_as_pair(what[i]) for i in range(len(what)))
    inputs, labels = (list(each) for each in zip(*pairs, strict=True)) if pairs else ([], [])
    if columns.class_names is None and isinstance(names, list | tuple):
        columns = replace(columns, class_names=tuple(map(str, names)))
    if not isinstance(inputs[0], str) and not hasattr(inputs[0], "convert"):
        shapes = {tuple(np.shape(x)) for x in inputs}
        if len(shapes) > 1:
            raise InputError(
                f"{type(what).__name__}: its inputs have several shapes ({str(sorted(shapes))[:80]}); give them one, "
                "or audit the folder of the pictures"
            )
        inputs = torch.stack([as_tensor(x, "an input") for x in inputs])  # type: ignore[assignment]
    plain = [y.item() if hasattr(y, "item") else y for y in labels]
    return InMemory(inputs, plain, columns)


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
    flat = label_texts(table.flatten().tolist())
    refuse_shares(flat)
    texts = np.array(flat, object).reshape(table.shape)
    missing = {*MISSING, "-1"} - set(class_names or ())
    rows, places = np.nonzero(~np.isin(texts, [*missing]))
    said = tuple((int(i), people[a], str(texts[i, a])) for i, a in zip(rows, places, strict=True))
    majority = find_majority((i, v) for i, _, v in said)
    silent = [row for row in range(len(table)) if row not in majority]
    if silent:
        raise InputError(f"votes[{silent[0]}]: nobody labelled it; leave the example out")
    labels = [majority[row] for row in range(len(table))]
    names = tuple(class_names or name_classes(labels))
    return VotedLabels(encode(labels, names, "votes"), names, said)


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
