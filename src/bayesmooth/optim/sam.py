"""Sharpness-aware minimisation: the gradient from the worst point nearby, the step from here."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.optim.params import CheckedOptimizer, call_closure, check_state, dense, measure_norms, shard

EPS = 1e-12  # keeps ρ g/‖g‖ at zero where g is
COMPILED_HOOK = r"Using `torch.compile\(module\)` when there are global hooks"  # warns of a hook that is wanted here


class SAM(CheckedOptimizer):
    r"""Any optimizer, fed with the gradient at the worst point within ρ.

    $$ g = ∇L(w), \qquad ŵ = w + ρ\,g / (‖g‖₂ + 10^{-12}), \qquad w ← \text{base}(w, ∇L(ŵ)) $$

    with one norm over all parameters, and both gradients on the same batch. `step(closure)` calls
    the closure twice, and returns the first loss, the one at w. Buffers (BatchNorm's running statistics, sums
    that a loss has collected) are those of the first pass. ρ=0 is the base optimizer, with one call per step.
    Weight decay is the base optimizer's.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SAM([w], torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (w**2).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item()
    2.0

    Args:
        params: parameters, named parameters or groups of them; a group may have its own `rho`.
        base_optimizer: the class of the optimizer that takes the step.
        rho: the radius ρ ≥ 0. The method's paper uses 0.05 (CIFAR-10) and 0.1 (CIFAR-100).
        base_kwargs: arguments of the base optimizer: `lr`, `momentum`, `weight_decay`, …

    References:
        Foret, Kleiner, Mobahi, Neyshabur, *Sharpness-Aware Minimization*, ICLR 2021.
    """

    def __init__(
        self, params: ParamsT, base_optimizer: type[Optimizer] = SGD, rho: float = 0.05, **base_kwargs: Any
    ) -> None:
        if not (isinstance(base_optimizer, type) and issubclass(base_optimizer, Optimizer)):
            raise InputError(
                f"base_optimizer={base_optimizer!r}: must be the class of an optimizer; "
                "write SAM(params, torch.optim.SGD, rho=0.05, lr=0.1)"
            )
        super().__init__(params, {"rho": rho})
        self.base = base_optimizer(self.param_groups, **base_kwargs)
        self.defaults = self.base.defaults | self.defaults
        # One list of groups and one state for both: schedulers and state_dict see everything.
        self.state, self.param_groups = self.base.state, self.base.param_groups

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, both passes through `closure`; returns the loss of the first."""
        perturbs = any(group["rho"] > 0 for group in self.param_groups)
        loss = None if closure is None else call_closure(closure, self.param_groups)
        if perturbs and closure is None:
            refuse_gradients(self)
        elif perturbs and closure is not None:
            moved = [(group["rho"], *with_gradients(group)) for group in self.param_groups]
            active = [(rho, params, grads) for rho, params, grads in moved if params]
            norm = measure_norms([grad for _, _, grads in active for grad in grads]).norm()
            with weights_kept([param for _, params, _ in active for param in params]), buffers_kept():
                for rho, params, grads in active:  # ŵ = w + ρ g/(‖g‖₂ + ε)
                    if norm.device.type == "cpu":
                        torch._foreach_add_(params, grads, alpha=rho / (float(norm) + EPS))
                    else:  # reading the norm would make an accelerator wait; 16 bits may not hold the factor
                        factor = rho / (norm + EPS)
                        torch._foreach_add_(params, [g.to(factor.dtype) * factor.to(g.device) for g in grads])
                self.zero_grad()
                with torch.enable_grad():
                    closure()
        self.base.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; a state of SAM, or of its base optimizer alone."""
        check_state(state_dict, self.base)
        Optimizer.load_state_dict(self, state_dict)  # at the width that the base optimizer gives its state

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"base": self.base}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint of the base optimizer alone has no ρ
            group.setdefault("rho", self.defaults["rho"])
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})


def with_gradients(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of a group that take part and have a gradient, and these gradients."""
    params = [p for p in group["params"] if p.requires_grad and p.grad is not None]
    return params, [dense(param.grad, param, group) for param in params]


def refuse_gradients(optimizer: Optimizer) -> None:
    """A step without a closure is for set-up calls only, as checkpointing makes one: they have no gradient to lose."""
    if any(bool(grad.any()) for group in optimizer.param_groups for grad in with_gradients(group)[1]):
        raise InputError(
            f"step() without a closure: {type(optimizer).__name__} takes its gradients at two points; "
            "give step(closure)"
        )


@contextmanager
def weights_kept(params: list[Tensor]) -> Iterator[None]:
    """The values may change inside; afterwards the old ones are back, bit for bit, in the same memory."""
    before = [shard(param.detach()).clone() for param in params]
    try:
        torch.clear_autocast_cache()
        yield
    finally:
        if before:
            with torch.no_grad():
                torch._foreach_copy_([shard(param) for param in params], before)
        torch.clear_autocast_cache()  # it holds copies of the perturbed weights


@contextmanager
def buffers_kept() -> Iterator[None]:
    """Forward passes inside leave the buffers of every module in training mode as they were.

    BatchNorm's running mean, variance and count; the labels that an online loss collects. Needs no reference to model
    or loss: the first module that is called is asked for its parts. So it sees `torch.compile(model)`
    too, whose inner layers are traced away.
    """
    met: set[nn.Module] = set()
    before: list[tuple[nn.Module, str, Tensor, Tensor]] = []

    def remember(module: nn.Module, inputs: object) -> None:
        new = set() if module in met else set(module.modules()) - met
        met.update(new)
        for part in [part for part in new if part.training]:
            before.extend((part, name, buffer, buffer.clone()) for name, buffer in part.named_buffers(recurse=False))

    rule = ("ignore", re.compile(COMPILED_HOOK, re.IGNORECASE), UserWarning, None, 0)
    if rule not in warnings.filters:  # adding it anew would make other warnings repeat themselves
        warnings.filterwarnings("ignore", COMPILED_HOOK, UserWarning)
    hook = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for part, name, buffer, value in before:
                part._buffers[name] = buffer.copy_(value)
