"""BatchNorm's running statistics at the weights that predict."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.errors import InputError
from bayesmooth.posterior.calling import call_model, evaluating, move_inputs, take_inputs


class Statistics:
    """BatchNorm's statistics of each draw, from the same batches: computed once, then looked up."""

    def __init__(self, model: nn.Module, batches: Iterable[Any] | None) -> None:
        if isinstance(batches, Iterator):
            raise InputError(
                f"batchnorm: a {type(batches).__name__} is empty after the first draw; "
                "give a list or a loader"
            )
        self.model, self.batches = model, batches
        self.known: dict[int | None, list[Tensor]] = {}

    def use(self, draw: int | None = None) -> None:
        """Put those of this draw in place, whose weights the model has now; None is the mean."""
        if self.batches is None:
            return
        buffers = [buffer for norm in _norms(self.model) for buffer in norm.buffers()]
        if draw not in self.known:
            recompute_batchnorm(self.model, self.batches)
            self.known[draw] = [buffer.clone() for buffer in buffers]
        for buffer, value in zip(buffers, self.known[draw], strict=True):
            buffer.copy_(value)


def recompute_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """BatchNorm's running statistics anew, over these batches, at the weights the model has now.

    Training leaves statistics gathered under samples. They suit averaged predictions; before predicting at the
    mean, call this. `Posterior.predict(batchnorm=…)` does it for every draw. Batches are as there: a loader of
    training batches will do.
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
                call_model(model, move_inputs(take_inputs(batch), model))
            if any(norm.num_batches_tracked == 0 for norm in norms):
                raise InputError("no batch for BatchNorm's statistics; give one at least")
        except BaseException:
            for buffer, value in before:
                buffer.copy_(value)
            raise
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Whatever changes the buffers inside, afterwards they are what they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
