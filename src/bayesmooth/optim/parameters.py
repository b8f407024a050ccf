"""What optimizers that look at other weights share: who takes part, and how values come back."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.errors import InputError
from bayesmooth.optim.sharding import shard


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
    """Whatever happens to the values inside, they are back afterwards, bit for bit and in place."""
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
        alike = [t for t in tensors if t.dtype == dtype]
        norms += torch._foreach_norm(alike, 2, torch.promote_types(dtype, torch.float32))
    whole = [n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]
    return float(torch.linalg.vector_norm(torch.stack([n.to(whole[0].device) for n in whole])))


def check_moved(params: Iterable[Tensor], loss: object) -> None:
    """A closure that has a loss and left no gradient has forgotten something."""
    params = list(params)
    if loss is not None and params and all(param.grad is None for param in params):
        raise InputError(
            "the closure left no gradient on any parameter; call loss.backward() in it"
        )


def check_groups(loaded: dict[str, Any], settings: Iterable[str], name: str) -> None:
    """Refuse the state of another kind of optimizer."""
    for group in loaded["param_groups"]:
        if missing := sorted(set(settings) - group.keys()):
            raise InputError(
                f"the state has no {missing[0]!r}: it is not that of {name}; start without it"
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
    check_groups(loaded, optimizer.defaults, type(optimizer).__name__)
    for number, (param, state) in enumerate(_pairs(optimizer, loaded)):
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape != param.shape:
                raise InputError(
                    f"parameter #{number}: {key} of shape {tuple(value.shape)} for weights of shape "
                    f"{tuple(param.shape)}; the state is another model's; leave a new layer's out of it"
                )
