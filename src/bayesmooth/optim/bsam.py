"""Bayesian SAM: a Gaussian over the weights, learned from the two gradients of a SAM step.

    g  ← ∇L(w + n/√(λ s)),  n ~ N(0, I)           gradient at a sample
    g′ ← ∇L(w + ρ g/s)                            gradient at the worst point nearby
    m  ← β₁ m + (1 − β₁)(g′ + δ w)
    w  ← w − α m/s                                with the old s
    s  ← β₂ s + (1 − β₂)(√s |g| + γ + δ)
    σ² = 1/(λ s)

References: Möllenhoff, Khan, *SAM as an Optimal Relaxation of Bayes*, ICLR 2023, and its public code.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from bayesmooth.optim import params as shared
from bayesmooth.optim.params import noise_of, shard, whole
from bayesmooth.optim.sam import buffers_kept, refuse_gradients, weights_kept, with_gradients
from bayesmooth.posterior import Posterior, name_parameters

Weight = tuple[dict[str, Any], Tensor, dict[str, Any]]  # a parameter's group, itself and its state


class BSAM(shared.CheckedOptimizer):
    """SAM whose radius follows the curvature, with a posterior of variance 1/(ess·s) around w.

    `step(closure)` calls the closure twice: at a sample from the posterior, whose loss it returns,
    and at the worst point nearby. Buffers, as BatchNorm's running statistics, are those of the first pass.

    >>> model = nn.Linear(4, 3)
    >>> optimizer = BSAM(model.parameters(), lr=0.5, ess=1000, seed=0)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = nn.functional.cross_entropy(model(torch.ones(8, 4)), torch.zeros(8).long())
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    >>> optimizer.posterior(model).predict(model, torch.ones(1, 4), samples=8).shape
    torch.Size([1, 3])

    Args:
        params: parameters, named parameters or groups of them.
        lr: α. The method's paper uses 0.5 on CIFAR, with warm-up and cosine.
        ess: λ, the effective sample size: the number of training examples, times a few with
            strong augmentation (its code: 4). Smaller means more noise.
        rho: ρ ≥ 0, the step to the worst point, in units of g/s.
        beta1, beta2: momenta of the gradient and of s. There is no bias correction.
        weight_decay: δ; the prior's precision is λδ.
        s_init: s at the start, where the noise has the standard deviation 1/√(λ s).
        damping: γ, which keeps s away from zero where gradients vanish.
        seed, generator: the source of the noise; by default torch's seed. The global generator is not touched.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        ess: float,
        rho: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 1e-4,
        s_init: float = 1.0,
        damping: float = 0.1,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "ess": ess,
            "rho": rho,
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "s_init": s_init,
            "damping": damping,
            "seed": shared.choose_seed(seed, generator),
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, settings)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, both passes through `closure`; returns the loss of the first."""
        weights = list(self._weights())
        active = [w for _, w, _ in weights if w.requires_grad]
        if closure is None:
            return refuse_gradients(self)
        shared.agree_on_seed(self.param_groups)
        with weights_kept(active):
            for stream, (group, w, state) in enumerate(weights):
                if w.requires_grad:  # w + n/√(λ s)
                    std = shard(sigma(group, state))
                    noise = noise_of(w, std, seed=group["seed"], stream=stream, step=state["step"])
                    shard(w).add_(noise.mul_(std))
            loss = shared.call_closure(closure, self.param_groups)
        pairs = [pair for group in self.param_groups for pair in zip(*with_gradients(group), strict=True)]
        first = {w: g.clone() if g._is_view() else g for w, g in pairs}  # DDP's may be views of its buckets
        self.zero_grad()
        with weights_kept(active), buffers_kept():
            for group, w, state in weights:
                if w in first:  # w + ρ g/s
                    w.addcdiv_(first[w], state["precision"], value=group["rho"])
            with torch.enable_grad():
                closure()
        for group, w, state in weights:
            if w in first and w.grad is not None:
                move_weight(group, w, state, first[w], w.grad)
        return loss

    def _weights(self) -> Iterator[Weight]:
        """Every parameter; those that take part have state, in float32 at least."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad and not self.state[param]:
                    wide = shared.widen(param.dtype)
                    self.state[param] = {
                        "step": 0,
                        "momentum": torch.zeros_like(param, dtype=wide, requires_grad=False),
                        "precision": torch.full_like(param, group["s_init"], dtype=wide, requires_grad=False),
                    }
                yield group, param, self.state.get(param, {})

    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the model's names (or those given to the constructor)."""
        names = name_parameters(self.param_groups, model)
        named = [(names[w], group, w, state) for group, w, state in self._weights() if w in names and w.requires_grad]
        means = {name: whole(w) for name, _, w, _ in named}
        return Posterior(means, {name: whole(sigma(group, state)) for name, group, _, state in named})


def move_weight(group: dict[str, Any], w: Tensor, state: dict[str, Any], g: Tensor, perturbed: Tensor) -> None:
    """m, w and s after a step, in place."""
    m, s, delta = state["momentum"], state["precision"], group["weight_decay"]
    beta1 = group["beta1"] if group["momentum"] is None else group["momentum"]
    m.lerp_((perturbed + delta * w).to(m.dtype), 1 - float(beta1))
    w.addcdiv_(m, s, value=-float(group["lr"]))
    sharpness = s.sqrt().mul_(g.abs()).add_(group["damping"] + delta)
    s.lerp_(sharpness, 1 - group["beta2"])
    state["step"] += 1


def sigma(group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    """σ = 1/√(λ s)."""
    std: Tensor = (group["ess"] * state["precision"]).rsqrt_()
    return std
