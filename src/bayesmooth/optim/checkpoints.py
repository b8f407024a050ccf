"""Loading state: what fits is taken at full width, anything else is refused, and `ivon-opt`'s is converted."""

import inspect
import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.errors import InputError


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
        pieces = zip(
            torch.split(group["momentum"], sizes), torch.split(group["hess"], sizes), strict=True
        )
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
