"""Learning-rate schedules: the factor on the initial rate as a pure function of progress; and the warnings of a run.

Progress runs from 0 (before the first step) to 1 (after the last one), so a schedule does not know
the length of an epoch, and a resumed run finds its rate by looking at the step it is on.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bayesmooth.calling import read_logits, recompute_batchnorm, take_labels
from bayesmooth.errors import InputError, one_of

LOOK = 16  # batches that tell whether anything is learned
LONG = 100  # steps; shorter runs are trials
ENOUGH = 100  # labels that tell an accuracy from that of the most frequent one


def cosine(progress: float, warmup: float = 0.0, start: float = 0.2) -> float:
    """A straight line from `start` to 1 over the share `warmup`, then half a cosine down to 0.

    IVON's recipe is `start=1/5` over 5 of 200 epochs, `warmup=5/200`:

    >>> [round(cosine(epoch / 200, warmup=5 / 200), 3) for epoch in (0, 5, 102.5, 200)]
    [0.2, 1.0, 0.5, 0.0]
    """
    if not 0 <= warmup < 1:
        raise InputError(f"warmup={warmup}: must be a share of the run, 0 ≤ warmup < 1; 5/200, say")
    if progress < warmup:
        return start + (1 - start) * progress / warmup
    return (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))) / 2


def steps(progress: float, milestones: Sequence[float] = (0.5, 0.75), factor: float = 0.1) -> float:
    """×`factor` at every milestone that is passed: the recipe of SGD and SAM.

    >>> [round(steps(progress), 4) for progress in (0, 0.5, 0.75)]
    [1.0, 0.1, 0.01]
    """
    if not all(0 <= milestone <= 1 for milestone in milestones):
        raise InputError(f"milestones={milestones}: must be shares of the run, in [0, 1]")
    return float(factor ** sum(progress >= milestone for milestone in milestones))


SCHEDULES: dict[str, Callable[..., float]] = {"constant": lambda progress: 1.0, "cosine": cosine, "steps": steps}


def scheduler(optimizer: Optimizer, name: str, total_steps: int, **options: Any) -> LambdaLR:
    """Schedule `name` over `total_steps` calls of its `step()`, one after each optimizer step.

    Every parameter group keeps its own initial rate. Past the end the last factor stays.

    >>> sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    >>> rates = scheduler(sgd, "cosine", total_steps=10)
    >>> for _ in range(5):
    ...     sgd.step()
    ...     rates.step()
    >>> round(rates.get_last_lr()[0], 6)
    0.2
    """
    one_of("schedule", name, SCHEDULES)
    if total_steps < 1:
        raise InputError(f"total_steps={total_steps}: must be ≥ 1, the optimizer steps of the run")
    return LambdaLR(optimizer, lambda step: SCHEDULES[name](min(step / total_steps, 1.0), **options))


class RunSchedule(LambdaLR):
    """A cosine from lr to zero over a run; its last `step` recomputes BatchNorm's statistics in the model.

    After one and two thirds of the steps it looks at a few training batches, and warns if nothing is learned.
    """

    def __init__(
        self, optimizer: Optimizer, steps: int | None, model: nn.Module | None, batches: Any, warmup: float
    ) -> None:
        if steps is None:
            raise InputError("schedule() without steps: give the constructor those of the run")
        if model is not None and (batches is None or isinstance(batches, Iterator)):  # it is read several times
            raise InputError("schedule(model): give the training loader, schedule(model, loader)")
        self.steps, self.model, self.batches = steps, model, batches
        super().__init__(optimizer, lambda step: cosine(min(step / steps, 1.0), warmup))

    def step(self, epoch: int | None = None) -> None:
        """After every step of the optimizer."""
        super().step(epoch)
        if self.model is not None and self.steps >= LONG and self.last_epoch in (self.steps // 3, 2 * self.steps // 3):
            self._look(self.model)
        if self.model is not None and self.last_epoch == self.steps:
            recompute_batchnorm(self.model, self.batches)

    def _look(self, model: nn.Module) -> None:
        """Compare predictions with the most frequent label, where each example has one class."""
        right, seen = [], []
        with suppress(InputError), torch.random.fork_rng(devices=[]):  # the loader's order stays
            for logits, batch in read_logits(model, islice(self.batches, LOOK)):
                labels = take_labels(batch).to(logits.device)
                if labels.ndim == 1 == logits.ndim - 1 and not labels.is_floating_point():
                    given = labels >= 0  # others are ignored, as −100 is by torch
                    right.append((logits.argmax(-1) == labels)[given].cpu())
                    seen.append(labels[given].cpu())
        if seen:
            warn_if_nothing_is_learned(float(torch.cat(right).double().mean()), torch.cat(seen))

    def state_dict(self) -> dict[str, Any]:
        """Without the model and the batches, which belong to this process."""
        return {key: value for key, value in super().state_dict().items() if key not in ("model", "batches")}


# ---- warnings ----


def warn_if_nothing_is_learned(accuracy: float, labels: Tensor, advice: str = "") -> bool:
    """Whether a network says nothing more than the most frequent of the labels that it was asked for."""
    most = float(torch.bincount(labels.flatten(), minlength=1).max()) / max(len(labels), 1)
    if len(labels) < ENOUGH or accuracy > most:
        return False
    warnings.warn(
        f"nothing is learned: accuracy {accuracy:.1%}, and {most:.1%} of the labels are the most frequent one; "
        + (advice or "try a third of lr, or of noise"),
        stacklevel=_find_caller(),
    )
    return True


def warn_if_rate_stays(optimizer: Any) -> None:
    """Warn after the last step: a rate that never fell leaves the noise of the last steps in the mean."""
    group = optimizer.param_groups[0]
    first, last = float(group.get("initial_lr", optimizer.defaults["lr"])), float(group["lr"])
    if optimizer.steps >= LONG and 0 < first == last:
        warnings.warn(
            f"the last of the steps has lr={last:g}, as the first: let it fall to zero; make schedule = "
            "optimizer.schedule(model, loader), and call schedule.step() after every step; in a recipe, write "
            "name = 'cosine' under [schedule]",
            stacklevel=_find_caller(),
        )


def _find_caller() -> int:
    """The stacklevel of the first line that is neither ours nor torch's, whose schedulers and hooks wrap `step`."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in ("bayesmooth", "torch"):
        level, frame = level + 1, frame.f_back
    return level + 1
