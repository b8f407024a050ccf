"""What a study costs: floating-point operations of its runs, counted, and the time they take."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bayesmooth.models import MODELS
from bayesmooth.train import Recipe
from reproduce.methods import identify_data
from reproduce.scale import Scale

# examples to train on, test examples, classes, shape: what `data` says once the files are there
SIZES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "digits": (1_438, 359, 10, (1, 8, 8)),
    "mnist": (60_000, 10_000, 10, (1, 28, 28)),
    "cifar10": (50_000, 10_000, 10, (3, 32, 32)),
    "cifar10n": (50_000, 10_000, 10, (3, 32, 32)),
    "cifar100": (50_000, 10_000, 100, (3, 32, 32)),
    "cifar10-10000": (10_000, 5_000, 10, (256,)),
    "cifar10-all": (50_000, 10_000, 10, (256,)),
    "cifar10n-random1-10000": (10_000, 5_000, 10, (256,)),
    "cifar100-10000": (10_000, 5_000, 100, (256,)),
    "clothing1m": (1_000_000, 10_526, 14, (3, 224, 224)),
}
PASSES = {"sam": 2, "bsam": 2}  # forward and backward passes per step; 1 for the others


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
    examples, test, classes, shape = SIZES[identify_data(recipe)]
    count = round((recipe.data.limit or examples) * (1 - recipe.data.validation))
    options = tuple(sorted(recipe.model.options.items()))
    once = model_flops(recipe.model.name, options, classes, shape)
    trained = recipe.train.epochs * count * PASSES.get(recipe.optimizer.name, 1)
    averaged = recipe.evaluate.samples if recipe.optimizer.name in ("ivon", "bsam") else 0
    return once * (trained + test * (1 + averaged) / 3)


def expected_seconds(recipes: Iterable[Recipe], scale: Scale) -> float:
    """At the speed that was measured for the scale, with as many runs at a time as it is meant for."""
    return sum(map(run_flops, recipes)) / (scale.flops * scale.processes)
