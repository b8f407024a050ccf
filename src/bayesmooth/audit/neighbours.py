"""The nearest neighbours of every example by cosine similarity, and those with one label and with another.

All pairs are compared while that is quick. Beyond, k-means sorts the rows into cells, and only the cells nearest to a
row are searched. Both are made of matrix products, so no index library is needed.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from bayesmooth.progress import track

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

    Thousands of copies would fill a cell: give each row once (`group_copies`).
    """

    def __init__(self, rows: Tensor, queries: int = 0) -> None:
        """`queries`: the approximate number of rows that will be searched for."""
        self.rows, self.order = rows, torch.arange(len(rows), device=rows.device)
        self.centres, self.bounds = rows[:0], [*range(0, len(rows), COLUMNS), len(rows)]
        cells = min(4 * int(len(rows) ** 0.5), len(rows) // SMALLEST)
        if max(queries, len(rows)) > EXACT_ROWS and cells > PROBED:
            self.centres = find_centres(rows, cells)
            cell = find_cells(rows, self.centres, 1).flatten()
            self.order = cell.argsort(stable=True)
            self.rows = rows[self.order]
            self.bounds = [0, *torch.bincount(cell, minlength=cells).cumsum(0).tolist()]

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
        if len(self.centres):
            probed = find_cells(queries, self.centres, PROBED).flatten()
            sizes = torch.bincount(probed, minlength=len(self.centres)).tolist()
            asked = torch.split(probed.argsort(stable=True) // PROBED, sizes)
        else:
            asked = (torch.arange(len(queries), device="cpu"),) * (len(self.bounds) - 1)
        cells = zip(asked, pairwise(self.bounds), strict=True)
        parts = [(rows, start, end) for queried, (start, end) in cells for rows in torch.split(queried, ROWS)]
        for rows, start, end in track(parts, description="neighbours"):
            values = queries[rows] @ self.rows[start:end].mT
            places = torch.arange(start, end, device="cpu").expand_as(values)
            if values.shape[1] > 2 * k:
                values, kept = values.topk(k, sorted=False)
                places = start + kept
            best[rows], kept = torch.cat([best[rows], values], 1).topk(k, sorted=False)
            where[rows] = torch.cat([where[rows], places], 1).gather(1, kept)
        order = best.argsort(dim=1, descending=True, stable=True)
        best, where = best.gather(1, order), where.gather(1, order)
        missing = best < -1.5  # fewer rows than k in the cells: the nearest stands in
        index = self.order[torch.where(missing, where[:, :1], where)]
        similarity = torch.where(missing, best[:, :1], best).clamp_(-1, 1)
        if own is None:
            return index, similarity
        mine = index == own[:, None]
        mine[:, -1] |= ~mine.any(1)  # equal rows crowded it out
        mine &= mine.cumsum(1) == 1
        return index[~mine].view(-1, k - 1), similarity[~mine].view(-1, k - 1)


def find_centres(rows: Tensor, cells: int) -> Tensor:
    """Unit centres of k-means on a sample."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu")
    sample = rows[order[: cells * LEARNT_FROM]]
    centres = sample[:cells]
    for _ in range(ROUNDS):
        cell = find_cells(sample, centres, 1).flatten()
        sums = torch.zeros_like(centres).index_add_(0, cell, sample)
        centres = torch.where(sums.any(1, keepdim=True), normalize(sums, dim=1), centres)
    return centres


def find_cells(rows: Tensor, centres: Tensor, count: int) -> Tensor:
    """The nearest centres (N, count) of every row."""
    parts = torch.split(rows, COLUMNS)
    return torch.cat([(part @ centres.mT).topk(count, sorted=False).indices for part in parts])


def unit_rows(x: Tensor) -> Tensor:
    """Rows of float32 of length one; rows of zeros stay zeros."""
    rows = x.float()
    size = rows.abs().amax(1, keepdim=True)  # first, so that squares do not overflow
    return normalize(rows / size.clamp_min(torch.finfo(torch.float32).tiny), dim=1).contiguous()


def hash_rows(rows: Tensor) -> Tensor:
    """A whole number for each row: the same for equal rows, and hardly ever for others."""
    bits = (rows.float() + 0.0).contiguous().numpy().view(np.int32)  # −0 becomes 0
    factors = np.random.default_rng(0).integers(1, 2**62, bits.shape[1])
    parts = np.array_split(bits, -(-len(bits) // COLUMNS))
    return torch.from_numpy(np.concatenate([(part * factors).sum(1) for part in parts]))


def group_copies(hashes: Tensor) -> tuple[Tensor, Tensor]:
    """The group (N,) of every row, equal rows together, and the position of the first row of every group (U,).

    Groups are in the order of their hashes, so that no order of the rows matters.

    >>> group_copies(torch.tensor([7, 3, 7]))
    (tensor([1, 0, 1]), tensor([1, 0]))
    """
    kinds, group = torch.unique(hashes, return_inverse=True)
    first = group.new_full((len(kinds),), len(group))
    return group, first.scatter_reduce_(0, group, torch.arange(len(group), device="cpu"), "amin")


def differ_from_copies(group: Tensor, labels: Tensor) -> Tensor:
    """Whether an equal row has another label (N,).

    >>> differ_from_copies(torch.tensor([0, 0, 1]), torch.tensor([4, 5, 5]))
    tensor([ True,  True, False])
    """
    mean = torch.bincount(group, labels.double()) / torch.bincount(group)
    return mean[group] != labels


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
    rows, neighbours = unit_rows(embeddings), []
    for wanted in (labels, suggested):
        nearest = np.full((len(index), EACH), -1)
        for label in np.unique(wanted[index]):
            asked, carriers = np.flatnonzero(wanted[index] == label), np.flatnonzero(labels == label)
            if len(carriers):
                similarity = rows[index[asked]] @ rows[carriers].mT
                similarity[torch.from_numpy(index[asked][:, None] == carriers)] = -2.0  # itself
                best = similarity.topk(min(EACH, len(carriers)), dim=1)
                places = np.where(best.values > -1.5, carriers[best.indices], -1)
                nearest[asked, : places.shape[1]] = places
        neighbours.append(nearest)
    return Similar(index, *neighbours)
