"""Standard normals as a pure function of where they are used, and the threads that run the CPU kernels.

A draw is named by (seed, stream, step, draw): the stream is the parameter's position, the step its update count. The
same name gives the same noise on every rank and after every restart, so there is no generator state to keep, and the
global generator is never touched. (The kernels, and torch on the CPU or a GPU, each have noise of their own.)
"""

import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Literal, NamedTuple

import torch
from torch import Tensor

try:
    from bayesmooth import _kernels
except ImportError:  # installed without a compiler: torch does the work, more slowly
    _kernels = None  # type: ignore[assignment]

KERNELS = _kernels is not None
EVALUATION = 2**32 - 1  # the draw number of a context for evaluation: training never reaches it
PREDICTION = 2**32 - 2  # that of a posterior's own draws, which have nothing to do with either
PARALLEL_FROM = 1 << 17  # elements a thread must have before handing work over pays

_pool: ThreadPoolExecutor | None = None


class Rule(NamedTuple):
    """The numbers that all weights of a group share, in the order of the C struct."""

    ess: float = 1.0
    decay: float = 0.0
    beta1: float = 0.0
    keep1: float = 0.0  # 1 − β₁
    keep2: float = 0.0  # 1 − β₂
    lr: float = 0.0
    radius: float = 0.0
    scale: float = 1.0  # of the gradient
    sign: float = 1.0  # of the noise
    squared: bool = False  # the Hessian from squared gradients


class Job(NamedTuple):
    """One tensor's addresses, sizes and place in the noise, in the order of the C struct."""

    param: int
    mean: int = 0
    sample: int = 0
    grad: int = 0
    momentum: int = 0
    hess: int = 0
    size: int = 0
    offset: int = 0  # of the first element in the whole tensor
    stream: int = 0
    step: int = 0
    debias: float = 1.0


def run(
    kernel: Literal["fill", "sample", "swap", "update"],
    jobs: list[Job],
    rule: Rule,
    seed: int = 0,
    draw: int = 0,
) -> None:
    """Run a kernel over the jobs, on as many threads as torch uses and the size is worth."""
    call = getattr(_kernels, kernel)
    parts = min(torch.get_num_threads(), sum(job.size for job in jobs) // PARALLEL_FROM) or 1
    others = [
        _threads().submit(call, jobs, seed, draw, part, parts, rule) for part in range(1, parts)
    ]
    try:
        call(jobs, seed, draw, 0, parts, rule)
    finally:  # they write to memory that the caller may free
        wait(others)
    for other in others:
        other.result()


def standard_normal(
    like: Tensor,
    *,
    seed: int,
    stream: int,
    step: int = 0,
    draw: int = 0,
    offset: int = 0,
    sign: float = 1.0,
) -> Tensor:
    """Noise of the shape, dtype, device and memory layout of `like`, times `sign`.

    `offset` is the index of the first element in a larger tensor of which `like` is a slice.

    >>> standard_normal(torch.zeros(3), seed=0, stream=0).equal(
    ...     standard_normal(torch.zeros(5), seed=0, stream=0)[:3])
    True
    """
    if like.device.type == "cpu" and KERNELS:
        noise = torch.empty_like(like, dtype=torch.float32, requires_grad=False)
        job = Job(noise.data_ptr(), size=noise.numel(), offset=offset, stream=stream, step=step)
        run("fill", [job], Rule(sign=sign), seed, draw)
        return noise.to(like.dtype)
    generator = torch.Generator(like.device).manual_seed(_mix(seed, stream, step, draw))
    whole = torch.empty(offset + like.numel(), device=like.device).normal_(generator=generator)
    noise = torch.empty_like(like, requires_grad=False)
    return noise.copy_(whole[offset:].view(like.shape)).mul_(sign)


def _mix(*words: int) -> int:
    """One 63-bit seed from several numbers (the finaliser of SplitMix64 after each)."""
    mixed = 0
    for word in words:
        mixed = (mixed + word + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bayesmooth")
    return _pool


def _forget_threads() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
