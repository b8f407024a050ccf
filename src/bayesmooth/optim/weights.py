"""IVON's arithmetic, one tensor at a time: in one fused pass where the CPU kernels apply, in torch elsewhere.

While a sample is in place, the parameter holds θ and its buffer the mean m. After the context they have changed
places: the caller sees the mean, and the update still finds the sample. So the state is three tensors of the
parameter's size (buffer, momentum, Hessian), and nothing of that size is made on the way.

Parameters below float32 have a fourth, their mean in float32: updates would be lost to rounding otherwise.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optim.parameters import dense
from bayesmooth.optim.sharding import shard, start
from bayesmooth.randomness import KERNELS, Job, Rule, run, standard_normal


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
    offset: int  # of the shard in the whole tensor
    fused: bool
    grad: Tensor | None = None
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
        """Take the pending sample into the sums."""
        if self.grad is None:
            return
        grad = self.gradient().to(self.momentum.dtype)
        products = self.products(grad, inside)
        if self.grad_sum is None or self.product_sum is None:
            self.grad_sum, self.product_sum = grad.clone(), products
        else:
            self.grad_sum += grad
            self.product_sum += products

    def gradient(self) -> Tensor:
        """The shard's gradient."""
        assert self.grad is not None
        return shard(dense(self.grad, self.param, self.group))

    def job(self, inside: bool, step: int, grad: int = 0, debias: float = 1.0) -> Job:
        """The addresses for the kernels."""
        here, there = self.local.data_ptr(), self.buffer.data_ptr()
        mean, sample = (there, here) if inside else (here, there)
        momentum, hess, size = self.momentum.data_ptr(), self.hess.data_ptr(), self.local.numel()
        return Job(
            here, mean, sample, grad, momentum, hess, size, self.offset, self.stream, step, debias
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
    low = param.dtype in (torch.float16, torch.bfloat16)
    if not state:
        wide = torch.float32 if low else param.dtype
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=wide, requires_grad=False)
        state["hess"] = torch.full_like(param, group["hess_init"], dtype=wide, requires_grad=False)
        if low:
            state["mean"] = param.detach().float()
    local, momentum, hess = shard(param.detach()), shard(state["momentum"]), shard(state["hess"])
    buffer = buffers.get(param)
    if buffer is None or buffer.shape != local.shape or buffer.device != local.device:
        buffer = buffers[param] = torch.empty_like(momentum)
    fused = group["fused"] is not False and _fusable(local, momentum, hess, buffer)
    if group["fused"] and not fused:
        raise InputError(
            "fused=True: the kernels need dense float32 weights on the CPU, and a compiler when bayesmooth was "
            f"installed; found {local.dtype} on {local.device}; use fused=None"
        )
    master = shard(state["mean"]) if low else None
    offset = start(param) if local is not param else 0
    return Weight(param, local, group, state, momentum, hess, master, buffer, stream, offset, fused)


def _fusable(local: Tensor, *others: Tensor) -> bool:
    return (
        KERNELS
        and local.dtype == torch.float32
        and local.device.type == "cpu"
        and all(other.stride() == local.stride() for other in others)
    )


def by_group(weights: list[Weight]) -> Iterable[tuple[dict[str, Any], list[Weight]]]:
    """Weights that share a group's numbers."""
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(id(weight.group), []).append(weight)
    return [(members[0].group, members) for members in groups.values()]


def perturb(weights: list[Weight], draw: int, train: bool) -> None:
    """θ = m + σe into the parameters, m into the buffers (with a master: θ before rounding)."""
    for group, members in by_group(weights):
        name, sign = draw, 1.0
        if group["antithetic"] and train:
            name, sign = draw // 2, 1.0 - 2.0 * (draw % 2)
        rule = Rule(ess=group["ess"], decay=group["weight_decay"], sign=sign)
        steps = [w.state["step"] if train else group["draws"] for w in members]
        jobs = [w.job(True, step) for w, step in zip(members, steps, strict=True) if w.fused]
        if jobs:
            run("sample", jobs, rule, group["seed"], name)
        for w, step in zip(members, steps, strict=True):
            if not w.fused:
                _perturb(w, group["seed"], name, step, sign)
    _changed(weights)


def _perturb(w: Weight, seed: int, draw: int, step: int, sign: float) -> None:
    noise = standard_normal(
        w.buffer, seed=seed, stream=w.stream, step=step, draw=draw, offset=w.offset, sign=sign
    )
    noise *= w.std()
    if w.master is None:
        w.buffer.copy_(w.local)
        w.local.add_(noise)
        return
    stale = w.local != w.master.to(w.local.dtype)  # somebody has set the parameter: believe it
    w.master.copy_(torch.where(stale, w.local.float(), w.master))
    torch.add(w.master, noise, out=w.buffer)
    w.local.copy_(w.buffer)


def restore(weights: list[Weight], keep: bool) -> None:
    """The mean back into the parameters, bit for bit; `keep` leaves the sample in the buffers."""
    jobs = [w.job(True, 0) for w in weights if w.fused and keep]
    if jobs:
        run("swap", jobs, Rule())
    for w in weights:
        if w.master is not None:
            w.local.copy_(w.master)
        elif not keep:
            w.local.copy_(w.buffer)
        elif not w.fused:
            sample = w.local.clone()
            w.local.copy_(w.buffer)
            w.buffer.copy_(sample)
    _changed(weights)


def update(weights: list[Weight], samples: int, inside: bool, scale: float) -> None:
    """Lines 2 to 7 of alg:ivon. Parameters without a gradient stay at their mean."""
    for group, members in by_group(weights):
        moved = [w for w in members if w.grad is not None or w.grad_sum is not None]
        for w in moved:
            w.state["step"] += 1
        rule = _rule(group, scale / samples)
        fused = [w for w in moved if w.fused and samples == 1]
        _update_fused(fused, rule, inside)
        _update(moved if not fused else [w for w in moved if not w.fused], rule, inside, samples)
        if inside and len(moved) < len(members):
            restore([w for w in members if w.grad is None and w.grad_sum is None], keep=False)
    _changed(weights)


def _rule(group: dict[str, Any], scale: float) -> Rule:
    rescaled = group["hess_init"] + group["weight_decay"] if group["rescale_lr"] else 1.0
    return Rule(
        ess=group["ess"],
        decay=group["weight_decay"],
        beta1=group["beta1"],
        keep1=1.0 - group["beta1"],
        keep2=1.0 - group["beta2"],
        lr=float(group["lr"]) * rescaled,
        radius=group["clip_radius"],
        scale=scale,
        squared=group["hess_approx"] == "gradsq",
    )


def _debias(w: Weight) -> float:
    return 1.0 - w.group["beta1"] ** w.state["step"] if w.group["debias"] else 1.0


def _update_fused(weights: list[Weight], rule: Rule, inside: bool) -> None:
    grads = [_as(w.local, w.gradient()) for w in weights]
    jobs = [
        w.job(inside, 0, grad.data_ptr(), _debias(w))
        for w, grad in zip(weights, grads, strict=True)
    ]
    if jobs:
        run("update", jobs, rule)


def _as(local: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout."""
    return grad if grad.stride() == local.stride() else torch.empty_like(local).copy_(grad)


def _update(weights: list[Weight], rule: Rule, inside: bool, samples: int) -> None:
    """The same in torch, a few calls for all tensors together: launches are what small kernels cost on a GPU."""
    if not weights:
        return
    for w in weights:
        if samples == 1:
            w.fold(inside)
    sums = [(w.grad_sum, w.product_sum) for w in weights]
    grad = torch._foreach_mul([g for g, _ in sums if g is not None], rule.scale)
    estimate = torch._foreach_mul([p for _, p in sums if p is not None], rule.scale * rule.ess)
    momentum, hess = [w.momentum for w in weights], [w.hess for w in weights]
    mean = [_mean(w, inside) for w in weights]

    precision = torch._foreach_add(hess, rule.decay)
    if rule.squared:
        torch._foreach_mul_(estimate, rule.scale * samples)  # the gradient's scale enters twice
    else:
        torch._foreach_mul_(estimate, precision)
    change = torch._foreach_sub(estimate, hess)
    torch._foreach_mul_(change, rule.keep2)
    square = torch._foreach_mul(change, change)
    torch._foreach_div_(square, precision)
    torch._foreach_add_(hess, change)
    torch._foreach_add_(hess, square, alpha=0.5)

    torch._foreach_lerp_(momentum, grad, rule.keep1)
    way = torch._foreach_div(momentum, [_debias(w) for w in weights])
    torch._foreach_add_(way, mean, alpha=rule.decay)
    torch._foreach_div_(way, torch._foreach_add(hess, rule.decay))
    torch._foreach_clamp_min_(way, -rule.radius)
    torch._foreach_clamp_max_(way, rule.radius)
    torch._foreach_add_(mean, way, alpha=-rule.lr)
    torch._foreach_copy_([w.local for w in weights], mean)


def _mean(w: Weight, inside: bool) -> Tensor:
    if w.master is not None:
        return w.master
    return w.buffer if inside else w.local


def norm(weights: list[Weight]) -> float:
    """Of the gradients that are pending, over all weights of this rank."""
    squares = [float(w.gradient().float().norm()) ** 2 for w in weights if w.grad is not None]
    return math.sqrt(sum(squares))


def _changed(weights: list[Weight]) -> None:
    """Kernels write behind autograd's back: a backward pass through an older forward must notice."""
    torch.autograd.graph.increment_version([w.param for w in weights])
