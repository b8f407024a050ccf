"""Buffers, held still while a network is looked at from other weights."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

COMPILED_HOOK = "Using `torch.compile(module)` when there are global hooks"


@contextmanager
def buffers_kept() -> Iterator[None]:
    """Forward passes inside leave the buffers of every module in training mode as they were.

    BatchNorm's running mean, variance and count; the labels that an online loss collects. Needs no reference to model
    or loss: whichever module is called first is asked for its parts. So it sees `torch.compile(model)`
    too, whose inner layers are traced away.
    """
    met: set[nn.Module] = set()
    before: list[tuple[nn.Module, str, Tensor, Tensor]] = []

    def remember(module: nn.Module, inputs: object) -> None:
        if module not in met:
            new = set(module.modules()) - met
            met.update(new)
            before.extend(
                (part, name, buffer, buffer.clone())
                for part in new
                if part.training
                for name, buffer in part.named_buffers(recurse=False)
            )

    _expect_compiled_modules()
    hook = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for part, name, buffer, value in before:
                part._buffers[name] = buffer.copy_(value)


def _expect_compiled_modules() -> None:
    """A compiled module warns that it calls global hooks itself: here that is the call wanted."""
    message = re.escape(COMPILED_HOOK)
    rule = ("ignore", re.compile(message, re.IGNORECASE), UserWarning, None, 0)
    if rule not in warnings.filters:  # adding it anew would make other warnings repeat themselves
        warnings.filterwarnings("ignore", message, UserWarning)
