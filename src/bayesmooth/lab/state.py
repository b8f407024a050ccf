"""Everything that changes while a run goes on, built from a recipe, captured into a checkpoint and restored from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesmooth.data import count_batches
from bayesmooth.errors import InputError
from bayesmooth.lab.checkpoint import Checkpoint
from bayesmooth.lab.choices import BASE, CHOICES
from bayesmooth.lab.meter import Meter
from bayesmooth.lab.options import build
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.splits import Splits
from bayesmooth.losses import Loss
from bayesmooth.optim.schedule import scheduler


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


PROGRESS = ("epoch", "batch", "best", "best_epoch")


def begin(recipe: Recipe, splits: Splits, device: torch.device) -> State:
    """Model, loss, optimizer and schedule, as the recipe names them."""
    train, seed = splits.train, recipe.train.seed
    facts: dict[str, Any] = {
        "num_classes": train.num_classes,
        "num_examples": len(train),
        "seed": seed,
    }
    model: nn.Module = make(recipe, "model", input_shape=train.input_shape, **facts).to(device)
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if splits.corruption is not None:
        facts["transition"] = torch.from_numpy(splits.corruption.matrix)
    loss: Loss = make(recipe, "loss", **facts).to(device)
    if "past" in loss.needs:
        _check_past(recipe, splits)
    loss.attach(model, train.batch(torch.arange(1)).to(device))
    weights = [*model.parameters(), *loss.parameters()]
    optimizer: Optimizer = make(
        recipe, "optimizer", params=weights, base_optimizer=BASE, ess=float(len(train)), seed=seed
    )
    steps = recipe.train.epochs * count_batches(len(train), recipe.train.batch_size)
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
    """What a section of the recipe chooses; an error says which section it is about."""
    choice = getattr(recipe, section)
    try:
        return build(CHOICES[section][1][choice.name], choice.options, **supplied)
    except InputError as error:
        raise InputError(f"[{section}] {choice.name}: {error}") from None


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
