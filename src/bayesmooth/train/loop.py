"""The training loop. It knows no method by name: the loss softens the label, the optimizer moves the weights.

`Loop` is a recipe at work on its data. When the loss explodes or a weight is not finite, it stops with a diagnosis
before the checkpoint is overwritten.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesmooth.calling import evaluating, recompute_batchnorm
from bayesmooth.data import AUGMENTATIONS, batches, mixup
from bayesmooth.data.draws import Batch, read_ahead
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors
from bayesmooth.losses import Loss
from bayesmooth.models import load_weights, weights_from
from bayesmooth.optim.schedule import LONG, scheduler, warn_if_nothing_is_learned
from bayesmooth.posterior import Posterior
from bayesmooth.train.evaluate import Splits, evaluate, is_frozen, statistics_batches
from bayesmooth.train.recipe import BASE, Recipe

Checkpoint = dict[str, Any]  # a loop as plain containers and tensors
Record = dict[str, Any]  # the figures of an epoch

PROGRESS = ("epoch", "batch", "best", "records", "seconds")
EXPLODED = 1e6  # no classification loss that can still learn is larger


class DivergedError(InputError):
    """The loss or the weights are not finite, or the loss has exploded."""


def make_model(recipe: Recipe, *, pretrained: bool = True, **facts: Any) -> nn.Module:
    """The network that a run starts with; `pretrained=False` where its weights are about to be replaced."""
    section = recipe.model
    with weights_from(recipe.train.seed):
        model: nn.Module = recipe.make("model", pretrained=pretrained, **facts)
    with name_errors(f"[model] {section.name}"):
        if not isinstance(model, nn.Module):
            raise InputError(f"it gives a {type(model).__name__}; it must give a torch.nn.Module")
        if section.weights is not None and pretrained:
            load_weights(model, section.weights, bool(section.new_head))
    return model


class Loop:
    """A recipe at work on its data: the learner, its progress, and the steps that it takes.

    Attributes:
        model, loss, optimizer, schedule: as the recipe names them.
        sums: of the loss, the hits and the examples of the epoch so far; on the device until they are read.
        past: the best self so far, for losses that need it.
        epoch: the number of complete ones.
        batch: the number of batches done in the next epoch.
        best: the epoch with the best accuracy on the noisy validation split, and that accuracy.
        records, seconds: the figures of the epochs so far, and the time that their steps took.
    """

    def __init__(self, recipe: Recipe, splits: Splits, device: torch.device) -> None:
        splits = splits.to(device)
        self.recipe, self.splits, self.device = recipe, splits, device
        settings, train = recipe.train, splits.train
        self.batches = math.ceil(len(train) / settings.batch_size)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.past: nn.Module | None = None
        self.epoch = self.batch = 0
        self.seconds, self.records = 0.0, list[Record]()
        self.best: Record = {"epoch": 0, "accuracy": -1.0}
        # Reading the loss makes a GPU wait, so there it is checked only now and then.
        self.check_every = 1 if device.type == "cpu" else 20
        self.precision: Any = nullcontext()
        if settings.precision == "bfloat16":
            self.precision = torch.autocast(device.type, torch.bfloat16)

        facts: dict[str, Any] = {"num_classes": train.num_classes, "num_examples": len(train)}
        facts |= {"input_shape": train.input_shape, "seed": settings.seed}
        if splits.corruption is not None:
            facts["transition"] = torch.from_numpy(splits.corruption.matrix)
        self.model = make_model(recipe, **facts).to(device)
        if settings.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        first = train.batch(torch.arange(1, device="cpu")).to(device)
        if ":" in recipe.model.name:
            self._check_logits(first)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if settings.compile else self.model
        self.frozen = [part for part in self.model.modules() if is_frozen(part)]
        self.statistics = statistics_batches(recipe, splits, self.model)
        self.loss: Loss = recipe.make("loss", **facts).to(device)
        self.loss.attach(self.model, first)
        share, every = recipe.data.validation, recipe.evaluate.every
        if "past" in self.loss.needs and (not share or 1 < settings.epochs <= every):
            raise InputError(
                f"[loss] {recipe.loss.name} learns from its best past self by validation, and with data.validation = "
                f"{share} and evaluate.every = {every} it has none; set data.validation = 0.1, evaluate.every = 1"
            )
        self.weights = [*self.model.parameters(), *self.loss.parameters()]
        self.total = settings.epochs * self.batches
        facts |= {"params": [weight for weight in self.weights if weight.requires_grad], "base_optimizer": BASE}
        facts |= {"ess": float(len(train)), "epochs": float(settings.epochs), "steps": self.total}
        self.optimizer: Optimizer = recipe.make("optimizer", **facts)
        self.schedule = scheduler(self.optimizer, recipe.schedule.name, self.total, **recipe.schedule.options)

    def epochs(self, check: Callable[..., None]) -> Iterator[Record]:
        """Train to the end; yield the figures of every epoch.

        `check(between_steps=True)` is called between two steps, `check()` within an evaluation; it may raise, to stop.
        """
        while self.epoch < self.recipe.train.epochs:
            start = time.monotonic()
            for _ in self.steps():
                check(between_steps=True)
            self.seconds += time.monotonic() - start
            self.check_weights()
            record = self.measure(check)
            done = record["step"]
            if done == self.total and self.statistics is not None:
                # A finished model predicts at the mean, so BatchNorm's statistics become those of the mean.
                recompute_batchnorm(self.model, self.statistics)
            if done - self.batches < max(self.total / 3, LONG) <= done:
                advice = f"after {done} of {self.total} steps; try another optimizer.lr, or less noise"
                warn_if_nothing_is_learned(record["train.accuracy"], self.splits.train.labels.numbers, advice)
            self.loss.end_epoch()
            self.epoch, self.batch = self.epoch + 1, 0
            self.sums.zero_()
            self.records.append(record)
            if (accuracy := record.get("validation.accuracy", -1.0)) > self.best["accuracy"]:
                self.best = {"epoch": self.epoch, "accuracy": accuracy}
                if "past" in self.loss.needs:
                    self._remember()
            yield record

    def steps(self) -> Iterator[None]:
        """The rest of an epoch, one step at a time."""
        settings = self.recipe.train
        self.model.train()
        for part in self.frozen:
            part.eval()  # BatchNorm keeps its statistics, dropout is off
        order = {"seed": settings.seed, "epoch": self.epoch, "start": self.batch}
        augment = AUGMENTATIONS[self.recipe.data.augment]
        read = batches(self.splits.train, settings.batch_size, augment=augment, **order)
        for index, inputs, labels in read_ahead(read, self.device):
            if settings.channels_last and inputs.ndim == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            self.step((index, inputs, labels))
            self.batch += 1
            yield

    def step(self, batch: Batch) -> None:
        """One step of the optimizer, which calls the closure as often as it likes."""
        index, inputs, labels = batch
        settings, alpha = self.recipe.train, self.recipe.data.mixup
        extras: dict[str, Any] = {"index": index, "epoch": self.epoch + self.batch / self.batches}
        if alpha is not None:
            draw = (settings.seed, self.epoch, self.batch)
            inputs, extras["partner"], extras["share"] = mixup(inputs, alpha, *draw)
        extras["past"] = None  # predictions of the best past self, once there is one
        if self.past is not None:
            with torch.no_grad(), self.precision:
                extras["past"] = self.past(inputs).float().softmax(-1)
        logits: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with self.precision:
                outputs = self.forward(inputs)
            loss = self.loss(outputs, labels, **extras)
            loss.backward()
            logits.append(outputs.detach())
            if math.isfinite(settings.clip_norm):
                nn.utils.clip_grad_norm_(self.weights, settings.clip_norm)
            value: Tensor = loss.detach()
            return value

        try:
            loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment, arg-type]
        except ValueError as error:
            if len(labels) > 1 or isinstance(error, InputError):
                raise
            raise InputError(
                f"[train] batch_size = {settings.batch_size}: the last batch has one example ({error}); choose another"
            ) from None
        self.schedule.step()
        if self.batch % self.check_every == 0 and not -math.inf < float(loss) <= EXPLODED:
            raise DivergedError(self._explain(f"the loss is {float(loss):.3g}"))
        # The first of several calls counts: SAM makes it at the weights themselves.
        self.sums[0] += loss.detach() * len(labels)
        self.sums[1] += (logits[0].argmax(-1) == labels).sum()
        self.sums[2] += len(labels)  # a number, not a tensor that would have to be sent

    def figures(self) -> dict[str, float]:
        """Mean loss and accuracy of the epoch so far; empty before the first batch."""
        loss, hits, count = self.sums.tolist()
        return {"loss": loss / count, "accuracy": hits / count} if count else {}

    def measure(self, tick: Callable[[], None]) -> Record:
        """The record of an epoch whose steps are done. Nothing of the loop changes here."""
        epoch = self.epoch + 1
        last = epoch == self.recipe.train.epochs
        record: Record = {"epoch": epoch, "step": self.schedule.last_epoch, "lr": self.schedule.get_last_lr()[0]}
        record |= {f"train.{name}": value for name, value in self.figures().items()}
        if last or epoch % self.recipe.evaluate.every == 0:
            options: dict[str, Any] = {"posterior": self.posterior() if last else None, "batchnorm": self.statistics}
            record |= evaluate(self.recipe, self.splits, self.model, tick=tick, **options)
        return record

    def posterior(self) -> Posterior | None:
        """The posterior that the optimizer has learned; None if it learns none."""
        make = getattr(self.optimizer, "posterior", None)
        return None if make is None else make(self.model)

    def check_weights(self) -> None:
        """Refuse to go on, or to save, with weights that are not finite."""
        for name, weight in self.model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise DivergedError(self._explain(f"the weight {name} is not finite"))

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

    def _check_logits(self, inputs: Tensor) -> None:
        """Try a model of the user's on one example: a wrong shape is refused here, where it can be named."""
        with evaluating(self.model), torch.no_grad():
            logits = self.model(inputs)
        shape = (1, self.splits.train.num_classes)
        what = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        if what != shape:
            raise InputError(
                f"[model] {self.recipe.model.name}: it gives {what} for inputs of shape {tuple(inputs.shape)}; "
                f"it must give logits of shape {shape}"
            )

    def _remember(self) -> nn.Module:
        """Keep a copy of the model as it is now: the past self."""
        self.past = deepcopy(self.model).eval().requires_grad_(False)
        return self.past

    def _explain(self, what: str) -> str:
        """The message of a divergence: its cause and place, the figures that explain it, and a way out."""
        group = self.optimizer.param_groups[0]
        norm = nn.utils.get_total_norm([p.grad for p in self.weights if p.grad is not None])
        hessian = f", a larger optimizer.hess_init (now {group['hess_init']:.3g})" if "hess_init" in group else ""
        return (
            f"diverged in epoch {self.epoch + 1}, batch {self.batch + 1}: {what}; gradient norm {norm:.3g}, "
            f"mean loss of the epoch {self.figures().get('loss', math.nan):.3g}; the last good checkpoint is kept; "
            f"try a smaller optimizer.lr (now {group['lr']:.3g}), train.clip_norm = 1, a schedule with warm-up{hessian}"
        )
