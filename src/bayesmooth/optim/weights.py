"""A weight with all that IVON keeps about it.

While a sample is in place, the parameter holds θ and its buffer the mean m. After the context they have changed
places: the caller sees the mean, and the update still finds the sample. So the state is three tensors of the
parameter's size (buffer, momentum, Hessian); several samples need two sums besides.

Parameters below float32 have a fourth tensor, their mean in float32: updates would be lost to rounding otherwise.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optim.parameters import dense
from bayesmooth.optim.sharding import shard, start
from bayesmooth.randomness import KERNELS, Job


@dataclass(slots=True)
class Weight:
    """One parameter with all that an update of it needs; tensors are this rank's shards."""

    param: Tensor  # the user's
    local: Tensor
    group: dict[str, Any]
    state: dict[str, Any]
    momentum: Tensor
    hess: Tensor
    master: Tensor | None  # the mean in float32, for parameters below it
    buffer: Tensor
    stream: int  # position among all parameters: names the noise
    offset: int | None  # of the shard in the whole tensor; None where it is not one piece of it
    fused: bool
    placed: bool = False  # the parameter holds a sample, the buffer its mean
    grad: Tensor | None = None
    version: int = 0  # of that gradient when its context ended
    grad_sum: Tensor | None = None
    product_sum: Tensor | None = None

    def std(self) -> Tensor:
        """σ = 1/√(λ(h + δ)) of the shard."""
        ess, decay = float(self.group["ess"]), float(self.group["weight_decay"])
        return (ess * (self.hess + decay)).rsqrt()

    def displacement(self, inside: bool) -> Tensor:
        """θ − m."""
        if self.master is not None:
            return self.buffer - self.master
        return self.local - self.buffer if inside else self.buffer - self.local

    def products(self, grad: Tensor, inside: bool) -> Tensor:
        """What the Hessian estimate averages over samples: ĝ·(θ − m), or ĝ²."""
        return grad * (grad if self.group["hess_approx"] == "gradsq" else self.displacement(inside))

    def fold(self, inside: bool) -> None:
        """Take the pending gradient into the sums."""
        if self.grad is None:
            return
        grad = self.gradient().to(self.momentum.dtype)
        products = self.products(grad, inside)
        if self.grad_sum is None or self.product_sum is None:
            self.grad_sum, self.product_sum = grad.clone(), products
        else:
            self.grad_sum += grad
            self.product_sum += products
        self.grad = None

    def gradient(self) -> Tensor:
        """The shard's gradient."""
        assert self.grad is not None
        return shard(dense(self.grad, self.param, self.group))

    def job(self, inside: bool, step: int, grad: int = 0, debias: float = 1.0) -> Job:
        """The addresses for the kernels."""
        here, there = self.local.data_ptr(), self.buffer.data_ptr()
        mean, sample = (there, here) if inside else (here, there)
        momentum, hess, size = self.momentum.data_ptr(), self.hess.data_ptr(), self.local.numel()
        offset = self.offset or 0
        return Job(
            here, mean, sample, grad, momentum, hess, size, offset, self.stream, step, debias
        )


def collect(
    groups: list[dict[str, Any]], state: Any, buffers: dict[Tensor, Tensor]
) -> list[Weight]:
    """Every parameter that takes gradients. Frozen ones are never touched."""
    every = [(group, param) for group in groups for param in group["params"]]
    return [
        _weight(param, group, state[param], buffers, stream)
        for stream, (group, param) in enumerate(every)
        if param.requires_grad
    ]


def _weight(
    param: Tensor,
    group: dict[str, Any],
    state: dict[str, Any],
    buffers: dict[Tensor, Tensor],
    stream: int,
) -> Weight:
    if not state or state["momentum"].dtype != param.dtype or "mean" in state:
        _prepare(param, group, state)
    local, momentum, hess = shard(param.detach()), shard(state["momentum"]), shard(state["hess"])
    buffer = buffers.get(param)
    if buffer is None or not _alike(buffer, momentum):
        buffer = buffers[param] = torch.empty_like(momentum)
    master, offset = shard(state["mean"]) if "mean" in state else None, start(param)
    fused = group["fused"] is not False and offset is not None
    fused = fused and _fusable(local, momentum, hess, buffer)
    if group["fused"] and not fused:
        raise InputError(
            "fused=True: the kernels need dense float32 weights on the CPU, and a compiler when bayesmooth was "
            f"installed; found {local.dtype} on {local.device}; use fused=None"
        )
    return Weight(param, local, group, state, momentum, hess, master, buffer, stream, offset, fused)


@torch.inference_mode(
    False
)  # an evaluation draw may be the first to come here, and training follows
def _prepare(param: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    """State where there is none, in float32 at least; and where the parameter has changed since, state that fits it."""
    wide = torch.promote_types(param.dtype, torch.float32)
    if not state:
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=wide, requires_grad=False)
        state["hess"] = torch.full_like(param, group["hess_init"], dtype=wide, requires_grad=False)
    if state["momentum"].dtype != wide:
        state["momentum"], state["hess"] = state["momentum"].to(wide), state["hess"].to(wide)
    if param.dtype == wide:
        state.pop("mean", None)
        return
    mean = state.setdefault("mean", param.detach().to(wide))
    stale = param.detach() != mean.to(param.dtype)  # somebody has set the parameter: believe it
    mean.copy_(torch.where(stale, param.detach().to(wide), mean))


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _fusable(local: Tensor, *others: Tensor) -> bool:
    return (
        KERNELS
        and local.dtype == torch.float32
        and local.device.type == "cpu"
        and all(_alike(o, local) and o.stride() == local.stride() for o in others)
    )
