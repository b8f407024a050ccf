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
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.optim.groups import add_group, call_closure, choose_seed, load_wide
from bayesmooth.optim.sam import buffers_kept, list_active, weights_kept, with_gradients
from bayesmooth.optim.sharding import agree_on_seed, noise_of, shard, whole
from bayesmooth.posterior import Posterior, name_parameters


class BSAM(Optimizer):
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
        seed, generator: where the noise comes from; by default torch's seed. The global generator
            is not touched.
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
            "seed": choose_seed(seed, generator),
            "momentum": None,  # β₁ where a scheduler sets it
        }
        super().__init__(params, settings)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, both passes through `closure`; returns the loss of the first."""
        if closure is None:
            return self._without_closure()
        agree_on_seed(self.param_groups)
        active = list_active(self)
        with weights_kept(active):
            self._sample()
            loss = call_closure(closure, active)
        first = self._take_gradients()
        with weights_kept(active), buffers_kept():
            self._climb(first)
            with torch.enable_grad():
                closure()
        self._update(first)
        return loss

    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The Gaussian over weights, by the model's names (or those given to the constructor)."""
        names = name_parameters(self.param_groups, model)
        means, stds = {}, {}
        for group, param, state, _ in self._weights():
            if param in names:
                means[names[param]] = whole(param)
                stds[names[param]] = whole(std(group, state))
        return Posterior(means, stds)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own."""
        add_group(self, param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bit for bit."""
        load_wide(self, state_dict)

    def _weights(self) -> Iterator[tuple[dict[str, Any], Tensor, dict[str, Any], int]]:
        """Every parameter that takes part: its group, itself, its state and its noise's stream."""
        every = [(group, param) for group in self.param_groups for param in group["params"]]
        for stream, (group, param) in enumerate(every):
            if param.requires_grad:
                yield group, param, _with_start(self.state[param], param, group), stream

    def _sample(self) -> None:
        """w + n/√(λ s)."""
        for group, param, state, stream in self._weights():
            local, sigma = shard(param), shard(std(group, state))
            noise = noise_of(param, sigma, seed=group["seed"], stream=stream, step=state["step"])
            local.add_(noise.mul_(sigma))

    def _take_gradients(self) -> dict[Tensor, Tensor]:
        """The gradients, cleared for the next pass; DDP's may be views of buffers it uses again."""
        pairs = [pair for group in self.param_groups for pair in with_gradients(group)]
        taken = {p: grad.clone() if grad._is_view() else grad for p, grad in pairs}
        self.zero_grad()
        return taken

    def _climb(self, first: dict[Tensor, Tensor]) -> None:
        """w + ρ g/s."""
        for group, param, state, _ in self._weights():
            if param in first:
                param.addcdiv_(first[param], state["precision"], value=group["rho"])

    def _update(self, first: dict[Tensor, Tensor]) -> None:
        for group, param, state, _ in self._weights():
            if param in first and param.grad is not None:
                move_weight(group, param, state, first[param], param.grad)

    def _without_closure(self) -> None:
        """A call that sets up state, as checkpointing makes one, has no gradient to lose."""
        for _, param, _, _ in self._weights():
            if param.grad is not None and bool(param.grad.any()):
                raise InputError(
                    "step() without a closure: BSAM takes its gradients at two points; "
                    "give step(closure), and unscale inside the closure if a GradScaler is used"
                )


def move_weight(group: dict[str, Any], w: Tensor, state: dict[str, Any], g: Tensor, perturbed: Tensor) -> None:
    """m, w and s after a step, in place."""
    m, s, delta = state["momentum"], state["precision"], group["weight_decay"]
    beta1 = group["beta1"] if group["momentum"] is None else group["momentum"]
    m.lerp_((perturbed + delta * w).to(m.dtype), 1 - float(beta1))
    w.addcdiv_(m, s, value=-float(group["lr"]))
    sharpness = s.sqrt().mul_(g.abs()).add_(group["damping"] + delta)
    s.lerp_(sharpness, 1 - group["beta2"])
    state["step"] += 1


def std(group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    """σ = 1/√(λ s)."""
    sigma: Tensor = (group["ess"] * state["precision"]).rsqrt_()
    return sigma


def _with_start(state: dict[str, Any], param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
    """The state, in float32 at least: s moves by less than bfloat16 can tell."""
    if not state:
        wide = torch.promote_types(param.dtype, torch.float32)
        state["step"] = 0
        state["momentum"] = torch.zeros_like(param, dtype=wide, requires_grad=False)
        state["precision"] = torch.full_like(param, group["s_init"], dtype=wide, requires_grad=False)
    return state
