"""More rows than fit in memory: which of them to learn from, and all of them piece by piece, here or on a cluster."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.progress import track

ROWS_AT_ONCE = 1 << 13
SAMPLE = 100_000  # rows that are learned from: more hardly change what is learned
ROWS_PER_CLASS = 100  # that are in the sample at least, if the class has so many
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def choose_rows(labels: Tensor, seed: int = 0) -> Tensor:
    """Positions of all examples, or of `SAMPLE` at random and at least `ROWS_PER_CLASS` of every class, in order."""
    if len(labels) <= SAMPLE:
        return torch.arange(len(labels), device="cpu")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed), device="cpu")
    by_class = labels[order].argsort(stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order][by_class]]
    rank = torch.empty_like(order)
    # of each among its class, at random
    rank[by_class] = torch.arange(len(labels), device="cpu") - starts
    chosen = (torch.arange(len(labels), device="cpu") < SAMPLE) | (rank < ROWS_PER_CLASS)
    return order[chosen].sort().values


def read_pieces(
    examples: Examples, index: Tensor, description: str, quiet: bool, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and rows, piece by piece, checked."""
    parts = torch.split(index, size or ROWS_AT_ONCE)
    for at in track(parts, description=description, quiet=quiet or len(parts) < 2):
        rows = examples.batch(at).flatten(1)
        broken = ~(rows.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{examples.name}: row {row} has entries that are NaN, infinite or beyond ±{LARGEST:.0e}; "
                "must be ordinary numbers: drop such rows, or scale the embeddings"
            )
        yield at, rows


def map_pieces(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], cluster: str | None = None
) -> Iterator[Result]:
    """`work` on every piece, in order; with "ray" as tasks of a Ray cluster, some at a time."""
    if cluster is None:
        yield from map(work, pieces)
        return
    ray = require("ray", extra="cluster")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error")
    task, shared = ray.remote(_apply), ray.put(work)
    limit = 2 * int(ray.cluster_resources().get("CPU", 1))
    waiting: deque[Any] = deque()
    for piece in pieces:
        if len(waiting) >= limit:
            yield ray.get(waiting.popleft())
        waiting.append(task.remote(shared, piece))
    while waiting:
        yield ray.get(waiting.popleft())


def _apply(work: Callable[[Piece], Result], piece: Piece) -> Result:
    return work(piece)
