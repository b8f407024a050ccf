"""The training loop. It knows no method by name: the loss softens the label, the optimizer moves the weights.

`State` is everything that changes while a run goes on; `Loop` takes its steps and measures; a run that has lost its way
is stopped with a diagnosis, before it can spoil its checkpoint.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesmooth.data import AUGMENTATIONS, Examples, batches, count_batches
from bayesmooth.errors import InputError
from bayesmooth.lab.distributed import ALONE, Team
from bayesmooth.lab.evaluate import evaluate, statistics_batches
from bayesmooth.lab.options import BASE, build, builder_of
from bayesmooth.lab.pretrained import check_logits, evaluate_frozen, freeze, start_from
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.splits import Splits
from bayesmooth.losses import Loss
from bayesmooth.models import weights_from
from bayesmooth.optim.schedule import scheduler
from bayesmooth.posterior import Posterior, recompute_batchnorm

Batch = tuple[Tensor, Tensor, Tensor]
"""Positions in the training set, inputs, labels."""

Checkpoint = dict[str, Any]
"""A state as plain containers and tensors."""

PROGRESS = ("epoch", "batch", "best", "best_epoch")
EXPLODED = 1e6  # no classification loss that can still learn is larger


class Meter:
    """Sums of loss and hits over the examples of an epoch: on the device, and read only when somebody looks."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a batch whose mean loss is `loss`."""
        hits = (logits.argmax(-1) == labels).sum()
        self.sums += torch.stack(
            [loss.detach().double() * len(labels), hits, hits.new_tensor(len(labels))]
        )

    def join(self, team: Team) -> None:
        """Bring the counts of all processes together in the first one."""
        team.sum_([self.sums])
        if not team.writes:
            self.sums.zero_()

    def clear(self) -> None:
        """Begin again at zero."""
        self.sums.zero_()

    def numbers(self) -> dict[str, float]:
        """Mean loss and accuracy; empty before the first batch."""
        loss, hits, count = self.sums.tolist()
        return {"loss": loss / count, "accuracy": hits / count} if count else {}


@dataclass
class State:
    """The learner, and how far it has come."""

    model: nn.Module
    loss: Loss
    optimizer: Optimizer
    schedule: LRScheduler
    meter: Meter
    past: nn.Module | None = None  # the best self so far, for losses that need it
    epoch: int = 0  # complete ones
    batch: int = 0  # of the next epoch, done
    best: float = -1.0  # accuracy on the noisy validation split
    best_epoch: int = 0

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer trains."""
        yield from self.model.parameters()
        yield from self.loss.parameters()

    def capture(self, recipe: Recipe) -> Checkpoint:
        """All of it as plain containers and tensors."""
        return {
            "recipe": recipe.to_dict(),
            "progress": {name: getattr(self, name) for name in PROGRESS},
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "meter": self.meter.sums,
            "past": None if self.past is None else self.past.state_dict(),
            "random": random_state(),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put a captured state back, to the bit."""
        for name in PROGRESS:
            setattr(self, name, checkpoint["progress"][name])
        self.model.load_state_dict(checkpoint["model"])
        self.loss.load_state_dict(checkpoint["loss"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.schedule.load_state_dict(checkpoint["schedule"])
        self.meter.sums.copy_(checkpoint["meter"])
        if checkpoint["past"] is not None:
            self.remember()
            assert self.past is not None
            self.past.load_state_dict(checkpoint["past"])
        set_random_state(checkpoint["random"])

    def remember(self) -> None:
        """Keep a copy of the model as it is now: the past self."""
        self.past = deepcopy(self.model).eval().requires_grad_(False)


def begin(recipe: Recipe, splits: Splits, device: torch.device) -> State:
    """Model, loss, optimizer and schedule, as the recipe names them."""
    train, seed = splits.train, recipe.train.seed
    facts: dict[str, Any] = {
        "num_classes": train.num_classes,
        "num_examples": len(train),
        "seed": seed,
    }
    model = make_model(recipe, input_shape=train.input_shape, **facts).to(device)
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if splits.corruption is not None:
        facts["transition"] = torch.from_numpy(splits.corruption.matrix)
    loss: Loss = make(recipe, "loss", **facts).to(device)
    if "past" in loss.needs:
        _check_past(recipe, splits)
    first = train.batch(torch.arange(1)).to(device)
    if ":" in recipe.model.name:
        with section_named(recipe, "model"):
            check_logits(model, first, train.num_classes)
    loss.attach(model, first)
    weights = [p for p in (*model.parameters(), *loss.parameters()) if p.requires_grad]
    epochs = recipe.train.epochs
    steps = epochs * count_batches(len(train), recipe.train.batch_size)
    length = {"epochs": float(epochs), "steps": steps, "ess": float(len(train))}
    optimizer: Optimizer = make(
        recipe, "optimizer", params=weights, base_optimizer=BASE, seed=seed, **length
    )
    schedule = scheduler(optimizer, recipe.schedule.name, steps, **recipe.schedule.options)
    return State(model, loss, optimizer, schedule, Meter(device))


def _check_past(recipe: Recipe, splits: Splits) -> None:
    """A loss that learns from the best of its past needs to know which that is, and before the end."""
    name, every, epochs = recipe.loss.name, recipe.evaluate.every, recipe.train.epochs
    if splits.validation is None:
        raise InputError(
            f"[loss] {name} learns from its best past self, and without a validation split there is no "
            "telling which that is; set data.validation = 0.1"
        )
    if 1 < epochs <= every:
        raise InputError(
            f"[evaluate] every = {every} of {epochs} epochs: {name} learns from its best past self, and none is known "
            "before the end; set evaluate.every = 1"
        )


def make(recipe: Recipe, section: str, **supplied: Any) -> Any:
    """What a section of the recipe chooses."""
    choice = getattr(recipe, section)
    with section_named(recipe, section):
        return build(builder_of(section, choice.name), choice.options, **supplied)


def make_model(recipe: Recipe, *, pretrained: bool = True, **facts: Any) -> nn.Module:
    """The network that a run starts with; `pretrained=False` where its weights are about to be replaced."""
    section = recipe.model
    with weights_from(recipe.train.seed):
        model: nn.Module = make(recipe, "model", pretrained=pretrained, **facts)
    with section_named(recipe, "model"):
        if not isinstance(model, nn.Module):
            raise InputError(f"it gives a {type(model).__name__}; it must give a torch.nn.Module")
        if section.weights is not None and pretrained:
            start_from(model, section.weights, bool(section.new_head))
        if section.freeze is not None:
            freeze(model, section.freeze)
    return model


@contextmanager
def section_named(recipe: Recipe, section: str) -> Iterator[None]:
    """An error inside says which section it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"[{section}] {getattr(recipe, section).name}: {error}") from None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generators (dropout draws from them) start at `seed`; afterwards they are as before."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def random_state() -> list[torch.Tensor]:
    """Torch's global generators: the CPU's, then every GPU's."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def set_random_state(states: list[torch.Tensor]) -> None:
    """Put `random_state` back."""
    torch.set_rng_state(states[0])
    for device, state in enumerate(states[1 : 1 + torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)


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
        self.how["batchnorm"] = statistics_batches(self.recipe, self.splits, model, self.device)
        # What a model reaches that knows nothing but the most frequent label, and is lucky.
        share = float(self.splits.train.labels.bincount().max()) / len(self.splits.train)
        self.guessing = share + 2 * (share * (1 - share) / len(self.splits.train)) ** 0.5
        # Reading the loss makes a GPU wait for it, so that is done now and then; the CPU has it at hand.
        self.check_every = 1 if self.device.type == "cpu" else 20

    def steps(self) -> Iterator[State]:
        """The rest of an epoch, one step at a time."""
        state, settings = self.state, self.recipe.train
        state.model.train()
        if self.recipe.model.freeze is not None:
            evaluate_frozen(state.model)
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

    def measure(self, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
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
            record |= evaluate(state.model, *known, tick=tick, **self.how)
        if last or (settings.averaged_every and epoch % settings.averaged_every == 0):
            held = self.splits.validation
            record |= self.averaged(self.splits.test, validation=held, tick=tick)
        return record

    def measure_foreign(self) -> dict[str, float]:
        """How well the model distinguishes the recipe's other data set, if it names one, from the test set."""
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
        if (inputs := self.how["batchnorm"]) is not None:
            recompute_batchnorm(self.state.model, inputs)


def posterior_of(state: State) -> Posterior | None:
    """What the optimizer knows about the spread of the weights, if it knows."""
    make = getattr(state.optimizer, "posterior", None)
    return None if make is None else make(state.model)


class DivergedError(InputError):
    """The loss or the weights are not finite, or the loss has exploded."""


def check_loss(state: State, loss: float) -> None:
    """Stop if the loss of the last step shows that training has failed."""
    if not math.isfinite(loss) or loss > EXPLODED:
        raise DivergedError(diagnose(state, f"the loss is {loss:.3g}"))


def check_weights(state: State) -> None:
    """Stop if a weight is not finite; called before every checkpoint."""
    for name, weight in state.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise DivergedError(diagnose(state, f"the weight {name} is not finite"))


def diagnose(state: State, what: str) -> str:
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
