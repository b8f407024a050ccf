"""A run that has lost its way is stopped with a diagnosis, before it can spoil its checkpoint."""

import math

import torch

from bayesmooth.errors import InputError
from bayesmooth.lab.state import State

EXPLODED = 1e6  # no classification loss that can still learn is larger


class DivergedError(InputError):
    """The loss or the weights are not finite, or the loss has exploded."""


def check_loss(state: State, loss: float) -> None:
    """Stop if the loss of the last step shows that training has failed."""
    if not math.isfinite(loss) or loss > EXPLODED:
        raise DivergedError(diagnosis(state, f"the loss is {loss:.3g}"))


def check_weights(state: State) -> None:
    """Stop if a weight is not finite; asked before every checkpoint."""
    for name, weight in state.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise DivergedError(diagnosis(state, f"the weight {name} is not finite"))


def diagnosis(state: State, what: str) -> str:
    """What happened, when, the figures that explain it, and what to try."""
    group = state.optimizer.param_groups[0]
    norm = torch.nn.utils.get_total_norm([p.grad for p in state.parameters() if p.grad is not None])
    before = state.meter.numbers().get("loss", math.nan)
    tries = [f"a smaller optimizer.lr (now {group['lr']:.3g})", "train.clip_norm = 1"]
    if "hess_init" in group:
        tries.append(f"a larger optimizer.hess_init (now {group['hess_init']:.3g})")
    if state.schedule.last_epoch < 100:
        tries.append("a schedule with warm-up")
    return (
        f"diverged in epoch {state.epoch + 1}, batch {state.batch + 1}: {what}; gradient norm {norm:.3g}, "
        f"mean loss of the epoch {before:.3g}; the last good checkpoint is kept; try {', '.join(tries)}"
    )
