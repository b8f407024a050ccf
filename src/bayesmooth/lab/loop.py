"""The training loop. It knows no method by name: the loss softens the label, the optimizer moves the weights."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.data import AUGMENTATIONS, Examples, batches, count_batches
from bayesmooth.lab.distributed import ALONE, Team
from bayesmooth.lab.divergence import check_loss
from bayesmooth.lab.evaluate import evaluate, statistics_batches
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.splits import Splits
from bayesmooth.lab.state import State
from bayesmooth.posterior import Posterior, recompute_batchnorm

Batch = tuple[Tensor, Tensor, Tensor]
"""Positions in the training set, inputs, labels."""


@dataclass
class Loop:
    """A recipe at work on its data."""

    recipe: Recipe
    splits: Splits
    state: State
    device: torch.device
    team: Team = ALONE

    def __post_init__(self) -> None:
        settings, model = self.recipe.train, self.state.model
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(model) if settings.compile else model
        )
        self.batches = count_batches(len(self.splits.train), settings.batch_size)
        self.weights = list(self.state.parameters())
        self.wrong = self.splits.wrong
        self.how: dict[str, Any] = {
            "batch_size": self.recipe.evaluate.batch_size,
            "team": self.team,
        }
        if hasattr(self.state.optimizer, "posterior"):
            self.how["batchnorm"] = self.statistics()
        # Reading the loss makes a GPU wait for it, so that is done now and then; the CPU has it at hand.
        self.check_every = 1 if self.device.type == "cpu" else 20

    def steps(self) -> Iterator[State]:
        """The rest of an epoch, a step at a time."""
        state, settings = self.state, self.recipe.train
        state.model.train()
        for batch in batches(
            self.splits.train,
            settings.batch_size,
            seed=settings.seed,
            epoch=state.epoch,
            augment=AUGMENTATIONS[self.recipe.data.augment],
            rank=self.team.rank,
            world_size=self.team.size,
            start=state.batch,
        ):
            self.step(self.on_device(batch))
            state.batch += 1
            yield state

    def step(self, batch: Batch) -> None:
        """One step of the optimizer, which calls the closure as often as it likes."""
        state = self.state
        parts = list(self.parts(batch))
        logits: list[Tensor] = []

        def closure() -> Tensor:
            state.optimizer.zero_grad()
            total = torch.zeros((), device=self.device)
            for (_, inputs, labels), share, extras in parts:
                outputs = self.logits(self.forward, inputs)
                loss = state.loss(outputs, labels, **extras) * share
                loss.backward()
                total += loss.detach()
                logits.append(outputs.detach())
            self.team.sum_gradients(self.weights, total)
            if math.isfinite(self.recipe.train.clip_norm):
                nn.utils.clip_grad_norm_(self.weights, self.recipe.train.clip_norm)
            return total

        loss: Tensor = state.optimizer.step(closure)  # type: ignore[assignment, arg-type]
        state.schedule.step()
        if state.batch % self.check_every == 0:
            check_loss(state, float(loss))
        if parts:
            # Of several calls the first is the one to count: SAM makes it at the weights themselves.
            state.meter.add(loss, torch.cat(logits[: len(parts)]), batch[2])

    def parts(self, batch: Batch) -> Iterator[tuple[Batch, float, dict[str, Any]]]:
        """The batch in `accumulate` pieces: each with its share of the whole batch, and what the loss needs to know."""
        settings, number = self.recipe.train, self.state.batch
        whole = min(settings.batch_size, len(self.splits.train) - number * settings.batch_size)
        epoch = self.state.epoch + number / self.batches
        pieces = [tensor.tensor_split(settings.accumulate) for tensor in batch]
        for index, inputs, labels in zip(*pieces, strict=True):
            if len(index):
                extras = {"index": index, "epoch": epoch, "past": self.past(inputs)}
                yield (index, inputs, labels), len(index) / whole, extras

    def past(self, inputs: Tensor) -> Tensor | None:
        """What the best past self says about the inputs; None before there is one."""
        if self.state.past is None:
            return None
        with torch.no_grad():
            return self.logits(self.state.past, inputs).float().softmax(-1)

    def logits(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """A forward pass, in the precision of the recipe."""
        if self.recipe.train.precision == "float32":
            return forward(inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            return forward(inputs)

    def on_device(self, batch: Batch) -> Batch:
        """The batch where the model is, in its memory format."""
        index, inputs, labels = (tensor.to(self.device) for tensor in batch)
        if self.recipe.train.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return index, inputs, labels

    def statistics(self) -> list[Tensor] | None:
        """Training inputs for BatchNorm's statistics, where running ones would be those of sampled weights."""
        norms = any(isinstance(part, _BatchNorm) for part in self.state.model.modules())
        settings = self.recipe.evaluate
        if not norms or not settings.batchnorm:
            return None
        return statistics_batches(
            self.splits.train, settings.batchnorm, settings.batch_size, self.device
        )

    def measure(self, breathe: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The record of an epoch whose steps are done. Nothing of the state changes here."""
        state, settings = self.state, self.recipe.evaluate
        epoch = state.epoch + 1
        last = epoch == self.recipe.train.epochs
        record = {
            "epoch": epoch,
            "step": state.schedule.last_epoch,
            "lr": state.schedule.get_last_lr()[0],
        }
        record |= {f"train.{name}": value for name, value in state.meter.numbers().items()}
        if last or epoch % settings.every == 0:
            known = (self.splits.test, self.splits.validation, self.wrong)
            record |= evaluate(state.model, *known, breathe=breathe, **self.how)
        if last or (settings.averaged_every and epoch % settings.averaged_every == 0):
            held = self.splits.validation
            record |= self.averaged(self.splits.test, validation=held, breathe=breathe)
        return record

    def measure_foreign(self) -> dict[str, float]:
        """How well the other data set of the recipe, if it names one, is told from the test set."""
        test, ood = self.splits.test, self.splits.ood
        if ood is None:
            return {}
        return evaluate(self.state.model, test, ood=ood, **self.how) | self.averaged(test, ood=ood)

    def averaged(self, test: Examples | None, **known: Any) -> dict[str, float]:
        """Figures averaged over the posterior, of an optimizer that has one."""
        posterior = posterior_of(self.state)
        if posterior is None:
            return {}
        return evaluate(
            self.state.model,
            test,
            name="averaged",
            posterior=posterior,
            samples=self.recipe.evaluate.samples,
            seed=self.recipe.train.seed,
            **known,
            **self.how,
        )

    def settle_statistics(self) -> None:
        """After the last step: BatchNorm's statistics become those of the mean, as a finished model predicts with."""
        if (inputs := self.how.get("batchnorm")) is not None:
            recompute_batchnorm(self.state.model, inputs)


def posterior_of(state: State) -> Posterior | None:
    """What the optimizer knows about the spread of the weights, if it knows."""
    make = getattr(state.optimizer, "posterior", None)
    return None if make is None else make(state.model)
