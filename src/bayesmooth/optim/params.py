"""Parameters as every optimizer here needs them: groups checked before use, states at full width, shards and ranks."""

import inspect
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from traceback import walk_stack
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from bayesmooth.errors import InputError
from bayesmooth.posterior import find_overlap
from bayesmooth.randomness import check_seed, comes_in_slices, standard_normal

Rule = tuple[Callable[[Any], bool], str, str]
SWITCH: Rule = (lambda x: isinstance(x, bool), "must be True or False", "leave it out")
# name: (holds, the rule, the way out)
RULES: dict[str, Rule] = {
    "lr": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "0.1 is usual, with noise 0.03"),
    "ess": (lambda x: 0 < x < 1e30, "must be > 0", "use the number of training examples"),
    "hess_init": (lambda x: 0 < x < math.inf, "must be > 0", "0.05 to 1 is usual"),
    "beta1": (lambda x: 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "beta2": (lambda x: 0 <= x <= 1, "must be in [0, 1]", "1 − 2/steps is a good start"),
    "weight_decay": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "1e-4 to 1e-3 is usual"),
    "mc_samples": (lambda x: isinstance(x, int) and x >= 1, "must be a whole number ≥ 1", "1 is usual"),
    "hess_approx": (lambda x: x in ("price", "gradsq"), "must be 'price' or 'gradsq'", "'price'"),
    "clip_radius": (lambda x: x > 0, "must be > 0", "inf does not clip"),
    "sync": (lambda x: x is False, "must be False", "wrap the model in DistributedDataParallel"),
    "debias": SWITCH,
    "rescale_lr": SWITCH,
    "noise": (lambda x: x is None or 0 < x < math.inf, "must be > 0", "0.3 to 2 is usual"),
    "fused": (lambda x: x in (None, True, False), "must be None, True or False", "None chooses"),
    "momentum": (lambda x: x is None or 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
    "rho": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "use SGD for plain descent"),
    "s_init": (lambda x: 0 < x < math.inf, "must be > 0", "1 is usual"),
    "damping": (lambda x: 0 <= x < math.inf, "must be ≥ 0", "0.1 is usual"),
}
SWITCHES = ("sync", "debias", "rescale_lr", "fused")
ZERO_REDUNDANCY = "torch.distributed.optim.zero_redundancy_optimizer"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class CheckedOptimizer(Optimizer):
    """It refuses settings and weights that it cannot train with, and keeps states in float32 at least."""

    alike: ClassVar[tuple[str, ...]] = ()  # settings that must be the same in all groups
    replaced: ClassVar[tuple[str, ...]] = ()  # settings that `noise` replaces: a group with it has none of its own
    _begun = True  # False while torch's constructor adds the groups one by one: all are checked at its end

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if any(frame.f_globals.get("__name__") == ZERO_REDUNDANCY for frame, _ in walk_stack(None)):
            raise InputError(  # it gives each rank's optimizer a part of the weights
                f"ZeroRedundancyOptimizer({type(self).__name__}): each rank would perturb its own part of the "
                "weights only; shard the model with FSDP2 (fully_shard), or use DDP alone"
            )
        self._begun = False
        super().__init__(params, defaults)
        self._begun = True
        _check_groups(self, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own, if their values and tensors pass the checks."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a parameter that is listed twice: it is refused
            super().add_param_group(param_group)
        try:
            if self._begun:
                _check_groups(self, self.param_groups[-1:])
        except InputError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, which casts loaded state to each parameter's dtype, and looks at neither shapes nor names."""
        check_state(state_dict, self)
        params = [param for group in self.param_groups for param in group["params"]]
        saved = [state_dict["state"].get(i, {}) for group in state_dict["param_groups"] for i in group["params"]]
        states = [{key: value for key, value in state.items() if isinstance(value, Tensor)} for state in saved]
        for number, (param, tensors) in enumerate(zip(params, states, strict=False)):
            for key, value in tensors.items():
                if value.shape != param.shape:
                    raise InputError(
                        f"parameter #{number}: {key} of shape {tuple(value.shape)} for weights of shape "
                        f"{tuple(param.shape)}; the state is another model's; leave a new layer's out of it"
                    )
        super().load_state_dict(state_dict)
        for param, tensors in zip(params, states, strict=True):
            for key, value in tensors.items():
                self.state[param][key] = value.to(param.device, widen(param.dtype), copy=True)


def _check_groups(optimizer: CheckedOptimizer, new: list[dict[str, Any]]) -> None:
    """Every setting of new groups, and every tensor in them: only dense real ones have the Gaussian learned here."""
    for group in new:
        for name, (holds, rule, way_out) in RULES.items():
            value: Any = group.get(name)
            if hasattr(value, "item") and not isinstance(value, Tensor):
                group[name] = value = value.item()  # a number of numpy, with which no checkpoint could be read
            passes = name not in group
            if not passes and (not isinstance(value, bool) or name in SWITCHES):  # True would pass for 1
                with suppress(TypeError):
                    passes = holds(value)
            if not passes:
                raise InputError(f"{name}={value!r}: {rule}; {way_out}")
        for name in optimizer.alike:
            if group[name] != (first := optimizer.param_groups[0][name]):
                raise InputError(f"{name}={group[name]!r} in a group, {first!r} in the first: give the same in all")
        if group.get("noise") is not None and any(group[key] != optimizer.defaults[key] for key in optimizer.replaced):
            own = ", ".join(f"{key}={group[key]}" for key in optimizer.replaced)
            raise InputError(f"a group has noise={group['noise']} with {own}: noise replaces these; leave them out")
        for param in group["params"]:
            if param.dtype not in FLOATS or param.layout != torch.strided:
                raise InputError(
                    f"parameter {find_param_name(param, group)}: {param.dtype}, {param.layout}; must be real, floating "
                    "point of 16 bits or more, and dense; leave it out, or give it to another optimizer"
                )
    every = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    # Elements that share memory cannot be moved independently of each other.
    if names := [find_param_name(*every[i]) for i in find_overlap([shard(p.detach()) for p, _ in every])]:
        raise InputError(
            f"parameter {' and '.join(dict.fromkeys(names))}: elements share memory (listed twice, an expanded "
            "tensor, or views that meet); give the tensor that they are views of, once"
        )


def find_param_name(param: Tensor, group: dict[str, Any], position: int | None = None) -> str:
    """The parameter's name, or its position: that in the group, if no other is given."""
    index = next(i for i, own in enumerate(group["params"]) if own is param)
    if group.get("param_names"):
        return str(group["param_names"][index])
    return f"#{index if position is None else position}"


def choose_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The noise's seed: the one given, one drawn from the generator, or torch's own (without advancing it)."""
    if seed is not None and generator is not None:
        raise InputError(f"seed={seed} and a generator: give only one of them")
    if generator is not None:
        return int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.initial_seed() % 2**63 if seed is None else check_seed(seed)


def call_closure(closure: Callable[[], Any], groups: list[dict[str, Any]]) -> Any:
    """The closure's result without its graph, which it would keep alive."""
    with torch.enable_grad():
        loss = closure()
    active = [param for group in groups for param in group["params"] if param.requires_grad]
    if loss is not None and active and all(param.grad is None for param in active):
        raise InputError("the closure left no gradient on any parameter; call loss.backward() in it")
    return loss.detach() if isinstance(loss, Tensor) else loss


def dense(grad: Tensor, param: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient itself, once it is known not to be sparse."""
    if grad.layout is not torch.strided:
        raise InputError(
            f"parameter {find_param_name(param, group)}: its gradient is sparse, and only a dense one tells how far "
            "to move; build its layer with sparse=False, or give it to another optimizer"
        )
    return grad


def check_state(loaded: dict[str, Any], optimizer: Optimizer) -> None:
    """Refuse the state of another kind of optimizer: one without the settings that this one's constructor takes.

    `defaults` alone would not do: torch adds keys of its own to it when an optimizer is loaded or copied.
    """
    own = inspect.signature(type(optimizer).__init__).parameters
    for group in loaded["param_groups"]:
        for name in sorted(own.keys() & optimizer.defaults.keys() - group.keys()):
            raise InputError(f"the state has no {name!r}: it is not that of {type(optimizer).__name__}; leave it out")


def widen(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a parameter's state: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


# ---- shards of a tensor, and several ranks ----


def shard(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, detached."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def locate_shard(tensor: Tensor) -> tuple[tuple[slice, ...], int | None]:
    """The place of the shard in the whole tensor: by dimension, and its first element's index, if it is one piece."""
    if not hasattr(tensor, "to_local"):
        return (), 0
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    size, full = compute_local_shape_and_global_offset, tensor.shape
    shape, offset = size(full, tensor.device_mesh, tensor.placements)
    slices = tuple(slice(o, o + length) for o, length in zip(offset, shape, strict=True))
    split = [i for i, length in enumerate(shape) if length != full[i]]
    if split and math.prod(shape[: split[-1]]) > 1:
        return slices, None
    return slices, sum(o * math.prod(full[i + 1 :]) for i, o in enumerate(offset))


def cut(tensor: Tensor, values: Tensor) -> Tensor:
    """Of `values`, one for each element of the whole tensor, those that belong to this rank's shard."""
    return values.view(tensor.shape)[locate_shard(tensor)[0]]


def noise_of(tensor: Tensor, like: Tensor, *, seed: int, stream: int, step: int, draw: int = 0) -> Tensor:
    """The noise of this rank's shard, out of the whole tensor's; `like` has the shard's shape."""
    name = {"seed": seed, "stream": stream, "step": step, "draw": draw}
    offset = locate_shard(tensor)[1]
    if offset is not None and (like.shape == tensor.shape or comes_in_slices(like)):
        return standard_normal(like, offset=offset, **name)
    return cut(tensor, standard_normal(like.new_empty(tensor.shape), **name))


@torch.no_grad()
def measure_norms(tensors: list[Tensor]) -> Tensor:
    """‖·‖₂ of each, in float32 at least, on one device; shards are summed over their ranks.

    >>> measure_norms([torch.tensor([3.0, 4.0]), torch.tensor([[2.0]], dtype=torch.float64)])
    tensor([5., 2.], dtype=torch.float64)
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float32, device="cpu")
    # Not by the norm's own dtype: for sharded tensors torch 2.15 takes it for the dimensions.
    norms = [whole(norm) for norm in torch._foreach_norm([t.to(widen(t.dtype)) for t in tensors], 2)]
    return torch.stack([norm.to(norms[0].device) for norm in norms])


def agree_on_seed(groups: list[dict[str, Any]]) -> None:
    """Rank 0's seed on every rank, so that all draw the same noise."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        device = next((p.device for group in groups for p in group["params"]), torch.device("cpu"))
        seed = torch.tensor([group["seed"] for group in groups], device=device, dtype=torch.int64)
        dist.broadcast(seed, src=0)
        for group, value in zip(groups, seed.tolist(), strict=True):
            group["seed"] = value
