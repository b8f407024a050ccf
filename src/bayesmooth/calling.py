"""Calling any model on any batch: its inputs, labels and logits, in eval mode, with BatchNorm's statistics."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.errors import InputError

# Inputs kept while all draws pass over them: each draw is made once per chunk.
CHUNK_BYTES = 64 << 20

Part = TypeVar("Part")
Inputs = Tensor | Mapping[str, Any]
"""The inputs of a model: one tensor, or keyword arguments."""


def take_inputs(batch: Any, model: nn.Module | None = None) -> Inputs:
    """The part of a batch that goes into a model, all but labels; if the model is given, on its device."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
    if not isinstance(inputs, Tensor | Mapping):
        raise InputError(f"a batch is a {type(batch).__name__}: must be a tensor, a dict, or (inputs, labels, …)")
    if model is None:
        return inputs
    device = next(model.parameters()).device
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {key: v.to(device) if isinstance(v, Tensor) else v for key, v in inputs.items()}


def take_labels(batch: Any) -> Tensor:
    """The labels of a batch: (inputs, labels, …), or a dict with "labels"; whole numbers are int64, as torch wants."""
    labels: Any = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        labels = batch[1]
    if not isinstance(labels, Tensor):
        raise InputError(
            f"a batch is a {type(batch).__name__} without labels: must be (inputs, labels), or a dict with 'labels'"
        )
    return labels if labels.is_floating_point() or labels.is_complex() else labels.long()


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """The model's output, of any type."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def take_logits(output: Any) -> Tensor:
    """The logits in a model's output."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InputError(f"the model returned a {type(output).__name__}: must be logits, or have them as .logits")
    return logits


def compute_logits(model: nn.Module, batches: Iterable[Inputs], softmax: bool = True) -> Tensor:
    """The logits of all rows, in float32 at least: averages in bfloat16 would miss one by a hundredth."""
    logits = torch.cat([take_logits(call_model(model, inputs)) for inputs in batches])
    if softmax and (logits.ndim < 2 or logits.shape[-1] < 2):
        raise InputError(
            f"the model's output has the shape {tuple(logits.shape)}, and a softmax needs (batch, classes ≥ 2); use "
            "link=Bernoulli() after binary cross-entropy, Gaussian() for a regression (from bayesmooth.theory)"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def find_device(name: str | None) -> torch.device:
    """The device that is asked for, else a GPU if there is one, else the CPU."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, dtype=torch.float32, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"device {name!r}: torch has none here ({reason}); leave it out, or use cpu") from None
    return device


def read_logits(model: nn.Module, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Any]]:
    """The logits of each batch, in float32 at least, and the batch; the model is in eval mode meanwhile."""
    with torch.no_grad(), evaluating(model):
        for batch in batches:
            yield compute_logits(model, [take_inputs(batch, model)], softmax=False), batch


def read_chunks(parts: Iterable[Part], inputs: Callable[[Part], Inputs]) -> Iterator[list[Part]]:
    """Consecutive parts whose inputs come to CHUNK_BYTES, the last of them less."""
    chunk: list[Part] = []
    size = 0
    for part in parts:
        chunk.append(part)
        part_inputs = inputs(part)
        tensors = [part_inputs] if isinstance(part_inputs, Tensor) else part_inputs.values()
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


# ---- BatchNorm's running statistics, at the weights that predict ----


@contextmanager
def statistics_kept(model: nn.Module, batches: Iterable[Any] | None = None) -> Iterator[Callable[[int | None], None]]:
    """The buffers may change inside; afterwards their old values are back.

    It gives a function that puts BatchNorm's statistics of a draw in place, whose weights the model has now (None: the
    mean). They are computed from `batches` once, then looked up; without batches they stay those of training.
    """
    if isinstance(batches, Iterator):
        raise InputError(f"batchnorm: a {type(batches).__name__} is empty after the first draw; give a list or loader")
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    statistics: dict[int | None, list[Tensor]] = {}

    def use(draw: int | None) -> None:
        if batches is None:
            return
        buffers = [buffer for norm in _norms(model) for buffer in norm.buffers()]
        if draw not in statistics:
            recompute_batchnorm(model, batches)
            statistics[draw] = [buffer.clone() for buffer in buffers]
        for buffer, value in zip(buffers, statistics[draw], strict=True):
            buffer.copy_(value)

    try:
        yield use
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def recompute_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Compute BatchNorm's running statistics from these training batches, at the weights that the model has.

    Training with IVON or bSAM leaves statistics of sampled weights. They suit averaged predictions; before you predict
    at the mean, call this. `Posterior.predict(batchnorm=…)` does it for every draw. `batches` is a loader or a list; a
    batch is a tensor, a dict of the model's arguments, or (inputs, labels, …).
    """
    norms = _norms(model)
    momenta = [norm.momentum for norm in norms]
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    with evaluating(model), torch.no_grad():
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the plain average over batches
                norm.training = True
            for batch in batches if norms else ():
                call_model(model, take_inputs(batch, model))
            if any(norm.num_batches_tracked == 0 for norm in norms):
                raise InputError("no batch for BatchNorm's statistics; give one at least")
        except BaseException:
            for buffer, value in before:
                buffer.copy_(value)
            raise
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
