"""The door to the C kernels: IVON's sample and update on the CPU, each in one pass over memory.

`ivon.py` has the same arithmetic in torch, and a test holds the two equal.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.randomness import in_parts

try:
    from bayesmooth import _kernels
except ImportError:  # installed without a compiler
    _kernels = None  # type: ignore[assignment]


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
    """One tensor's addresses, sizes and name of its noise, in the order of the C struct."""

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
    kernel: Literal["sample", "swap", "update"],
    jobs: list[Job],
    rule: Rule,
    seed: int = 0,
    draw: int = 0,
) -> None:
    """Run a kernel over the jobs."""
    call = getattr(_kernels, kernel)
    in_parts(
        lambda part, parts: call(jobs, seed, draw, part, parts, rule),
        sum(job.size for job in jobs),
    )


def fit(local: Tensor, *others: Tensor) -> bool:
    """Whether the kernels can compute with these tensors: float32 on the CPU, in the same memory layout."""
    return (
        randomness.KERNELS
        and local.dtype == torch.float32
        and local.device.type == "cpu"
        and all(alike(other, local) and other.stride() == local.stride() for other in others)
    )


def alike(one: Tensor, other: Tensor) -> bool:
    """The same shape, dtype and device."""
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
