"""Parameters over several ranks: each one's shard, the whole, and one seed for all."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def shard(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, detached."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def start(tensor: Tensor) -> int:
    """Index of the shard's first element in the whole tensor."""
    if not hasattr(tensor, "to_local"):
        return 0
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return sum(o * math.prod(tensor.shape[i + 1 :]) for i, o in enumerate(offset))


def agree_on_seed(groups: list[dict[str, Any]]) -> None:
    """Rank 0's seed on every rank, so that all draw the same noise."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    device = next((p.device for group in groups for p in group["params"]), torch.device("cpu"))
    seed = torch.tensor([group["seed"] for group in groups], device=device)
    dist.broadcast(seed, src=0)
    for group, value in zip(groups, seed.tolist(), strict=True):
        group["seed"] = value


def average_over_ranks(tensors: list[Tensor]) -> None:
    """Mean over ranks, in place."""
    if dist.is_available() and dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
