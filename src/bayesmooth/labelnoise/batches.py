"""Any data as batches with positions."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesmooth.errors import InputError


@runtime_checkable
class Indexed(Protocol):
    """Labelled examples that give their inputs by position, like `bayesmooth.data.Examples`."""

    @property
    def labels(self) -> Tensor:
        """(N,) class numbers."""

    def batch(self, index: Tensor) -> Tensor:
        """The inputs at these positions."""


Data = Indexed | Tensor | Iterable[Any]


class Batch(NamedTuple):
    """Some examples."""

    inputs: Tensor
    labels: Tensor | None
    position: Tensor


def batches(data: Data, batch_size: int) -> Iterator[Batch]:
    """Batches of inputs with their labels, if any, and positions."""
    if isinstance(data, Indexed):
        for index in torch.arange(len(data.labels)).split(batch_size):  # type: ignore[no-untyped-call]
            yield Batch(data.batch(index), data.labels[index], index)
        return
    if isinstance(data, Tensor):
        start = 0
        for inputs in data.split(batch_size):  # type: ignore[no-untyped-call]
            yield Batch(inputs, None, torch.arange(start, start := start + len(inputs)))
        return
    start = 0
    for batch in data:
        if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 3:
            raise InputError(
                f"a batch is a {type(batch).__name__}: must be (inputs, labels) or (inputs, labels, index)"
            )
        inputs, labels, *rest = batch
        index = rest[0] if rest else torch.arange(start, start + len(inputs))
        start += len(inputs)
        yield Batch(inputs, labels.cpu(), index.cpu())


def count(data: Data, batch_size: int) -> int:
    """How many batches, 0 where only reading will tell."""
    if isinstance(data, Indexed | Tensor):
        return -(-len(data.labels if isinstance(data, Indexed) else data) // batch_size)
    return len(data) if isinstance(data, Sized) else 0
