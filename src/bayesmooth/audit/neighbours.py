"""The nearest neighbours of every example by cosine similarity, and those with one label and with another.

All pairs are compared while that is quick. Beyond, k-means sorts the rows into cells, and only the cells nearest to a
row are searched. Both are made of matrix products, so no index library is needed.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from bayesmooth.progress import bar

EXACT_ROWS = 5_000  # up to which all pairs of rows are compared: searching cells misses one neighbour in twenty
ROWS, COLUMNS = 1024, 1 << 14  # similarities at a time
PROBED = 8  # cells that are searched for a row: they hold 87 to 98 % of its true neighbours in embeddings
SMALLEST = 128  # rows in a cell, on average
LEARNT_FROM = 16  # rows for each cell from which k-means learns
ROUNDS = 4  # of k-means
EACH = 3  # neighbours with each label that are shown beside an example

Array = NDArray[Any]


class Keys:
    """Unit rows that can be searched again and again, all of them or cell by cell.

    Thousands of copies would fill a cell: give each row once (`Distinct`).
    """

    def __init__(self, rows: Tensor, queries: int = 0) -> None:
        """`queries`: about how many rows will be searched for."""
        self.rows, self.order = rows, torch.arange(len(rows), device=rows.device)
        self.centres = rows[:0]
        cells = min(4 * int(len(rows) ** 0.5), len(rows) // SMALLEST)
        if max(queries, len(rows)) <= EXACT_ROWS or cells <= PROBED:
            return
        self.centres = _find_centres(rows, cells)
        cell = _find_cells(rows, self.centres, 1).flatten()
        sorted_by_cell = cell.argsort(stable=True)
        self.order, self.rows = sorted_by_cell, rows[sorted_by_cell]
        counts = torch.bincount(cell, minlength=cells)
        self.bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).tolist()

    def search(self, queries: Tensor, k: int, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Positions and similarities (N, k) of the nearest rows, nearest first; `own` are the queries' own positions,
        which are left out.

        >>> rows = unit_rows(torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]))
        >>> Keys(rows).search(rows, 1, own=torch.arange(3))[0].flatten().tolist()
        [1, 0, 1]
        """
        k += own is not None
        best = queries.new_full((len(queries), k), -2.0)  # below any similarity
        where = torch.zeros(len(queries), k, dtype=torch.int64, device=queries.device)
        with bar(len(queries), description="neighbours") as shown:
            for rows, part, done in self._compared(queries):
                values = queries[rows] @ self.rows[part].mT
                places = torch.arange(values.shape[1], device="cpu").expand_as(values)
                if values.shape[1] > 2 * k:
                    values, places = values.topk(k, sorted=False)
                values = torch.cat([best[rows], values], 1)
                best[rows], kept = values.topk(k, sorted=False)
                where[rows] = torch.cat([where[rows], part.start + places], 1).gather(1, kept)
                shown.update(done)
        order = best.argsort(dim=1, descending=True, stable=True)
        best, where = best.gather(1, order), where.gather(1, order)
        missing = best < -1.5  # fewer rows than k in the cells: the nearest stands in
        where = torch.where(missing, where[:, :1], where)
        index = self.order[where]
        similarity = torch.where(missing, best[:, :1], best).clamp_(-1, 1)
        if own is None:
            return index, similarity
        mine = index == own[:, None]
        mine[:, -1] |= ~mine.any(1)  # equal rows crowded it out
        mine &= mine.cumsum(1) == 1
        return index[~mine].view(-1, k - 1), similarity[~mine].view(-1, k - 1)

    def _compared(self, queries: Tensor) -> Iterator[tuple[Tensor, slice, int]]:
        """Which queries are compared with which part of the keys, and how many queries are done with it."""
        if not len(self.centres):
            for rows in torch.split(torch.arange(len(queries), device="cpu"), ROWS):
                for first in range(0, len(self.rows), COLUMNS):
                    yield rows, slice(first, first + COLUMNS), int(rows[-1]) + 1
            return
        probed, done = _find_cells(queries, self.centres, PROBED).flatten(), 0
        sizes = torch.bincount(probed, minlength=len(self.centres)).tolist()
        by_cell = torch.split(probed.argsort(stable=True) // PROBED, sizes)
        for asked, (start, end) in zip(by_cell, pairwise(self.bounds), strict=True):
            for rows in torch.split(asked, ROWS):
                done += len(rows)
                yield rows, slice(start, end), done // PROBED


def unit_rows(x: Tensor) -> Tensor:
    """Rows of float32 of length one; rows of zeros stay zeros."""
    rows = x.float()
    size = rows.abs().amax(1, keepdim=True)  # first, so that squares do not overflow
    return normalize(rows / size.clamp_min(torch.finfo(torch.float32).tiny), dim=1).contiguous()


class Distinct(NamedTuple):
    """Which of N rows are equal: U groups of copies."""

    group: Tensor
    """The group of every row (N,)."""
    first: Tensor
    """Position of the first row of every group (U,)."""

    @classmethod
    def of(cls, hashes: Tensor) -> "Distinct":
        """From `hash_rows`; groups in the order of their hashes, so that no order of the rows matters.

        >>> Distinct.of(hash_rows(torch.tensor([[1.0], [3.0], [1.0]]))).group.bincount().tolist() in ([1, 2], [2, 1])
        True
        """
        kinds, group = torch.unique(hashes, return_inverse=True)
        first = group.new_full((len(kinds),), len(group))
        first.scatter_reduce_(0, group, torch.arange(len(group), device="cpu"), "amin")
        return cls(group, first)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of each row's group (N,)."""
        sums = torch.bincount(self.group, values, len(self.first))
        return (sums / torch.bincount(self.group))[self.group]


def hash_rows(rows: Tensor) -> Tensor:
    """A whole number for each row: the same for equal rows, and hardly ever for others."""
    bits = (rows.float() + 0.0).contiguous().numpy().view(np.int32)  # −0 becomes 0
    factors = np.random.default_rng(0).integers(1, 2**62, bits.shape[1])
    parts = np.array_split(bits, -(-len(bits) // COLUMNS))
    return torch.from_numpy(np.concatenate([(part * factors).sum(1) for part in parts]))


def _find_centres(rows: Tensor, cells: int) -> Tensor:
    """Unit centres of k-means on a sample."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu")
    sample = rows[order[: cells * LEARNT_FROM]]
    centres = sample[:cells]
    for _ in range(ROUNDS):
        cell = _find_cells(sample, centres, 1).flatten()
        sums = torch.zeros_like(centres).index_add_(0, cell, sample)
        centres = torch.where(sums.any(1, keepdim=True), normalize(sums, dim=1), centres)
    return centres


def _find_cells(rows: Tensor, centres: Tensor, count: int) -> Tensor:
    parts = torch.split(rows, COLUMNS)
    return torch.cat([(part @ centres.mT).topk(count, sorted=False).indices for part in parts])


class Similar(NamedTuple):
    """Of M examples the three nearest that carry the given label and the suggested one: positions, −1 where none is."""

    examples: Array
    """Positions of the M examples."""
    given: Array
    suggested: Array


def find_similar(embeddings: Tensor, labels: Array, suggested: Array, index: Array) -> Similar:
    """The nearest by cosine similarity, none of them the example itself.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> find_similar(x, np.array([0, 0, 1, 0]), np.array([0, 0, 1, 1]), np.array([3])).given.tolist()
    [[1, 0, -1]]
    """
    rows, found = unit_rows(embeddings), []
    for wanted in (labels, suggested):
        nearest = np.full((len(index), EACH), -1)
        for label in np.unique(wanted[index]):
            asked = np.flatnonzero(wanted[index] == label)
            carriers = np.flatnonzero(labels == label)
            if not len(carriers):
                continue
            queries = torch.from_numpy(index[asked])
            similarity = rows[queries] @ rows[torch.from_numpy(carriers)].mT
            similarity[queries[:, None] == torch.from_numpy(carriers)] = -2.0  # itself
            best = similarity.topk(min(EACH, len(carriers)), dim=1)
            places = np.where(best.values.numpy() > -1.5, carriers[best.indices.numpy()], -1)
            nearest[asked, : places.shape[1]] = places
        found.append(nearest)
    return Similar(index, *found)
