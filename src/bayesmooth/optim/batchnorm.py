"""BatchNorm's running statistics, held still while a network is looked at from other weights."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

COMPILED_HOOK = "Using `torch.compile(module)` when there are global hooks"


@contextmanager
def running_statistics_kept() -> Iterator[None]:
    """Forward passes inside leave every layer's running mean, variance and count as they were.

    Needs no reference to the model: whichever module is called first is asked for its BatchNorm and
    InstanceNorm layers. So it sees `torch.compile(model)` too, whose inner layers are traced away.
    """
    met: set[nn.Module] = set()
    before: list[tuple[Tensor, Tensor]] = []

    def remember(module: nn.Module, inputs: object) -> None:
        if module not in met:
            new = set(module.modules()) - met
            met.update(new)
            before.extend((buffer, buffer.clone()) for part in new for buffer in _statistics(part))

    _expect_compiled_modules()
    hook = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _statistics(module: nn.Module) -> list[Tensor]:
    """The buffers that a training forward pass of this layer moves."""
    if not (isinstance(module, _NormBase) and module.training):
        return []
    buffers = (module.running_mean, module.running_var, module.num_batches_tracked)
    return [buffer for buffer in buffers if buffer is not None]


def _expect_compiled_modules() -> None:
    """A compiled module warns that it calls global hooks itself: here that is the call wanted."""
    message = re.escape(COMPILED_HOOK)
    rule = ("ignore", re.compile(message, re.IGNORECASE), UserWarning, None, 0)
    if rule not in warnings.filters:  # adding it anew would make other warnings repeat themselves
        warnings.filterwarnings("ignore", message, UserWarning)
