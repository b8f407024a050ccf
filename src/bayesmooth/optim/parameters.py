"""What optimizers that look at other weights share: who takes part, and how values come back."""

from collections.abc import Iterator
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


def keep_dtypes(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Undo that torch casts loaded state to each parameter's dtype: ours is wider on purpose."""
    saved = (index for group in state_dict["param_groups"] for index in group["params"])
    own = (param for group in optimizer.param_groups for param in group["params"])
    for index, param in zip(saved, own, strict=True):
        for key, value in state_dict["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                optimizer.state[param][key] = value.to(param.device, copy=True)
