"""Labelled examples: what every loader returns and everything above trains on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bayesmooth.errors import InputError


class Source(Protocol):
    """Inputs that are not in memory: as long as a tensor, and indexed by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Tensor: ...


Inputs = Tensor | Source


@dataclass(frozen=True)
class Part:
    """Some rows of a source, read when they are asked for."""

    source: Source
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        return self.source[self.index[index]]


@dataclass(frozen=True, eq=False)
class Mapped:
    """The rows of an array that stays on the disk (`numpy.memmap`), read when they are asked for."""

    array: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        return torch.from_numpy(self.array[index.numpy()].astype(np.float32))


@dataclass(frozen=True)
class Problem:
    """What is wrong with some examples other than their labels' meaning: a finding, not an error."""

    kind: str
    text: str
    """A sentence: how many, what is wrong, and what was done about it."""
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Inputs and labels, with the clean labels where they are known.

    `inputs` stay as they are on disk (uint8 pictures as uint8); `batch` makes them float, scales
    uint8 to [0, 1] and applies `mean` and `std`, one number per channel or column. `ids` name the examples
    across subsets (default: positions); `meta` holds columns of text to show beside them, `pictures` what to
    show where the inputs are embeddings, `predicted` the class probabilities that somebody's model gave,
    `columns` how the columns of a table are called that the inputs come from, `reading` how new rows are read alike
    (`data.columns.Reading`), `notes` what the loader left out or
    assumed, `problems` the examples that something is wrong with, `source` the file they come from.

    >>> Examples(torch.zeros(3, 2), torch.tensor([0, 1, 1]), ("cat", "dog"), name="pets")
    Examples(pets: 3 × float32[2], 2 classes)
    """

    inputs: Inputs
    labels: Tensor
    class_names: tuple[str, ...]
    clean_labels: Tensor | None = None
    ids: tuple[str, ...] | None = None
    name: str = "examples"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    meta: dict[str, list[str]] = field(default_factory=dict)
    pictures: Inputs | None = None
    predicted: Tensor | None = None
    columns: tuple[str, ...] = ()
    reading: Any = None
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    source: Path | None = None

    def __post_init__(self) -> None:
        count, classes = len(self.inputs), self.num_classes
        object.__setattr__(self, "labels", as_class_numbers(self.labels, count, classes, "labels"))
        if self.clean_labels is not None:
            clean = as_class_numbers(self.clean_labels, count, classes, "clean_labels")
            object.__setattr__(self, "clean_labels", clean)
        extra = {"ids": self.ids, "pictures": self.pictures, "predicted": self.predicted}
        for name, column in {**extra, **self.meta}.items():
            if column is not None and len(column) != count:
                raise InputError(
                    f"{self.name}: {len(column)} {name} for {count} inputs; give one per input"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a model wants to know it."""
        first = self.inputs[torch.arange(min(len(self), 1), device="cpu")]
        return tuple(first.shape[1:])

    def as_float(self, inputs: Tensor) -> Tensor:
        """Raw inputs as the network sees them: (x − mean) / std, uint8 scaled to [0, 1] first."""
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        shape = (-1,) + (1,) * (inputs.ndim - 2)
        kind = torch.float64 if inputs.dtype == torch.float64 else torch.float32
        mean = torch.tensor(self.mean or (0.0,), dtype=kind, device="cpu").view(shape)
        std = torch.tensor(self.std or (1.0,), dtype=kind, device="cpu").view(shape)
        if kind is torch.float64:  # a column of a table may be far from zero and hardly spread
            return inputs.sub(mean).div_(std).float()
        return inputs.to(torch.float32, copy=True).mul_(1 / (unit * std)).sub_(mean / std)

    def batch(self, index: Tensor) -> Tensor:
        """The inputs at these positions, as float.

        >>> black, first = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([0])
        >>> Examples(black, first, ("a",), mean=(0.5,), std=(0.5,)).batch(first).mean()
        tensor(-1.)
        """
        return self.as_float(self.inputs[index])

    def subset(self, index: Tensor | Sequence[int]) -> "Examples":
        """The examples at these positions (or where a mask is true), in that order."""
        at = torch.as_tensor(index, device="cpu")
        at = at.nonzero().flatten() if at.dtype == torch.bool else at.to(torch.int64)
        if len(at) and not (int(at.min()) >= 0 and int(at.max()) < len(self)):
            raise InputError(f"{self.name}: positions must be from 0 to {len(self) - 1}")
        rows = at.tolist()
        names = self.ids
        return replace(
            self,
            inputs=_take(self.inputs, at),
            labels=self.labels[at],
            clean_labels=None if self.clean_labels is None else self.clean_labels[at],
            ids=tuple(str(i) if names is None else names[i] for i in rows),
            meta={key: [column[i] for i in rows] for key, column in self.meta.items()},
            pictures=None if self.pictures is None else _take(self.pictures, at),
            predicted=None if self.predicted is None else self.predicted[at],
        )

    def __repr__(self) -> str:
        kind = "streamed inputs"
        if isinstance(self.inputs, Tensor):
            kind = f"{str(self.inputs.dtype).removeprefix('torch.')}{list(self.input_shape)}"
        parts = [f"{len(self):,} × {kind}", f"{self.num_classes} classes"]
        if self.clean_labels is not None and len(self):
            wrong = (self.labels != self.clean_labels).double().mean()
            parts.append(f"{wrong:.2%} of the labels wrong")
        return f"Examples({self.name}: {', '.join(parts)})"


def as_class_numbers(labels: Tensor, count: int, classes: int, what: str) -> Tensor:
    """Labels as int64, one per input, each in 0 … K−1."""
    if labels.ndim != 1 or len(labels) != count:
        raise InputError(f"{what} of shape {tuple(labels.shape)}: must be one per row, ({count},)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{what} are {labels.dtype}: must be integers from 0 to {classes - 1}")
    labels = labels.to(torch.int64)
    bad = ((labels < 0) | (labels >= classes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise InputError(f"{what}[{at}]={int(labels[at])}: must be from 0 to {classes - 1}")
    return labels


def _take(inputs: Inputs, index: Tensor) -> Inputs:
    return inputs[index] if isinstance(inputs, Tensor) else Part(inputs, index)
