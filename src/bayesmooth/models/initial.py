"""First weights: drawn from a seed, or read from a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.randomness import check_seed


@contextmanager
def weights_from(seed: int) -> Iterator[None]:
    """Layers built inside are float32, on the CPU, with weights from `seed`, whatever torch's defaults are.

    The global generator is left as it was.

    >>> with weights_from(0):
    ...     first = nn.Linear(2, 2)
    >>> with weights_from(0):
    ...     torch.equal(first.weight, nn.Linear(2, 2).weight)
    True
    """
    before, dtype = torch.get_rng_state(), torch.get_default_dtype()
    torch.default_generator.manual_seed(check_seed(seed))
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(before)


def name_head(model: nn.Module) -> str:
    """The name of the last layer: the linear one that was added last.

    >>> name_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError(f"{type(model).__name__} has no linear layer that could be the head")
    return str(linear[-1])


def load_weights(model: nn.Module, path: str | Path, new_head: bool = False) -> None:
    """Read a state dict (.pt, .pth, .safetensors) into `model`; with `new_head` all but the last layer."""
    safe = require("safetensors.torch", extra="train") if Path(path).suffix == ".safetensors" else None
    try:
        state = safe.load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes readers raise anything
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{path}: cannot be read as a state dict ({reason})") from None
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise InputError(f"{path}: does not hold a state dict; save model.state_dict()")
    own, head = model.state_dict(), name_head(model)
    if new_head:
        state |= {name: own[name] for name in own if name.startswith(f"{head}.")}
    theirs, ours = (len(part.get(f"{head}.weight", ())) for part in (state, own))
    if theirs and theirs != ours:
        raise InputError(
            f"{path}: its head `{head}` has {theirs} classes, the model {ours}; "
            "new_head=True reads the rest and starts the head afresh"
        )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        why = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise InputError(f"{path}: the weights are those of another network: {why[:400]}") from None
