"""What a study costs: counted floating-point operations, or the time of a few steps on this machine."""

import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bayesmooth.models import MODELS
from bayesmooth.train import Recipe, train
from reproduce.methods import identify_data, merge
from reproduce.scale import Scale

# examples to train on, test examples, classes, shape: what `data` says once the files are there
SIZES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "digits": (1_438, 359, 10, (1, 8, 8)),
    "mnist": (60_000, 10_000, 10, (1, 28, 28)),
    "cifar10": (50_000, 10_000, 10, (3, 32, 32)),
    "cifar10n": (50_000, 10_000, 10, (3, 32, 32)),
    "cifar100": (50_000, 10_000, 100, (3, 32, 32)),
    "cifar10-10000": (10_000, 5_000, 10, (256,)),
    "cifar10n-random1-10000": (10_000, 5_000, 10, (256,)),
    "cifar100-10000": (10_000, 5_000, 100, (256,)),
    "clothing1m": (1_000_000, 10_526, 14, (3, 224, 224)),
}
PASSES = {"sam": 2, "bsam": 2}  # forward and backward passes per step; 1 for the others
STEPS, SLOW = (
    20,
    2.0,
)  # steps that are timed, after two; above so many seconds per step the two will do


@cache
def model_flops(
    name: str, options: tuple[tuple[str, Any], ...], classes: int, shape: tuple[int, ...]
) -> float:
    """Floating-point operations of one forward and backward pass, per example.

    >>> model_flops("linear", (), 10, (1, 8, 8))
    2560.0
    """
    with torch.device("meta"):
        model = MODELS[name](num_classes=classes, input_shape=shape, **dict(options))
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.empty(2, *shape, dtype=torch.float32, device="cpu")).sum().backward()
    return counter.get_total_flops() / 2


def run_flops(recipe: Recipe) -> float:
    """Those of a whole run: training, and the test at the end (a forward pass is a third)."""
    _, test, classes, shape = SIZES[identify_data(recipe)]
    options = tuple(sorted(recipe.model.options.items()))
    once = model_flops(recipe.model.name, options, classes, shape)
    trained = recipe.train.epochs * count_examples(recipe) * PASSES.get(recipe.optimizer.name, 1)
    averaged = recipe.evaluate.samples if recipe.optimizer.name in ("ivon", "bsam") else 0
    return once * (trained + test * (1 + averaged) / 3)


def count_examples(recipe: Recipe) -> int:
    """How many examples it trains on."""
    known = recipe.data.limit or SIZES[identify_data(recipe)][0]
    return round(known * (1 - recipe.data.validation))


def expected_seconds(recipes: Iterable[Recipe], scale: Scale) -> float:
    """At the speed that was measured for the scale, with as many runs at a time as it is meant for."""
    return sum(map(run_flops, recipes)) / (scale.flops * scale.processes)


def time_steps(
    recipes: Iterable[Recipe], device: str | None = None
) -> dict[str, tuple[float, int]]:
    """By optimizer: seconds of a step, measured on this machine by training a little, and the steps of all its runs."""
    found: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        found.setdefault(recipe.optimizer.name, []).append(recipe)
    return {
        name: (time_step(own[0], device), sum(map(count_steps, own))) for name, own in found.items()
    }


def count_steps(recipe: Recipe) -> int:
    """The steps of a whole run."""
    return recipe.train.epochs * -(-count_examples(recipe) // recipe.train.batch_size)


def time_step(recipe: Recipe, device: str | None = None) -> float:
    """Seconds of a training step: two steps to warm up, then more if they are short."""
    seconds = 0.0
    for steps in (2, STEPS):
        few = steps * recipe.train.batch_size
        short: Mapping[str, dict[str, Any]] = {
            "data": {"limit": few, "validation": 0.0},
            "train": {"epochs": 1},
            "evaluate": {"every": 1, "samples": 1, "test_limit": 2, "batchnorm": few},
        }
        with tempfile.TemporaryDirectory() as folder:
            small = Recipe.from_dict(merge(recipe.to_dict(), short))
            run = train(small, Path(folder) / "run", device=device, quiet=True)
            seconds = run.seconds() / steps
        if seconds > SLOW:
            break
    return seconds
