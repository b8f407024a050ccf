"""The nearest neighbours of every example by cosine similarity: exact while that is quick, by an index beyond."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.progress import bar

EXACT_PAIRS = 10**10  # similarities to compute: 100,000 rows against themselves
ROWS, COLUMNS = 1024, 1 << 14  # similarities at a time
CELLS_PROBED = 32  # of the index's cells, for each query: 98 % of the true neighbours and more
ROWS_PER_CELL = 64  # that the index learns its cells from


def nearest(
    x: Tensor,
    k: int,
    against: Tensor | None = None,
    *,
    exact: bool | None = None,
    quiet: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positions (N, k) and cosine similarities (N, k) of the k nearest rows of `against`, nearest first.

    Without `against` the rows of `x` are each other's neighbours, and none is its own. `exact` compares all
    pairs; without it an index looks among the likely ones (needs faiss-cpu, extra `neighbours`); None chooses by
    the number of pairs. A row of zeros is as near to all as to none: similarity 0.

    >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]])
    >>> nearest(x, 1)[0].flatten().tolist()
    [1, 0, 1]
    """
    alone = against is None
    queries = _unit_rows("x", x)
    keys = queries if against is None else _unit_rows("against", against)
    if keys.shape[1] != queries.shape[1]:
        raise InputError(f"rows of {queries.shape[1]} and {keys.shape[1]} numbers: must be alike")
    if not 1 <= k <= len(keys) - alone:
        raise InputError(f"k={k}: must be from 1 to {len(keys) - alone}, the other rows there are")
    if exact is None:
        exact = len(queries) * len(keys) <= EXACT_PAIRS
    found = _by_products if exact else _by_index
    index, similarity = found(queries, keys, k + alone, quiet)
    return _without_self(index, similarity) if alone else (index, similarity)


def _by_products(queries: Tensor, keys: Tensor, k: int, quiet: bool) -> tuple[Tensor, Tensor]:
    """All pairs, a block of products at a time; of each block only its best are kept."""
    index = torch.empty(len(queries), k, dtype=torch.int64)
    similarity = queries.new_empty(len(queries), k)
    with bar(len(queries), description="neighbours", quiet=quiet) as shown:
        for start in range(0, len(queries), ROWS):
            rows = queries[start : start + ROWS]
            best, where = rows.new_empty(len(rows), 0), index.new_empty(len(rows), 0)
            for first in range(0, len(keys), COLUMNS):
                block = rows @ keys[first : first + COLUMNS].mT
                top = block.topk(min(k, block.shape[1]), sorted=False)
                best = torch.cat([best, top.values], 1)
                where = torch.cat([where, top.indices + first], 1)
                if best.shape[1] > k:
                    kept = best.topk(k, sorted=False).indices
                    best, where = best.gather(1, kept), where.gather(1, kept)
            order = best.argsort(1, descending=True)
            stop = start + len(rows)
            index[start:stop], similarity[start:stop] = (
                where.gather(1, order),
                best.gather(1, order),
            )
            shown.update(stop)
    return index, similarity.clamp_(-1, 1)


def _by_index(queries: Tensor, keys: Tensor, k: int, quiet: bool) -> tuple[Tensor, Tensor]:
    """Keys sorted into cells by k-means; a query looks into the cells nearest to it."""
    faiss = require("faiss", extra="neighbours")
    cells = max(1, min(4 * int(len(keys) ** 0.5), len(keys) // ROWS_PER_CELL))
    store = faiss.IndexFlatIP(keys.shape[1])
    lookup = faiss.IndexIVFFlat(store, keys.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    lookup.nprobe, lookup.cp.max_points_per_centroid = CELLS_PROBED, ROWS_PER_CELL
    lookup.train(keys.numpy())
    lookup.add(keys.numpy())
    parts = []
    with bar(len(queries), description="neighbours", quiet=quiet) as shown:
        for start in range(0, len(queries), COLUMNS):
            similarity, index = lookup.search(queries[start : start + COLUMNS].numpy(), k)
            parts.append((torch.from_numpy(index), torch.from_numpy(similarity)))
            shown.update(min(start + COLUMNS, len(queries)))
    index, similarity = (torch.cat(column) for column in zip(*parts, strict=True))
    missing = index < 0  # fewer than k keys in the cells: the best of them again
    index = torch.where(missing, index[:, :1], index)
    return index, torch.where(missing, similarity[:, :1], similarity).clamp_(-1, 1)


def _without_self(index: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor]:
    """Each row less its own position; where equal rows crowded it out, less the last."""
    own = index == torch.arange(len(index))[:, None]
    own[:, -1] |= ~own.any(1)
    shape = len(index), index.shape[1] - 1
    return index[~own].reshape(shape), similarity[~own].reshape(shape)


def _unit_rows(name: str, x: Tensor) -> Tensor:
    if x.ndim != 2 or not len(x):
        raise InputError(f"{name} of shape {tuple(x.shape)}: must be N × D, N ≥ 1")
    rows = x.detach().float()
    size = rows.abs().amax(1, keepdim=True)  # first, so that squares do not overflow
    if not bool(size.isfinite().all()):
        row = int((~size.isfinite()).nonzero()[0, 0])
        raise InputError(f"{name}[{row}] has NaN or infinite entries; must be finite")
    return normalize(rows / size.clamp_min(torch.finfo(torch.float32).tiny), dim=1).contiguous()
