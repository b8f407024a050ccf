"""The training loop. It knows no method by name: the loss softens the label, the optimizer moves the weights.

`Loop` is a recipe at work on its data. When the loss explodes or a weight is not finite, it stops with a diagnosis
before the checkpoint is overwritten.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesmooth.calling import recompute_batchnorm
from bayesmooth.data import AUGMENTATIONS, batches, count_batches, mixup
from bayesmooth.errors import InputError, name_place
from bayesmooth.losses import Loss
from bayesmooth.optim.schedule import scheduler
from bayesmooth.posterior import Posterior
from bayesmooth.train.distributed import ALONE, Team
from bayesmooth.train.evaluate import Batch, Splits, evaluate, load_ahead, statistics_batches
from bayesmooth.train.networks import check_logits, evaluate_frozen, make_model
from bayesmooth.train.recipe import BASE, Recipe
from bayesmooth.words import format_percent

Checkpoint = dict[str, Any]  # a loop as plain containers and tensors
Record = dict[str, Any]  # the figures of an epoch

PROGRESS = ("epoch", "batch", "best", "best_epoch", "records", "seconds")
LONG_ENOUGH = 100  # steps before a model is expected to know anything
EXPLODED = 1e6  # no classification loss that can still learn is larger


class Loop:
    """A recipe at work on its data: the learner, how far it has come, and the steps that it takes.

    Attributes:
        model, loss, optimizer, schedule: as the recipe names them.
        sums: of the loss, the hits and the examples of the epoch so far; on the device until they are read.
        past: the best self so far, for losses that need it.
        epoch: how many are complete.
        batch: how many batches of the next epoch are done.
        best, best_epoch: the best accuracy on the noisy validation split, and when that was.
        records, seconds: the figures of the epochs so far, and the time that their steps took.
        best_weights: the model of the best epoch, until it is saved.
    """

    def __init__(self, recipe: Recipe, splits: Splits, device: torch.device, team: Team = ALONE) -> None:
        self.recipe, self.splits, self.device, self.team = recipe, splits, device, team
        self.batches = count_batches(len(splits.train), recipe.train.batch_size)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.past: nn.Module | None = None
        self.epoch = self.batch = self.best_epoch = 0
        self.best, self.seconds = -1.0, 0.0
        self.records: list[Record] = []
        self.best_weights: dict[str, Tensor] | None = None
        self._build()
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if recipe.train.compile else self.model
        self.statistics = statistics_batches(recipe, splits, self.model)
        # The accuracy of always predicting the most frequent label, plus two standard errors.
        share = float(splits.train.labels.counts().max()) / len(splits.train)
        self.guessing = share + 2 * (share * (1 - share) / len(splits.train)) ** 0.5
        # Reading the loss makes a GPU wait, so there it is checked only now and then.
        self.check_every = 1 if device.type == "cpu" else 20

    def _build(self) -> None:
        """Make the network, the loss, the optimizer and its schedule."""
        recipe, train, corruption = self.recipe, self.splits.train, self.splits.corruption
        facts: dict[str, Any] = {"num_classes": train.num_classes, "num_examples": len(train)}
        facts |= {"input_shape": train.input_shape, "seed": recipe.train.seed}
        self.model = make_model(recipe, **facts).to(self.device)
        if recipe.train.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if corruption is not None:
            facts["transition"] = torch.from_numpy(corruption.matrix)
        self.loss: Loss = recipe.make("loss", **facts).to(self.device)
        if "past" in self.loss.needs:
            check_past(recipe)
        first = train.batch(torch.arange(1, device="cpu")).to(self.device)
        if ":" in recipe.model.name:
            with name_place(f"[model] {recipe.model.name}"):
                check_logits(self.model, first, train.num_classes)
        self.loss.attach(self.model, first)
        self.weights = [*self.model.parameters(), *self.loss.parameters()]
        steps = recipe.train.epochs * self.batches
        facts |= {"params": [weight for weight in self.weights if weight.requires_grad]}
        facts |= {"base_optimizer": BASE, "ess": float(len(train))}
        facts |= {"epochs": float(recipe.train.epochs), "steps": steps}
        self.optimizer: Optimizer = recipe.make("optimizer", **facts)
        schedule = recipe.schedule
        self.schedule = scheduler(self.optimizer, schedule.name, steps, **schedule.options)

    def epochs(self, after_step: Callable[[], None], after_batch: Callable[[], None]) -> Iterator[Record]:
        """Train to the end; yield the figures of every epoch.

        `after_step` is called between two steps, `after_batch` within an evaluation; either may raise, to stop.
        """
        while self.epoch < self.recipe.train.epochs:
            start = time.monotonic()
            for _ in self.steps():
                after_step()
            self.seconds += time.monotonic() - start
            self.settle()
            record = self.measure(after_batch)
            if self.is_last and self.statistics is not None:
                # A finished model predicts at the mean, so BatchNorm's statistics become those of the mean.
                recompute_batchnorm(self.model, self.statistics)
            self.loss.end_epoch()
            self.epoch, self.batch = self.epoch + 1, 0
            self.sums.zero_()
            self.records.append(record)
            self._check_learning(record)
            if (accuracy := record.get("validation.accuracy", -1.0)) > self.best:
                self.best, self.best_epoch = accuracy, self.epoch
                self.best_weights = deepcopy(self.model.state_dict())
                if "past" in self.loss.needs:
                    self._remember()
            yield record

    def _check_learning(self, record: Record) -> None:
        """Say once, when a third of the steps is behind it, that a run is no better than guessing."""
        steps, accuracy = record["step"], record.get("train.accuracy", 1.0)  # one process counts
        total = self.recipe.train.epochs * self.batches
        late = max(total / 3, LONG_ENOUGH)
        if steps - self.batches < late <= steps and accuracy < self.guessing:
            warnings.warn(
                f"nothing is learned after {steps} of {total} steps: accuracy {format_percent(accuracy)}, no better "
                "than always giving the most frequent label; try another optimizer.lr, or less noise",
                stacklevel=2,
            )

    @property
    def is_last(self) -> bool:
        """Whether the current epoch is the last one."""
        return self.epoch + 1 == self.recipe.train.epochs

    def steps(self) -> Iterator[None]:
        """The rest of an epoch, one step at a time."""
        settings = self.recipe.train
        self.model.train()
        if self.recipe.model.freeze is not None:
            evaluate_frozen(self.model)
        read = batches(
            self.splits.train,
            settings.batch_size,
            seed=settings.seed,
            epoch=self.epoch,
            augment=AUGMENTATIONS[self.recipe.data.augment],
            rank=self.team.rank,
            world_size=self.team.size,
            start=self.batch,
        )
        for index, inputs, labels in load_ahead(read, self.device):
            if settings.channels_last and inputs.ndim == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            self.step((index, inputs, labels))
            self.batch += 1
            yield

    def step(self, batch: Batch) -> None:
        """One step of the optimizer, which calls the closure as often as it likes."""
        parts = list(self._split(batch))
        logits: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            total = torch.zeros((), dtype=torch.float32, device=self.device)
            for (_, inputs, labels), share, extras in parts:
                outputs = self._logits(self.forward, inputs)
                loss = self.loss(outputs, labels, **extras) * share
                loss.backward()
                total += loss.detach()
                logits.append(outputs.detach())
            self.team.sum_gradients(self.weights, total)
            if math.isfinite(self.recipe.train.clip_norm):
                nn.utils.clip_grad_norm_(self.weights, self.recipe.train.clip_norm)
            return total

        loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment, arg-type]
        self.schedule.step()
        if self.batch % self.check_every == 0 and not -math.inf < float(loss) <= EXPLODED:
            raise DivergedError(self._explain(f"the loss is {float(loss):.3g}"))
        if parts:
            # The first of several calls counts: SAM makes it at the weights themselves.
            labels, found = batch[2], torch.cat(logits[: len(parts)]).argmax(-1)
            self.sums[0] += loss.detach() * len(labels)
            self.sums[1] += (found == labels).sum()
            self.sums[2] += len(labels)  # a number, not a tensor that would have to be sent

    def figures(self) -> dict[str, float]:
        """Mean loss and accuracy of the epoch so far; empty before the first batch."""
        loss, hits, count = self.sums.tolist()
        return {"loss": loss / count, "accuracy": hits / count} if count else {}

    def _split(self, batch: Batch) -> Iterator[tuple[Batch, float, dict[str, Any]]]:
        """The batch in `accumulate` pieces: each with its share of the whole batch, and what the loss needs to know."""
        settings = self.recipe.train
        whole = min(settings.batch_size, len(self.splits.train) - self.batch * settings.batch_size)
        epoch = self.epoch + self.batch / self.batches
        pieces = [tensor.tensor_split(settings.accumulate) for tensor in batch]
        for index, inputs, labels in zip(*pieces, strict=True):
            if len(index):
                extras: dict[str, Any] = {"index": index, "epoch": epoch}
                if (alpha := self.recipe.data.mixup) is not None:
                    draw = (settings.seed, self.epoch, self.batch)
                    inputs, extras["partner"], extras["share"] = mixup(inputs, alpha, *draw)
                extras["past"] = None  # what the best past self predicts, once there is one
                if self.past is not None:
                    with torch.no_grad():
                        extras["past"] = self._logits(self.past, inputs).float().softmax(-1)
                yield (index, inputs, labels), len(index) / whole, extras

    def _logits(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """A forward pass, in the precision of the recipe."""
        if self.recipe.train.precision == "float32":
            return forward(inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            return forward(inputs)

    def measure(self, tick: Callable[[], None]) -> Record:
        """The record of an epoch whose steps are done. Nothing of the loop changes here."""
        settings, epoch = self.recipe.evaluate, self.epoch + 1
        record: Record = {"epoch": epoch, "step": self.schedule.last_epoch}
        record["lr"] = self.schedule.get_last_lr()[0]
        record |= {f"train.{name}": value for name, value in self.figures().items()}
        how: dict[str, Any] = {"ood": self.is_last, "batchnorm": self.statistics}
        how |= {"team": self.team, "tick": tick}
        measure = partial(evaluate, self.recipe, self.splits, self.model, **how)
        if self.is_last or epoch % settings.every == 0:
            record |= measure()
        averaged = settings.averaged_every and epoch % settings.averaged_every == 0
        if (self.is_last or averaged) and (posterior := self.posterior()) is not None:
            record |= measure(posterior=posterior)
        return record

    def posterior(self) -> Posterior | None:
        """The posterior that the optimizer has learned; None if it learns none."""
        make = getattr(self.optimizer, "posterior", None)
        return None if make is None else make(self.model)

    def settle(self) -> None:
        """Between steps: check that the weights are finite, and combine the counts and statistics of all processes."""
        for name, weight in self.model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise DivergedError(self._explain(f"the weight {name} is not finite"))
        self.team.sum_([self.sums])
        if not self.team.writes:
            self.sums.zero_()
        self.team.average_(self.model.buffers())

    def capture(self) -> Checkpoint:
        """Everything that changes, as plain containers and tensors."""
        return {
            "recipe": self.recipe.to_dict(),
            "progress": {name: getattr(self, name) for name in PROGRESS},
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "meter": self.sums,
            "past": None if self.past is None else self.past.state_dict(),
            "random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put a captured state back, to the bit."""
        for name in PROGRESS:
            setattr(self, name, checkpoint["progress"][name])
        for name in ("model", "loss", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(checkpoint[name])
        self.sums.copy_(checkpoint["meter"])
        if checkpoint["past"] is not None:
            self._remember().load_state_dict(checkpoint["past"])
        cpu, *gpus = checkpoint["random"]
        torch.set_rng_state(cpu)
        for device, state in enumerate(gpus[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)

    def _remember(self) -> nn.Module:
        """Keep a copy of the model as it is now: the past self."""
        self.past = deepcopy(self.model).eval().requires_grad_(False)
        return self.past

    def _explain(self, what: str) -> str:
        """What happened, when, the figures that explain it, and what to try."""
        group = self.optimizer.param_groups[0]
        norm = nn.utils.get_total_norm([p.grad for p in self.weights if p.grad is not None])
        before = self.figures().get("loss", math.nan)
        tries = [f"a smaller optimizer.lr (now {group['lr']:.3g})", "train.clip_norm = 1"]
        if "hess_init" in group:
            tries.append(f"a larger optimizer.hess_init (now {group['hess_init']:.3g})")
        if self.schedule.last_epoch < 100:
            tries.append("a schedule with warm-up")
        return (
            f"diverged in epoch {self.epoch + 1}, batch {self.batch + 1}: {what}; gradient norm {norm:.3g}, "
            f"mean loss of the epoch {before:.3g}; the last good checkpoint is kept; try {', '.join(tries)}"
        )


def check_past(recipe: Recipe) -> None:
    """Refuse a recipe in which a loss that learns from its best past self could not know which one that is."""
    name, every, epochs = recipe.loss.name, recipe.evaluate.every, recipe.train.epochs
    if not recipe.data.validation:
        raise InputError(
            f"[loss] {name} learns from its best past self, and only a validation split tells which that is; "
            "set data.validation = 0.1"
        )
    if 1 < epochs <= every:
        raise InputError(
            f"[evaluate] every = {every} of {epochs} epochs: {name} learns from its best past self, and none is known "
            "before the end; set evaluate.every = 1"
        )


class DivergedError(InputError):
    """The loss or the weights are not finite, or the loss has exploded."""
