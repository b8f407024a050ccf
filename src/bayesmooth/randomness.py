"""Standard normals as a pure function of the place of their use.

A draw is named by (seed, stream, step, draw): the stream is the parameter's position, the step its update count. The
same name gives the same noise on every rank and after every restart, so there is no generator state to keep, and the
global generator is never touched. (The C kernels and torch each have noise of their own.)
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import torch
from torch import Tensor

from bayesmooth.errors import InputError

try:
    from bayesmooth import _kernels as _kernels
except ImportError:  # installed without a compiler: torch does the work, more slowly
    _kernels = None  # type: ignore[assignment]

KERNELS = _kernels is not None
EVALUATION = 2**32 - 1  # the draw number of a context for evaluation: training never reaches it
PREDICTION = 2**32 - 2  # that of a posterior's own draws, which have nothing to do with either
PARALLEL_FROM = 1 << 17  # elements a thread must have before handing work over pays


def check_seed(seed: int) -> int:
    """The seed, if every generator here takes it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed={seed!r}: must be a whole number from 0 to 2⁶³ − 1; 0 is as good as any")
    return seed


def standard_normal(
    like: Tensor, *, seed: int, stream: int, step: int = 0, draw: int = 0, offset: int = 0, sign: float = 1.0
) -> Tensor:
    """Noise of the shape, dtype, device and memory layout of `like`, times `sign`.

    `offset` is the index of the first element in a larger tensor of which `like` is a slice; see `comes_in_slices`.

    >>> standard_normal(torch.zeros(3), seed=0, stream=0).equal(
    ...     standard_normal(torch.zeros(5), seed=0, stream=0)[:3])
    True
    """
    if comes_in_slices(like):
        noise = torch.empty_like(like, dtype=torch.float32, requires_grad=False)
        target = noise.data_ptr(), noise.numel(), offset, stream, step  # in the order of the C struct
        in_parts(lambda part, parts: _kernels.fill([target], seed, draw, part, parts, sign), noise.numel())
        return noise.to(like.dtype)
    row = torch_normal(offset + like.numel(), like.device, seed, stream, step, draw)
    noise = torch.empty_like(like, requires_grad=False)
    return noise.copy_(row[offset:].view(like.shape)).mul_(sign)


def comes_in_slices(like: Tensor) -> bool:
    """Whether the noise of a slice is that slice of the whole's noise: the kernels' is, torch's depends on the size."""
    return like.device.type == "cpu" and KERNELS


def torch_normal(size: int, device: torch.device, *name: int) -> Tensor:
    """A float32 vector of torch's own noise, from a generator that the name seeds."""
    generator = torch.Generator(device).manual_seed(_mix(*name))
    return torch.empty(size, dtype=torch.float32, device=device).normal_(generator=generator)


def in_parts(call: Callable[[int, int], object], size: int) -> None:
    """`call(part, parts)` for every part, on as many threads as torch uses and the size is worth."""
    parts = min(torch.get_num_threads(), size // PARALLEL_FROM) or 1
    others = [_threads(os.getpid()).submit(call, part, parts) for part in range(1, parts)]
    try:
        call(0, parts)
    finally:  # the others write to memory that the caller may free
        wait(others)
    for other in others:
        other.result()


def _mix(*words: int) -> int:
    """One 63-bit seed from several numbers (the finaliser of SplitMix64 after each)."""
    mixed = 0
    for word in words:
        mixed = (mixed + word + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of a process, by its number: a forked child has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bayesmooth")
