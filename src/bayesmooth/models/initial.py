"""First weights: drawn from a seed, or read from a file."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def load_weights(model: nn.Module, path: str | Path, head: str, new_head: bool = False) -> None:
    """Read a state dict (.pt, .pth, .safetensors) into `model`; with `new_head` all but the last layer, `head`."""
    try:
        found = _read(Path(path))
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{path}: cannot be read as a state dict ({reason})") from None
    if not isinstance(found, dict) or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise InputError(f"{path}: does not hold a state dict; save model.state_dict()")
    own = model.state_dict()
    if new_head:
        found |= {name: own[name] for name in own if name.startswith(f"{head}.")}
    _check_head(path, found, own, head)
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        problems = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise InputError(
            f"{path}: the weights are those of another network: {problems[:400]}"
        ) from None


def _read(path: Path) -> Any:
    if path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True)
    broken = require("safetensors", extra="train").SafetensorError
    try:
        return require("safetensors.torch", extra="train").load_file(path)
    except broken as error:
        raise ValueError(str(error)) from None


def _check_head(
    path: str | Path, found: dict[str, torch.Tensor], own: dict[str, torch.Tensor], head: str
) -> None:
    weight = f"{head}.weight"
    if weight in found and len(found[weight]) != len(own[weight]):
        raise InputError(
            f"{path}: its head `{head}` has {len(found[weight])} classes, the model "
            f"{len(own[weight])}; new_head=True reads the rest and starts the head afresh"
        )
