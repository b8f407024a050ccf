"""What the optimizers here share: the checks of settings, parameters and loaded state, and who takes part in a step."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.errors import InputError
from bayesmooth.optim.sharding import shard

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
    "fused": (
        lambda x: x in (None, True, False, "compile"),
        "must be None, True, False or 'compile'",
        "None chooses",
    ),
    "momentum": (lambda x: x is None or 0 <= x < 1, "must be in [0, 1)", "0.9 is usual"),
}


def add_group(
    optimizer: Optimizer, group: dict[str, Any], *checks: Callable[[dict[str, Any]], None]
) -> None:
    """`Optimizer.add_param_group`, undone where a check refuses the group."""
    _check_listed_once(group)
    Optimizer.add_param_group(optimizer, group)
    try:
        for check in (check_group, *checks):
            check(optimizer.param_groups[-1])
        check_memory(optimizer.param_groups)
    except InputError:
        optimizer.param_groups.pop()
        raise


def check_group(group: dict[str, Any]) -> None:
    """Every value of a parameter group, and every tensor in it."""
    for name, (holds, rule, way_out) in RULES.items():
        if name in group and not _passes(holds, group[name]):
            raise InputError(f"{name}={group[name]!r}: {rule}; {way_out}")
    for name, param in named(group):
        check_tensor(name, param)


def named(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
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
    found: dict[int, list[tuple[str, Tensor]]] = {}
    for group in groups:
        for name, param in named(group):
            local = shard(param.detach())
            if local.numel() and (address := local.untyped_storage().data_ptr()):
                found.setdefault(address, []).append((name, local))
    for entries in found.values():
        tensors = [tensor for _, tensor in entries]
        if _spans_meet(tensors) and _elements_meet(tensors):
            names = " and ".join(dict.fromkeys(name for name, _ in entries))
            raise InputError(
                f"parameter {names}: elements share memory (an expanded tensor, or overlapping views); "
                "give the tensor that they are views of"
            )


def _spans_meet(tensors: list[Tensor]) -> bool:
    """Whether elements of one storage may be shared: a quick look at where each tensor begins and ends."""
    spans = []
    for tensor in tensors:
        if (length := extent(tensor)) < tensor.numel():
            return True
        start = tensor.storage_offset() * tensor.element_size()
        spans.append((start, start + length * tensor.element_size()))
    spans.sort()
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def extent(tensor: Tensor) -> int:
    """Elements from its first to its last in memory; those of a dense tensor fill it."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def _elements_meet(tensors: list[Tensor]) -> bool:
    """Whether they do: interleaved columns of one matrix, say, do not."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        return True
    storage = tensors[0].untyped_storage()
    numbers = torch.arange(storage.nbytes() // tensors[0].element_size())
    used = [
        numbers.as_strided(t.size(), t.stride(), t.storage_offset()).reshape(-1) for t in tensors
    ]
    return bool(torch.bincount(torch.cat(used)).max() > 1)


def momentum_of(group: dict[str, Any]) -> float:
    """β₁: `beta1`, or what OneCycleLR and CyclicLR make of it under the name that they know, `momentum`."""
    return float(group["beta1"] if group.get("momentum") is None else group["momentum"])


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    """The noise's seed: the one given, one drawn from the generator, or torch's own (without advancing it)."""
    if seed is not None and generator is not None:
        raise InputError(f"seed={seed} and a generator: give only one of them")
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


def active(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that take part now: those that require a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def with_gradients(group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The parameters of a group that take part and have a gradient, with it."""
    return [
        (param, dense(param.grad, param, group))
        for param in group["params"]
        if param.requires_grad and param.grad is not None
    ]


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


@contextmanager
def weights_kept(params: list[Tensor]) -> Iterator[None]:
    """Whatever happens to the values inside, afterwards they are what they were, bit for bit, in the same memory."""
    before = [shard(param.detach()).clone() for param in params]
    try:
        yield
    finally:
        if before:
            with torch.no_grad():
                torch._foreach_copy_([shard(param) for param in params], before)


@torch.no_grad()
def global_norm(tensors: list[Tensor]) -> float:
    """‖·‖₂ of everything together, in float32 at least; shards are summed over their ranks.

    >>> global_norm([torch.tensor([3.0]), torch.tensor([[4.0]], dtype=torch.float64)])
    5.0
    """
    if not tensors:
        return 0.0
    norms: list[Any] = []
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        wide = torch.promote_types(dtype, torch.float32)
        # Not by the norm's own dtype: for sharded tensors torch 2.15 takes it for the dimensions.
        norms += torch._foreach_norm([t.to(wide) for t in tensors if t.dtype == dtype], 2)
    whole = [n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]
    return float(torch.linalg.vector_norm(torch.stack([n.to(whole[0].device) for n in whole])))


def check_moved(params: Iterable[Tensor], loss: object) -> None:
    """Refuse a closure that returned a loss and left no gradient."""
    params = list(params)
    if loss is not None and params and all(param.grad is None for param in params):
        raise InputError(
            "the closure left no gradient on any parameter; call loss.backward() in it"
        )


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


@contextmanager
def state_kept_wide(optimizer: Optimizer) -> Iterator[None]:
    """A `load_state_dict` inside checks what it is given, and keeps state in float32 at least.

    torch casts loaded state to each parameter's dtype, and looks at neither shapes nor names.
    """
    loaded: dict[str, Any] = {}

    def check(_: Optimizer, state_dict: dict[str, Any]) -> None:
        _check_loaded(optimizer, state_dict)
        loaded.update(state_dict)

    def widen(_: Optimizer) -> None:
        for param, state in _pairs(optimizer, loaded):
            wide = torch.promote_types(param.dtype, torch.float32)
            for key, value in state.items():
                if isinstance(value, Tensor):
                    copy = value.to(param.device, wide, copy=True)
                    optimizer.state[param][key] = copy

    hooks = [
        optimizer.register_load_state_dict_pre_hook(check),
        optimizer.register_load_state_dict_post_hook(widen, prepend=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _pairs(optimizer: Optimizer, loaded: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Each parameter with the state that it is about to get; torch itself refuses other numbers of parameters."""
    own = (param for group in optimizer.param_groups for param in group["params"])
    saved = (index for group in loaded["param_groups"] for index in group["params"])
    for param, index in zip(own, saved, strict=False):
        yield param, loaded["state"].get(index, {})


def _check_loaded(optimizer: Optimizer, loaded: dict[str, Any]) -> None:
    check_settings(loaded, optimizer)
    for number, (param, state) in enumerate(_pairs(optimizer, loaded)):
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape != param.shape:
                raise InputError(
                    f"parameter #{number}: {key} of shape {tuple(value.shape)} for weights of shape "
                    f"{tuple(param.shape)}; the state is another model's; leave a new layer's out of it"
                )
