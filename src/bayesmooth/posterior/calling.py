"""Calling any model on any batch: what of a batch goes in, where, and what comes out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from bayesmooth.errors import InputError

# Inputs kept while all draws pass over them: each draw is made once per chunk.
CHUNK_BYTES = 64 << 20

Part = TypeVar("Part")
Inputs = Tensor | Mapping[str, Any]
"""What a model is called with: one tensor, or keyword arguments."""


def take_inputs(batch: Any) -> Inputs:
    """What of a batch goes into the model: all but labels."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key != "labels"}
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(first, Tensor | Mapping):
        raise InputError(
            f"a batch is a {type(batch).__name__}: must be a tensor, a dict, or (inputs, labels, …)"
        )
    return first


def take_labels(batch: Any) -> Tensor:
    """The labels of a batch: (inputs, labels, …), or a dict with "labels"."""
    labels: Any = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        labels = batch[1]
    if not isinstance(labels, Tensor):
        raise InputError(
            f"a batch is a {type(batch).__name__} without labels: must be (inputs, labels), or a dict with 'labels'"
        )
    return labels


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """The model's output, whatever it is."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def take_logits(output: Any) -> Tensor:
    """The logits in what a model returned."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InputError(
            f"the model returned a {type(output).__name__}: must be logits, or an object that has them as .logits"
        )
    return logits


def move_inputs(inputs: Inputs, model: nn.Module) -> Inputs:
    """The inputs where the model's weights are."""
    device = next(model.parameters()).device
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {key: v.to(device) if isinstance(v, Tensor) else v for key, v in inputs.items()}


def read_chunks(parts: Iterable[Part], inputs: Callable[[Part], Inputs]) -> Iterator[list[Part]]:
    """Consecutive parts whose inputs come to CHUNK_BYTES, the last of them less."""
    chunk: list[Part] = []
    size = 0
    for part in parts:
        chunk.append(part)
        found = inputs(part)
        tensors = [found] if isinstance(found, Tensor) else found.values()
        size += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
