"""Parameters over several ranks: each one's shard, the whole, and one seed for all."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bayesmooth.randomness import comes_in_slices, standard_normal


def shard(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, detached."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def start(tensor: Tensor) -> int | None:
    """Index of the shard's first element in the whole tensor; None where the shard is not one piece of it."""
    if not hasattr(tensor, "to_local"):
        return 0
    shape, offset = _shape_and_offset(tensor)
    split = [i for i, size in enumerate(shape) if size != tensor.shape[i]]
    if split and math.prod(shape[: split[-1]]) > 1:
        return None
    return sum(o * math.prod(tensor.shape[i + 1 :]) for i, o in enumerate(offset))


def cut(tensor: Tensor, values: Tensor) -> Tensor:
    """Of `values`, one for each element of the whole tensor, those that belong to this rank's shard."""
    if not hasattr(tensor, "to_local"):
        return values
    shape, offset = _shape_and_offset(tensor)
    pieces = tuple(slice(o, o + size) for o, size in zip(offset, shape, strict=True))
    return values.view(tensor.shape)[pieces]


def noise_of(
    tensor: Tensor, like: Tensor, *, seed: int, stream: int, step: int, draw: int = 0, sign: float = 1.0
) -> Tensor:
    """What this rank's shard gets of the whole tensor's noise; `like` has the shard's shape."""
    name = {"seed": seed, "stream": stream, "step": step, "draw": draw}
    offset = start(tensor)
    if offset is not None and (like.shape == tensor.shape or comes_in_slices(like)):
        return standard_normal(like, offset=offset, sign=sign, **name)
    return cut(tensor, standard_normal(like.new_empty(tensor.shape), sign=sign, **name))


def _shape_and_offset(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of this rank's shard of a DTensor, and where it begins in the whole, by dimension."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)


def agree_on_seed(groups: list[dict[str, Any]]) -> None:
    """Rank 0's seed on every rank, so that all draw the same noise."""
    if not _ranks():
        return
    device = next((p.device for group in groups for p in group["params"]), torch.device("cpu"))
    seed = torch.tensor([group["seed"] for group in groups], device=device, dtype=torch.int64)
    dist.broadcast(seed, src=0)
    for group, value in zip(groups, seed.tolist(), strict=True):
        group["seed"] = value


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Mean over ranks, in place."""
    if _ranks():
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


def on_any_rank(flags: list[bool], device: torch.device) -> list[bool]:
    """Each flag, true if it is true on any rank: all ranks must take the same decision."""
    if not _ranks():
        return flags
    counts = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(counts)
    return [count > 0 for count in counts.tolist()]


def global_norm(tensors: list[Tensor]) -> float:
    """‖·‖₂ of everything together.

    >>> global_norm([torch.tensor([3.0]), torch.tensor([[4.0]], dtype=torch.float64)])
    5.0
    """
    return float(torch.linalg.vector_norm(_norms(tensors))) if tensors else 0.0


def read_norms(tensors: list[Tensor]) -> list[float]:
    """‖·‖₂ of each, by one reading from their device."""
    found: list[float] = _norms(tensors).tolist() if tensors else []
    return found


@torch.no_grad()
def _norms(tensors: list[Tensor]) -> Tensor:
    """‖·‖₂ of each, in float32 at least; shards are summed over their ranks."""
    norms: dict[int, Any] = {}
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        wide = torch.promote_types(dtype, torch.float32)
        # Not by the norm's own dtype: for sharded tensors torch 2.15 takes it for the dimensions.
        own = {i: t.to(wide) for i, t in enumerate(tensors) if t.dtype == dtype}
        norms |= zip(own, torch._foreach_norm(list(own.values()), 2), strict=True)
    whole = [n.full_tensor() if hasattr(n, "full_tensor") else n for _, n in sorted(norms.items())]
    return torch.stack([n.to(whole[0].device) for n in whole])


def _ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
