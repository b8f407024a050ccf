"""The nearest neighbours of every example by cosine similarity.

All pairs are compared while that is quick. Beyond, k-means sorts the rows into cells, and only the cells nearest to a
row are searched. Both are made of matrix products, so no index library is needed.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bayesmooth.errors import InputError
from bayesmooth.progress import bar

EXACT_PAIRS = 10**10  # up to which all similarities are computed: 100,000 rows against themselves
ROWS, COLUMNS = 1024, 1 << 14  # similarities at a time
PROBED = 8  # cells that are searched for a row: they hold 87 to 98 % of its true neighbours in embeddings
SMALLEST = 128  # rows in a cell, on average
LEARNT_FROM = 16  # rows for each cell from which k-means learns
ROUNDS = 4  # of k-means


def nearest(
    x: Tensor,
    k: int,
    against: Tensor | None = None,
    *,
    exact: bool | None = None,
    quiet: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positions (N, k) and cosine similarities (N, k) of the k nearest rows of `against`, nearest first.

    Without `against` the rows of `x` are each other's neighbours, and none is its own. `exact` compares all pairs, or
    with False the likely ones; None chooses by their number. A row of zeros has similarity 0 with all.

    >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]])
    >>> nearest(x, 1)[0].flatten().tolist()
    [1, 0, 1]
    """
    alone = against is None
    queries = unit_rows("x", x)
    keys = queries if against is None else unit_rows("against", against)
    if not 1 <= k <= len(keys) - alone:
        raise InputError(f"k={k}: must be from 1 to {len(keys) - alone}, the other rows there are")
    if exact is None:
        exact = choose_exact(len(queries), len(keys))
    index, similarity = Keys(keys, exact).search(queries, k + alone, quiet=quiet)
    return without_self(index, similarity) if alone else (index, similarity)


def choose_exact(queries: int, keys: int) -> bool:
    """Whether all pairs are compared."""
    return queries * keys <= EXACT_PAIRS


class Keys:
    """Unit rows that can be searched again and again, all of them or cell by cell.

    Thousands of copies would fill a cell: give each row once (`Distinct`).
    """

    def __init__(self, rows: Tensor, exact: bool) -> None:
        self.rows, self.order = rows, torch.arange(len(rows), device=rows.device)
        self.centres = rows[:0]
        cells = min(4 * int(len(rows) ** 0.5), len(rows) // SMALLEST)
        if exact or cells <= PROBED:
            return
        self.centres = _find_centres(rows, cells)
        cell = _find_cells(rows, self.centres, 1).flatten()
        sorted_by_cell = cell.argsort(stable=True)
        self.order, self.rows = sorted_by_cell, rows[sorted_by_cell]
        counts = torch.bincount(cell, minlength=cells)
        self.bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).tolist()

    def search(self, queries: Tensor, k: int, *, quiet: bool = False) -> tuple[Tensor, Tensor]:
        """Positions and similarities (N, k) of the nearest rows, nearest first."""
        if queries.shape[1] != self.rows.shape[1]:
            raise InputError(
                f"rows of {queries.shape[1]} numbers against {self.rows.shape[1]}: must be alike"
            )
        best = queries.new_full((len(queries), k), -2.0)  # below any similarity
        where = torch.zeros(len(queries), k, dtype=torch.int64, device=queries.device)
        with bar(len(queries), description="neighbours", quiet=quiet) as shown:
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
        return self.order[where], torch.where(missing, best[:, :1], best).clamp_(-1, 1)

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


def unit_rows(name: str, x: Tensor) -> Tensor:
    """Rows of float32 of length one; rows of zeros stay zeros."""
    if x.ndim != 2 or not len(x):
        raise InputError(f"{name} of shape {tuple(x.shape)}: must be N × D, N ≥ 1")
    rows = x.detach().float()
    size = rows.abs().amax(1, keepdim=True)  # first, so that squares do not overflow
    if not bool(size.isfinite().all()):
        row = int((~size.isfinite()).nonzero()[0, 0])
        raise InputError(f"{name}[{row}] has NaN or infinite entries; must be finite")
    return normalize(rows / size.clamp_min(torch.finfo(torch.float32).tiny), dim=1).contiguous()


def without_self(
    index: Tensor, similarity: Tensor, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each row without its own position, or without the last one where equal rows crowded its own out."""
    own = torch.arange(len(index), device="cpu") if own is None else own
    mine = index == own[:, None]
    mine[:, -1] |= ~mine.any(1)
    mine &= mine.cumsum(1) == 1
    shape = len(index), index.shape[1] - 1
    return index[~mine].reshape(shape), similarity[~mine].reshape(shape)


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
