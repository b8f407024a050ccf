"""What every optimizer here is given, checked before use: groups, their settings, gradients, and saved states."""

import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.errors import InputError
from bayesmooth.optim.sharding import shard
from bayesmooth.posterior import find_overlap
from bayesmooth.randomness import check_seed

Rule = tuple[Callable[[Any], bool], str, str]
SWITCH: Rule = (lambda x: isinstance(x, bool), "must be True or False", "leave it out")
# name: (holds, the rule, the way out)
RULES: dict[str, Rule] = {
    "lr": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "0.1 to 0.2 is a good start"),
    "ess": (lambda x: 0 < x < 1e30, "must be > 0", "use the number of training examples"),
    "hess_init": (lambda x: 0 < x < math.inf, "must be > 0", "0.05 to 1 is usual"),
    "beta1": (lambda x: 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "beta2": (lambda x: 0 <= x <= 1, "must be in [0, 1]", "1 − 2/steps is a good start"),
    "weight_decay": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "1e-4 to 1e-3 is usual"),
    "mc_samples": (lambda x: isinstance(x, int) and x >= 1, "must be a whole number ≥ 1", "1 is usual"),
    "hess_approx": (lambda x: x in ("price", "gradsq"), "must be 'price' or 'gradsq'", "'price'"),
    "clip_radius": (lambda x: x > 0, "must be > 0", "inf does not clip"),
    "sync": SWITCH,
    "debias": SWITCH,
    "rescale_lr": SWITCH,
    "noise": (lambda x: x is None or 0 < x < math.inf, "must be > 0", "0.3 to 3 is usual"),
    "antithetic": SWITCH,
    "fused": (lambda x: x in (None, True, False, "compile"), "must be None, True, False or 'compile'", "None chooses"),
    "momentum": (lambda x: x is None or 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "rho": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "use SGD for plain descent"),
    "s_init": (lambda x: 0 < x < math.inf, "must be > 0", "1 is usual"),
    "damping": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "0.1 is usual"),
}
SWITCHES = ("sync", "debias", "rescale_lr", "antithetic", "fused")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def add_group(optimizer: Optimizer, group: dict[str, Any], *alike: str) -> None:
    """`Optimizer.add_param_group`, undone where a check refuses the group; `alike` must be the same in all groups."""
    _refuse_zero_redundancy(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a parameter that is listed twice: it is refused
        Optimizer.add_param_group(optimizer, group)
    try:
        check_group(optimizer.param_groups[-1])
        check_alike(optimizer.param_groups, *alike)
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
    """Every value of a parameter group, and every tensor in it: only dense real ones have the Gaussian learned here."""
    for name, (_, rule, way_out) in RULES.items():
        if name in group and not _passes(name, group[name]):
            raise InputError(f"{name}={group[name]!r}: {rule}; {way_out}")
    for param in group["params"]:
        if param.dtype not in FLOATS or param.layout != torch.strided:
            raise InputError(
                f"parameter {find_param_name(param, group)}: {param.dtype}, {param.layout}; must be real, floating "
                "point of 16 bits or more, and dense; leave it out, or give it to another optimizer"
            )


def _passes(name: str, value: Any) -> bool:
    if isinstance(value, bool) and name not in SWITCHES:  # True would pass for 1
        return False
    try:
        return bool(RULES[name][0](value))
    except TypeError:
        return False


def check_alike(groups: list[dict[str, Any]], *names: str) -> None:
    """The values that a step has only one of."""
    for name in names:
        if groups[-1][name] != groups[0][name]:
            raise InputError(
                f"{name}={groups[-1][name]!r} in a group, {groups[0][name]!r} in the first: must be the same in all; "
                "give it to the optimizer"
            )


def check_memory(groups: list[dict[str, Any]]) -> None:
    """Parameters whose elements share memory cannot be moved independently of each other."""
    every = [(find_param_name(p, group), p) for group in groups for p in group["params"]]
    if names := find_overlap((name, shard(param.detach())) for name, param in every):
        raise InputError(
            f"parameter {names}: elements share memory (listed twice, an expanded tensor, or overlapping views); "
            "give the tensor that they are views of, once"
        )


def find_param_name(param: Tensor, group: dict[str, Any], position: int | None = None) -> str:
    """The parameter's name, or its position: that in the group, if no other is given."""
    index = next(i for i, own in enumerate(group["params"]) if own is param)
    place = index if position is None else position
    return str((group.get("param_names") or {index: f"#{place}"})[index])


def choose_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The noise's seed: the one given, one drawn from the generator, or torch's own (without advancing it)."""
    if seed is not None and generator is not None:
        raise InputError(f"seed={seed} and a generator: give only one of them")
    if generator is not None:
        return int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.initial_seed() % 2**63 if seed is None else check_seed(seed)


def dense(grad: Tensor, param: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient itself, once it is known not to be sparse."""
    if grad.layout is not torch.strided:
        raise InputError(
            f"parameter {find_param_name(param, group)}: its gradient is sparse, and only a dense one tells how far "
            "to move; build its layer with sparse=False, or give it to another optimizer"
        )
    return grad


def call_closure(closure: Callable[[], Any], params: list[Tensor]) -> Any:
    """What the closure returned, as a value alone: it would keep the whole graph alive."""
    with torch.enable_grad():
        loss = closure()
    if loss is not None and params and all(param.grad is None for param in params):
        raise InputError("the closure left no gradient on any parameter; call loss.backward() in it")
    return loss.detach() if isinstance(loss, Tensor) else loss


def check_closure(optimizer: Optimizer, samples: int) -> None:
    """A context has one sample, and a GradScaler looks for overflows before a closure has made the gradients."""
    if samples > 1:
        raise InputError(
            f"step(closure) inside a sampling context with mc_samples={samples}: it can take one sample there; "
            "call it outside"
        )
    if getattr(optimizer, "found_inf", None) is None:
        return
    for name in ("found_inf", "grad_scale"):  # left in place, they would go into its next step
        vars(optimizer).pop(name, None)
    raise InputError(
        "step(closure) with a GradScaler: it checks the gradients before the closure computes them; compute "
        "them inside `with optimizer.sampled_params(train=True):`, then call scaler.step(optimizer)"
    )


def refuse_gradients_at_the_mean(groups: list[dict[str, Any]]) -> None:
    """A step without samples is for set-up calls only: those have no gradients, or lr = 0."""
    every = [(group, param) for group in groups for param in group["params"]]
    if any(param.grad is not None and float(group["lr"]) != 0.0 for group, param in every):
        raise InputError(
            "step() found gradients but no sample: they were taken at the mean; use step(closure), or "
            "compute them inside `with optimizer.sampled_params(train=True):`"
        )


# ---- saved states: what fits is taken at full width, anything else is refused ----


def check_settings(loaded: dict[str, Any], optimizer: Optimizer) -> None:
    """Refuse the state of another kind of optimizer: one without the settings that this one's constructor takes.

    `defaults` alone would not do: torch adds keys of its own to it when an optimizer is loaded or copied.
    """
    own = inspect.signature(type(optimizer).__init__).parameters
    for group in loaded["param_groups"]:
        for name in sorted(own.keys() & optimizer.defaults.keys()):
            if name not in group:
                raise InputError(
                    f"the state has no {name!r}: it is not that of {type(optimizer).__name__}; start without it"
                )


def load_wide(optimizer: Optimizer, loaded: dict[str, Any]) -> None:
    """`Optimizer.load_state_dict` with its checks, and state in float32 at least.

    torch casts loaded state to each parameter's dtype, and looks at neither shapes nor names.
    """
    check_settings(loaded, optimizer)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    saved = [index for group in loaded["param_groups"] for index in group["params"]]
    states = [loaded["state"].get(index, {}) for index in saved]
    for number, (param, state) in enumerate(zip(params, states, strict=False)):
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape != param.shape:
                raise InputError(
                    f"parameter #{number}: {key} of shape {tuple(value.shape)} for weights of shape "
                    f"{tuple(param.shape)}; the state is another model's; leave a new layer's out of it"
                )
    Optimizer.load_state_dict(optimizer, loaded)
    for param, state in zip(params, states, strict=True):
        if torch.promote_types(param.dtype, torch.float32) != param.dtype:
            wide = {key: value for key, value in state.items() if isinstance(value, Tensor)}
            for key, value in wide.items():
                optimizer.state[param][key] = value.to(param.device, torch.float32, copy=True)


def convert_ivon_opt(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The state itself, or what a state of the public `ivon-opt` package says, in our form."""
    saved = state_dict["param_groups"]
    if not all(isinstance(group.get("hess"), Tensor) for group in saved):
        return state_dict
    state: dict[int, dict[str, Any]] = {}
    made = []
    for group, own in zip(saved, groups, strict=False):
        sizes = [param.numel() for param in own["params"]]
        if sum(sizes) != group["hess"].numel() or len(sizes) != len(group["params"]):
            raise InputError(
                f"the state has {group['hess'].numel()} weights in a group of {sum(sizes)}: it is another model's; "
                "start without it"
            )
        t = math.ceil(math.log(1e-8) / math.log(group["beta1"])) if group["beta1"] > 0 else 1
        pieces = zip(torch.split(group["momentum"], sizes), torch.split(group["hess"], sizes), strict=True)
        for index, param, (g, h) in zip(group["params"], own["params"], pieces, strict=True):
            state[index] = {"step": t, "momentum": g.view(param.shape), "hess": h.view(param.shape)}
        known = {key: group[key] for key in own.keys() & group.keys() - {"momentum"}}
        made.append({**own, **known})
    kept = ", ".join(f"{name}={groups[0][name]!r}" for name in ("seed", "debias", "rescale_lr"))
    warnings.warn(
        "the state is that of the public IVON package, which saves no step count: the momentum's bias correction is "
        f"taken to be over, and noise starts anew; its settings are loaded, and this optimizer's {kept} and "
        f"hess_approx={groups[0]['hess_approx']!r} are kept",
        stacklevel=3,
    )
    return {"state": state, "param_groups": made}
