"""What every optimizer here is given: parameter groups, their settings and gradients, checked before use."""

import sys
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.errors import InputError
from bayesmooth.optim.sharding import shard
from bayesmooth.posterior import find_overlap
from bayesmooth.randomness import check_seed

WHOLE = "must be a whole number ≥ 1"
SWITCH = (lambda x: isinstance(x, bool), "must be True or False", "leave it out")
Rule = tuple[Callable[[Any], bool], str, str]
# name: (holds, the rule, the way out)
RULES: dict[str, Rule] = {
    "lr": (lambda x: 0 <= x < inf, "must be ≥ 0", "0.1 to 0.2 is a good start"),
    "ess": (lambda x: 0 < x < 1e30, "must be > 0", "use the number of training examples"),
    "hess_init": (lambda x: 0 < x < inf, "must be > 0", "0.05 to 1 is usual"),
    "beta1": (lambda x: 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "beta2": (lambda x: 0 <= x <= 1, "must be in [0, 1]", "1 − 2/steps is a good start"),
    "weight_decay": (lambda x: 0 <= x < inf, "must be ≥ 0", "1e-4 to 1e-3 is usual"),
    "mc_samples": (lambda x: isinstance(x, int) and x >= 1, WHOLE, "1 is usual"),
    "hess_approx": (lambda x: x in ("price", "gradsq"), "must be 'price' or 'gradsq'", "'price'"),
    "clip_radius": (lambda x: x > 0, "must be > 0", "inf does not clip"),
    "sync": SWITCH,
    "debias": SWITCH,
    "rescale_lr": SWITCH,
    "noise": (lambda x: x is None or 0 < x < inf, "must be > 0", "0.3 to 3 is usual"),
    "antithetic": SWITCH,
    "fused": (
        lambda x: x in (None, True, False, "compile"),
        "must be None, True, False or 'compile'",
        "None chooses",
    ),
    "basis_every": (lambda x: isinstance(x, int) and x >= 1, WHOLE, "10 is usual"),
    "basis_beta": (lambda x: 0 <= x < 1, "must be in [0, 1)", "0.95 is usual"),
    "max_side": (lambda x: isinstance(x, int) and x >= 0, "must be a whole number ≥ 0", "4096"),
    "momentum": (lambda x: x is None or 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
}
SWITCHES = ("sync", "debias", "rescale_lr", "antithetic", "fused")


def add_group(
    optimizer: Optimizer, group: dict[str, Any], *checks: Callable[[dict[str, Any]], None]
) -> None:
    """`Optimizer.add_param_group`, undone where a check refuses the group."""
    _refuse_zero_redundancy(optimizer)
    _check_listed_once(group)
    Optimizer.add_param_group(optimizer, group)
    try:
        for check in (check_group, *checks):
            check(optimizer.param_groups[-1])
        check_memory(optimizer.param_groups)
    except InputError:
        optimizer.param_groups.pop()
        raise


def _refuse_zero_redundancy(optimizer: Optimizer) -> None:
    """It gives each rank's optimizer a part of the weights, and the others would not be perturbed."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.optim.zero_redundancy_optimizer":
            raise InputError(
                f"ZeroRedundancyOptimizer({type(optimizer).__name__}): each rank would perturb its own part of the "
                "weights only; shard the model with FSDP2 (fully_shard), or use DDP alone"
            )
        frame = frame.f_back


def check_group(group: dict[str, Any]) -> None:
    """Every value of a parameter group, and every tensor in it."""
    for name, (_, rule, way_out) in RULES.items():
        if name in group and not _passes(name, group[name]):
            raise InputError(f"{name}={group[name]!r}: {rule}; {way_out}")
    for name, param in name_all(group):
        check_tensor(name, param)


def name_all(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The parameters of a group with their names, or their positions."""
    names = group.get("param_names") or [f"#{i}" for i in range(len(group["params"]))]
    return list(zip(names, group["params"], strict=True))


def check_alike(groups: list[dict[str, Any]], *names: str) -> None:
    """The values that a step has only one of."""
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


def _check_listed_once(group: dict[str, Any]) -> None:
    """A parameter that is listed twice would be moved twice, and one of its two means would be lost."""
    if isinstance(group["params"], Tensor | set):  # one tensor; torch itself refuses a set
        return
    group["params"] = list(group["params"])
    met: set[int] = set()
    for position, entry in enumerate(group["params"]):
        name, param = entry if isinstance(entry, tuple) else (f"#{position}", entry)
        if id(param) in met:
            raise InputError(
                f"parameter {name}: listed twice; list each parameter once (a weight that two layers share is "
                "one parameter)"
            )
        met.add(id(param))


def check_memory(groups: list[dict[str, Any]]) -> None:
    """Parameters whose elements share memory cannot be moved independently of each other."""
    every = [pair for group in groups for pair in name_all(group)]
    if names := find_overlap((name, shard(param.detach())) for name, param in every):
        raise InputError(
            f"parameter {names}: elements share memory (an expanded tensor, or overlapping views); "
            "give the tensor that they are views of"
        )


def read_beta1(group: dict[str, Any]) -> float:
    """β₁: `beta1`, or what OneCycleLR and CyclicLR make of it under the name that they know, `momentum`."""
    return float(group["beta1"] if group.get("momentum") is None else group["momentum"])


def choose_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The noise's seed: the one given, one drawn from the generator, or torch's own (without advancing it)."""
    if seed is not None and generator is not None:
        raise InputError(f"seed={seed} and a generator: give only one of them")
    if generator is not None:
        return int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.initial_seed() % 2**63 if seed is None else check_seed(seed)


def _passes(name: str, value: Any) -> bool:
    if isinstance(value, bool) and name not in SWITCHES:  # True would pass for 1
        return False
    try:
        return bool(RULES[name][0](value))
    except TypeError:
        return False


def dense(grad: Tensor, param: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient itself, once it is known not to be sparse."""
    if grad.layout is not torch.strided:
        index = next(i for i, p in enumerate(group["params"]) if p is param)
        name = (group.get("param_names") or {index: f"#{index}"})[index]
        raise InputError(
            f"parameter {name}: its gradient is sparse, and only a dense one tells how far "
            "to move; build its layer with sparse=False, or give it to another optimizer"
        )
    return grad


def without_graph(loss: Any) -> Any:
    """What a closure returned, as a value alone: it would keep the whole graph alive."""
    return loss.detach() if isinstance(loss, Tensor) else loss


def check_moved(params: Iterable[Tensor], loss: object) -> None:
    """Refuse a closure that returned a loss and left no gradient."""
    params = list(params)
    if loss is not None and params and all(param.grad is None for param in params):
        raise InputError(
            "the closure left no gradient on any parameter; call loss.backward() in it"
        )
