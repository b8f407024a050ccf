"""Whether tensors share memory: no two may, where each element is to be moved on its own."""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor


def find_overlap(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The names of the first tensors that share elements (one tensor, if it is expanded), joined by "and".

    >>> find_overlap([("weight", torch.zeros(3).expand(2, 3)), ("bias", torch.zeros(2))])
    'weight'
    """
    found: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in named:
        if tensor.numel() and (address := tensor.untyped_storage().data_ptr()):
            found.setdefault(address, []).append((name, tensor))
    for entries in found.values():
        tensors = [tensor for _, tensor in entries]
        if _spans_meet(tensors) and _elements_meet(tensors):
            return " and ".join(dict.fromkeys(name for name, _ in entries))
    return None


def extent(tensor: Tensor) -> int:
    """Elements from its first to its last in memory; those of a dense tensor fill it."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def _spans_meet(tensors: list[Tensor]) -> bool:
    """Whether elements of one storage may be shared: a quick look at where each tensor begins and ends."""
    spans = []
    for tensor in tensors:
        if (length := extent(tensor)) < tensor.numel():
            return True
        start = tensor.storage_offset() * tensor.element_size()
        spans.append((start, start + length * tensor.element_size()))
    spans.sort()
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def _elements_meet(tensors: list[Tensor]) -> bool:
    """Whether they do: interleaved columns of one matrix, say, do not."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        return True
    size = tensors[0].untyped_storage().nbytes() // tensors[0].element_size()
    places = torch.arange(size, dtype=torch.int64, device="cpu")
    used = [
        places.as_strided(t.size(), t.stride(), t.storage_offset()).reshape(-1) for t in tensors
    ]
    return bool(torch.bincount(torch.cat(used)).max() > 1)
