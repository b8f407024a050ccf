"""IVON's arithmetic: in one fused pass where the CPU kernels apply, in torch elsewhere.

The kernels make nothing of a parameter's size on the way; torch does, for `CHUNK` elements at a time.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bayesmooth.optim.sharding import noise_of
from bayesmooth.optim.weights import Weight
from bayesmooth.randomness import Rule, run

CHUNK = 1 << 22  # elements, unless a single tensor has more


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
            _mark([w for w in members if w.fused], placed=True)
            run("sample", jobs, rule, group["seed"], name)
        for w, step in zip(members, steps, strict=True):
            if not w.fused:
                _perturb(w, group["seed"], name, step, sign)
    _changed(weights)


def _mark(weights: list[Weight], *, placed: bool) -> None:
    """Before a kernel, not after it: Ctrl-C meanwhile is raised when the kernel is through."""
    for w in weights:
        w.placed = placed


def _perturb(w: Weight, seed: int, draw: int, step: int, sign: float) -> None:
    noise = noise_of(w.param, w.buffer, seed=seed, stream=w.stream, step=step, draw=draw, sign=sign)
    noise *= w.std()
    if w.master is None:
        w.buffer.copy_(w.local)
        w.placed = True
        w.local.add_(noise)
        return
    torch.add(w.master, noise, out=w.buffer)
    w.placed = True
    w.local.copy_(w.buffer)


def restore(weights: list[Weight], keep: bool) -> None:
    """The mean back into the parameters, bit for bit; `keep` leaves the sample in the buffers."""
    placed = [w for w in weights if w.placed]
    swapped = [w for w in placed if w.fused and keep]
    _mark(swapped, placed=False)
    if swapped:
        run("swap", [w.job(True, 0) for w in swapped], Rule())
    for w in placed:
        if w.master is not None:
            w.local.copy_(w.master)
        elif not keep:
            w.local.copy_(w.buffer)
        elif not w.fused:
            sample = w.local.clone()
            w.local.copy_(w.buffer)
            w.buffer.copy_(sample)
        w.placed = False
    _changed(placed)


def update(weights: list[Weight], samples: int, inside: bool, scale: float) -> None:
    """Lines 2 to 7 of alg:ivon. Parameters without a gradient stay at their mean."""
    for group, members in by_group(weights):
        rule = _rule(group, scale / samples)
        _update_fused([w for w in members if w.fused and w.grad_sum is None], rule, inside)
        for chunk in _chunks([w for w in members if not w.fused or w.grad_sum is not None]):
            _update(chunk, rule, inside, samples)
    _changed(weights)


def _chunks(weights: list[Weight]) -> Iterable[list[Weight]]:
    """Those that have a gradient, in lists of bounded size: the update makes several tensors as large."""
    chunk: list[Weight] = []
    for w in weights:
        if w.grad is None and w.grad_sum is None:
            continue
        chunk.append(w)
        if sum(other.local.numel() for other in chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


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
    moved = [w for w in weights if w.grad is not None]
    if not moved:
        return
    grads = [_as(w.local, w.gradient()) for w in moved]
    for w in moved:
        w.state["step"] += 1
    jobs = [
        w.job(inside, 0, grad.data_ptr(), _debias(w)) for w, grad in zip(moved, grads, strict=True)
    ]
    _mark(moved, placed=False)
    run("update", jobs, rule)


def _as(local: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the parameter's dtype and memory layout."""
    fits = grad.dtype == local.dtype and grad.stride() == local.stride()
    return grad if fits else torch.empty_like(local).copy_(grad)


def _update(weights: list[Weight], rule: Rule, inside: bool, samples: int) -> None:
    """The same in torch, a few calls for all tensors together: launches are what small kernels cost on a GPU."""
    for w in weights:
        w.fold(inside)
        w.state["step"] += 1
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
    _mark(weights, placed=False)


def _mean(w: Weight, inside: bool) -> Tensor:
    if w.master is not None:
        return w.master
    return w.buffer if inside else w.local


def _changed(weights: list[Weight]) -> None:
    """Kernels write behind autograd's back: a backward pass through an older forward must notice."""
    torch.autograd.graph.increment_version([w.param for w in weights])
