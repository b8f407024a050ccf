"""What the variational optimizers accept, and what they say where a value breaks the rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError

# name: (holds, the rule, the way out)
RULES: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "lr": (lambda x: 0 <= x < float("inf"), "must be ≥ 0", "0.1 to 0.2 is a good start"),
    "ess": (lambda x: 0 < x < 1e30, "must be > 0", "use the number of training examples"),
    "hess_init": (lambda x: 0 < x < float("inf"), "must be > 0", "0.05 to 1 is usual"),
    "beta1": (lambda x: 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "beta2": (
        lambda x: 0 <= x <= 1,
        "must be in [0, 1]",
        "1 − 2/steps is a good start, 1 keeps the covariance fixed",
    ),
    "weight_decay": (lambda x: 0 <= x < float("inf"), "must be ≥ 0", "1e-4 to 1e-3 is usual"),
    "mc_samples": (
        lambda x: isinstance(x, int) and x >= 1,
        "must be a whole number ≥ 1",
        "1 is usual",
    ),
    "hess_approx": (lambda x: x in ("price", "gradsq"), "must be 'price' or 'gradsq'", "'price'"),
    "clip_radius": (lambda x: x > 0, "must be > 0", "inf does not clip"),
    "sync": (lambda x: isinstance(x, bool), "must be True or False", "False with DDP"),
    "debias": (lambda x: isinstance(x, bool), "must be True or False", "True is usual"),
    "rescale_lr": (lambda x: isinstance(x, bool), "must be True or False", "True is usual"),
    "antithetic": (lambda x: isinstance(x, bool), "must be True or False", "False is usual"),
    "fused": (lambda x: x in (None, True, False), "must be None, True or False", "None chooses"),
}


def check_group(group: dict[str, Any]) -> None:
    """Every value of a parameter group, and every tensor in it."""
    for name, (holds, rule, way_out) in RULES.items():
        if name in group and not _passes(holds, group[name]):
            raise InputError(f"{name}={group[name]!r}: {rule}; {way_out}")
    names = group.get("param_names") or [f"#{i}" for i in range(len(group["params"]))]
    for name, param in zip(names, group["params"], strict=True):
        check_tensor(name, param)


def check_alike(groups: list[dict[str, Any]], *names: str) -> None:
    """What a whole step has but once."""
    for name in names:
        if groups[-1][name] != groups[0][name]:
            raise InputError(
                f"{name}={groups[-1][name]!r} in a group, {groups[0][name]!r} in the first: must be the same in all; "
                "give it to the optimizer"
            )


def check_tensor(name: str, param: Tensor) -> None:
    """Only dense real tensors have the Gaussian that these optimizers learn."""
    if param.is_complex():
        raise InputError(
            f"parameter {name}: complex ({param.dtype}); only real weights are supported; "
            "use torch.view_as_real, or give it to another optimizer"
        )
    if param.layout != torch.strided:
        raise InputError(
            f"parameter {name}: layout {param.layout}; only dense tensors are supported; "
            "call .to_dense(), or give it to another optimizer"
        )
    if param.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InputError(
            f"parameter {name}: {param.dtype}; weights must be floating point of 16 bits or more; "
            "leave it out"
        )


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    """The noise's seed: the one given, one drawn from the generator, or torch's own (which is not advanced)."""
    if seed is not None and generator is not None:
        raise InputError(f"seed={seed} and a generator: only one of them can rule; leave one out")
    if generator is not None:
        return int(torch.randint(2**62, (), generator=generator, device=generator.device))
    if seed is None:
        return torch.initial_seed() % 2**63
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(
            f"seed={seed!r}: must be a whole number from 0 to 2⁶³ − 1; 0 is as good as any"
        )
    return seed


def _passes(holds: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(holds(value))
    except TypeError:
        return False
