"""`Source`: a data set where it lies. Training, audits, corruption, prediction and cleaning take one of these."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.labels import Labels
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.data.features import Reading
    from bayesmooth.data.tables import Table


class Stored(Protocol):
    """Inputs that are not in memory: as long as a tensor, and indexed by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Tensor: ...

    def take(self, index: Tensor) -> "Stored":
        """Some of them, which are not read yet."""
        ...


VARIABLE = "BAYESMOOTH_DATA"  # the folder of data sets
Inputs = Tensor | Stored
Mask = Tensor | np.ndarray[Any, Any] | Sequence[bool]


@dataclass(frozen=True, eq=False)
class Mapped:
    """The rows of an array that stays on the disk (`numpy.memmap`), or some of them, read when they are asked for."""

    array: np.ndarray[Any, Any]
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.array if self.rows is None else self.rows)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        at = index if self.rows is None else self.rows[index]
        return torch.from_numpy(self.array[at.numpy()].astype(np.float32))

    def take(self, index: Tensor) -> "Mapped":
        """Some of the rows."""
        return replace(self, rows=index if self.rows is None else self.rows[index])


class Kind(StrEnum):
    """The subject of a note."""

    LEARNED = "learned_from"
    NOT_LEARNED = "not_learned_from"
    FILLED = "missing_number"
    ENCODER = "encoder"
    SPLIT = "split"
    # Problems of some examples beside the meaning of their labels, with their ids.
    MISSING_LABEL = "missing_label"
    MISSING_VECTOR = "missing_vector"
    NOT_A_NUMBER = "not_a_number"
    DUPLICATE_ID = "duplicate_id"
    EMPTY_TEXT = "empty_text"
    SINGLE_EXAMPLE = "single_example"
    LABEL_SPELLING = "label_spelling"
    TAG_SPELLING = "tag_spelling"
    UNREADABLE = "unreadable_picture"
    MISSING_PICTURE = "missing_picture"
    BLANK = "blank_picture"
    DARK = "dark_picture"
    BLURRED = "blurred_picture"
    UNKNOWN_FORMAT = "unknown_format"


REMARKS = {Kind.LEARNED, Kind.NOT_LEARNED, Kind.FILLED, Kind.ENCODER, Kind.SPLIT}
"""The kinds that are no problems."""


@dataclass(frozen=True)
class Note:
    """A remark of a loader, or a problem that it found."""

    kind: Kind
    text: str
    """A sentence: the number of examples, their problem, and its treatment."""
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The meaning of the columns of a table. None: the usual names decide."""

    label: str | None = None
    clean_label: str | None = None
    """True labels, where they are known."""
    text: str | None = None
    """Texts to learn from."""
    image: str | None = None
    """Pictures to learn from: paths, or the bytes of files."""
    id: str | None = None
    annotator: str | None = None
    """The annotators: the table has one row per vote, and `id` names the example."""
    separator: str | None = None
    """Between the tags of an example in the column of labels."""
    tags: Sequence[str] | None = None
    """Columns of 0 and 1, one per tag: an example has several labels."""
    features: Sequence[str] | None = None
    """Columns to learn from."""
    predicted: Sequence[str] | None = None
    """Columns of class probabilities by another model; nothing is learned from them."""
    class_names: Sequence[str] | None = None
    """In the order of their numbers."""
    encoding: str | None = None
    """Of a CSV or JSON that is neither UTF-8 nor UTF-16."""

    def __post_init__(self) -> None:
        """Refuse columns that no table can have, before anything is read."""
        for name in ("features", "class_names", "tags"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name}={getattr(self, name)!r}: must be a list of names")
        if self.annotator is not None and (self.tags is not None or self.separator is not None):
            raise InputError("annotator beside several labels per example: a vote is one label; audit tag by tag")

    @property
    def clean_options(self) -> dict[str, str | list[str]]:
        """The columns by which `clean` finds the same labels again, as JSON keeps them."""
        names = ("label", "id", "tags", "separator", "class_names", "encoding")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {name: value if isinstance(value, str) else [*map(str, value)] for name, value in given.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """Labelled examples. `inputs` stay as they are on disk (uint8 pictures as uint8); `batch` makes them float.

    >>> Source(torch.zeros(3, 2), Labels(torch.tensor([0, 1, 1]), ("cat", "dog")), name="pets")
    Source(pets: 3 × float32[2], 2 classes)
    """

    inputs: Inputs
    labels: Labels
    clean: Tensor | None = None
    """The true classes, where they are known."""
    ids: tuple[str, ...] = ()
    """Unique and stable names of the examples, kept by subsets; their positions by default."""
    name: str = "examples"
    mean: tuple[float, ...] | None = None
    """With `std`: one number per channel or column, which `batch` scales by."""
    std: tuple[float, ...] | None = None
    meta: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns of text to show beside the examples; `text` is the one to learn from."""
    pictures: Inputs | None = None
    """Pictures to show, or to embed, where the inputs are none themselves."""
    predicted: Tensor | None = None
    """Class probabilities that somebody's model gave."""
    reading: "Reading | None" = None
    """The reading by which new rows are read alike."""
    notes: tuple[Note, ...] = ()
    table: "Table | None" = None
    """The table that it comes from; `rows` are the positions of the examples in it."""
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(self.inputs)
        if not self.ids:
            object.__setattr__(self, "ids", tuple(map(str, range(count))))
        if self.clean is not None:
            object.__setattr__(self, "clean", self.labels.renumber(self.clean).numbers)  # checked alike
        per_row = {"labels": self.labels, "clean labels": self.clean, "ids": self.ids}
        shown = {"pictures": self.pictures, "predicted": self.predicted}
        for name, column in {**per_row, **shown, **self.meta}.items():
            if column is not None and len(column) != count:
                raise InputError(f"{self.name}: {len(column)} {name} for {count} inputs; give one per input")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return self.labels.names

    @property
    def names_classes(self) -> bool:
        """Whether the user or the data set named the classes, so that there are no others."""
        return self.table is not None and bool(self.table.columns.class_names or self.table.class_names)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.labels.names)

    @property
    def texts(self) -> Sequence[str] | None:
        """The texts to learn from, where there are any."""
        return self.meta.get("text")

    @property
    def problems(self) -> tuple[Note, ...]:
        """The notes that are findings: problems of examples."""
        return tuple(note for note in self.notes if note.kind not in REMARKS)

    @property
    def path(self) -> Path | None:
        """The file or folder it comes from."""
        return None if self.table is None else self.table.path

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a model wants to know it."""
        first = self.inputs[torch.arange(min(len(self), 1), device="cpu")]
        return tuple(first.shape[1:])

    def batch(self, index: Tensor, change: Callable[[Tensor], Tensor] = lambda inputs: inputs) -> Tensor:
        """The inputs at these positions as a network sees them: (x − mean) / std, uint8 scaled to [0, 1] first.

        `change` augments the raw ones.

        >>> black, first = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([0])
        >>> Source(black, Labels(first, ("a",)), mean=(0.5,), std=(0.5,)).batch(first).mean()
        tensor(-1.)
        """
        inputs = change(self.inputs[index])
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        shape = (-1,) + (1,) * (inputs.ndim - 2)
        kind = torch.float64 if inputs.dtype == torch.float64 else torch.float32
        scale = torch.tensor([self.mean or (0.0,), self.std or (1.0,)], dtype=kind, device="cpu")
        mean, std = scale.view(2, *shape).to(inputs.device, non_blocking=True)
        if kind is torch.float64:  # a column of a table may be far from zero and hardly spread
            return inputs.sub(mean).div_(std).float()
        return inputs.to(torch.float32, copy=True).mul_(1 / (unit * std)).sub_(mean / std)

    def column(self, name: str) -> list[Any]:
        """The values of a column of the table it comes from."""
        if self.table is None:
            raise InputError(f"{self.name}: has no columns, as it comes from no table")
        values = self.table.values(name)
        return values if self.rows is None else [values[i] for i in self.rows.tolist()]

    def subset(self, index: Tensor | Sequence[int]) -> "Source":
        """The examples at these positions (or where a mask is true), in that order."""
        at = torch.as_tensor(index, device="cpu")
        at = at.nonzero().flatten() if at.dtype == torch.bool else at.to(torch.int64)
        if len(at) and not (int(at.min()) >= 0 and int(at.max()) < len(self)):
            raise InputError(f"{self.name}: positions must be from 0 to {len(self) - 1}")
        rows = at.tolist()
        return replace(
            self,
            inputs=take(self.inputs, at),
            labels=self.labels.subset(at),
            clean=None if self.clean is None else self.clean[at],
            ids=tuple(self.ids[i] for i in rows),
            meta={key: [column[i] for i in rows] for key, column in self.meta.items()},
            pictures=None if self.pictures is None else take(self.pictures, at),
            predicted=None if self.predicted is None else self.predicted[at],
            rows=None if self.rows is None else self.rows[at],
        )

    def keep_classes(self, kept: Tensor) -> "Source":
        """The same examples without the classes that are not kept, which no label names; a true class stays."""
        if self.clean is not None:
            kept = kept | (torch.bincount(self.clean, minlength=len(kept)) > 0)
        at, names = kept.cumsum(0) - 1, tuple(self.class_names[k] for k in kept.nonzero().flatten().tolist())
        labels = replace(self.labels, numbers=at[self.labels.numbers], names=names)
        return replace(self, labels=labels, clean=None if self.clean is None else at[self.clean])

    def note(self, kind: Kind, text: str, concerned: Mask = ()) -> "Source":
        """The same examples with a note on those that are concerned."""
        ids = tuple(self.ids[i] for i in np.flatnonzero(concerned))
        return replace(self, notes=(*self.notes, Note(kind, text, ids)))

    def leave_out(self, kind: Kind, text: str, concerned: Mask) -> "Source":
        """The other examples; those that are left out, if there are any, become a finding."""
        left = torch.from_numpy(np.flatnonzero(~np.asarray(concerned, bool)))
        if not len(left):
            raise InputError(f"{self.name}: {text}; no example is left to audit")
        return self if len(left) == len(self) else self.note(kind, text, concerned).subset(left)

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of examples by id; a row without an id of its own is found by its content, where it moved."""
        at = {name: i for i, name in enumerate(self.ids)}
        if self.table is not None and self.table.names_rows:
            contents = [name.partition("-")[2] for name in self.ids]
            times = Counter(contents)
            moved = {content: i for i, content in enumerate(contents) if times[content] == 1}
            at |= {name: moved[name.partition("-")[2]] for name in ids if name.partition("-")[2] in moved} | at
        return {name: at[name] for name in ids if name in at}

    def write(self, out: str | Path, changes: Mapping[str, str | None]) -> None:
        """Write it again in its own format, with other labels by id and without those that are None."""
        table, where = self.table, self.find(list(changes))
        if table is None or self.rows is None or table.write is None:
            raise InputError(f"{self.name}: lies in no file, so it cannot be written again")
        by_row = {int(self.rows[where[name]]): text for name, text in changes.items()}
        by_row |= {int(self.rows[i]): changes[name] for i, name in enumerate(self.ids) if name in changes}  # all votes
        wanted = {row: text for row, text in by_row.items() if text is not None}
        cells = {name: table.texts(name) for name in table.label_columns}
        kept = [row for row in range(table.count) if by_row.get(row, "") is not None]
        table.write(Path(out), self.labels.edit_cells(cells, wanted, table.numbered), kept)

    def __repr__(self) -> str:
        kind = "streamed inputs"
        if isinstance(self.inputs, Tensor):
            kind = f"{str(self.inputs.dtype).removeprefix('torch.')}{list(self.input_shape)}"
        parts = [f"{len(self):,} × {kind}", f"{self.num_classes} classes"]
        if self.clean is not None and len(self):
            wrong = (self.labels.numbers != self.clean).double().mean()
            parts.append(f"{wrong:.2%} of the labels wrong")
        return f"Source({self.name}: {', '.join(parts)})"


def take(inputs: Inputs, index: Tensor) -> Inputs:
    """Some of the inputs."""
    return inputs[index] if isinstance(inputs, Tensor) else inputs.take(index)


# ---- the folder of data sets ----


def data_root(data_dir: str | Path | None) -> Path:
    """The folder of data sets: the argument, else BAYESMOOTH_DATA, else ./data."""
    return Path(data_dir or os.environ.get(VARIABLE) or "data").expanduser()


@contextmanager
def keep_data_in(data_dir: str | Path | None) -> Iterator[None]:
    """Within the context data sets are kept there, for all that is called; None leaves it as it is."""
    before = os.environ.get(VARIABLE)
    if data_dir is not None:
        os.environ[VARIABLE] = str(data_dir)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
