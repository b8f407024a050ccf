"""How large a study is: which recipes it starts from, which grids and seeds it runs, and what that costs.

`full` starts from the recipes that follow the paper's appendix, and `day` is a part of it for one GPU. `laptop` and
`overnight` keep the methods, the grids and the kind of data, and shrink the rest. `features` replaces pictures by what
a frozen encoder sees, `demo` replaces them by digits. `smoke` only has to run.
"""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bayesmooth.errors import InputError
from bayesmooth.models import MODELS
from bayesmooth.train import Recipe, override, train

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
RHOS = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5)  # the union of the paper's two lists
KAPPAS = (0.1, 0.2, 0.3, 0.4, 0.5)
HESSIANS = (0.01, 0.05, 0.1, 0.2, 0.5, 0.9)
SMALL_RHOS = (0.0, 0.05, 0.1, 0.2, 0.5)
FLIPS = ("symmetric 20 %", "symmetric 40 %", "pairflip 20 %")
NATURAL = "natural noise"

Changes = Mapping[str, Mapping[str, Any]]  # sections of a recipe, with the keys to change
Start = tuple[str, Changes]
"""How the names of recipes begin (`cifar10-symmetric` of `cifar10-symmetric-ivon`), and what to change in them."""


@dataclass(frozen=True)
class Scale:
    """What all studies of a size share; `tasks` by the name that studies use."""

    name: str
    about: str
    tasks: Mapping[str, Start]
    seeds: tuple[int, ...]  # of whole grids
    more_seeds: tuple[int, ...] = ()  # of SGD, IVON, and LS and SAM at the strength that was chosen
    alphas: tuple[float, ...] = ALPHAS
    rhos: tuple[float, ...] = RHOS
    kappas: tuple[float, ...] = KAPPAS
    flips: tuple[str, ...] = FLIPS
    hessians: tuple[float, ...] = HESSIANS  # of the curves over h₀
    chosen_hessians: tuple[float, ...] = ()  # from which validation chooses in each comparison
    rates_by_noise: tuple[str, ...] = ()  # tasks that take the paper's rates from its recipes
    stages: tuple[str, ...] = ("layer1", "layer2", "layer3")  # where ALASCA builds its heads
    noise_samples: int = 64  # of the posterior, to measure the label noise
    flops: float = 1.0  # per second and process, measured; for the expected time
    processes: int = 1  # at a time, in the expected time
    studies: tuple[str, ...] = ()  # for which the scale is meant; empty: all

    def start(self, task: str, noise: str = "") -> Start:
        """Where a task starts, with its own recipes for a kind of noise where the paper has such."""
        if task not in self.tasks:
            raise InputError(
                f"scale {self.name!r} has no {task}; it is for {', '.join(self.studies)}; use another --scale"
            )
        return self.tasks.get(f"{task}, {noise}", self.tasks[task])


def _small(scale: str) -> dict[str, Start]:
    stem = f"small-{scale}"
    return {
        "mnist": (stem, {"data": {"name": "mnist"}}),
        "cifar10": (stem, {}),
        "cifar100": (stem, {"data": {"name": "cifar100"}}),
        "natural": (stem, {"data": {"name": "cifar10n", "labels": "random1"}}),
    }


SMOKE = Scale(
    "smoke",
    "digits of 8 × 8 and a tiny network, for tests: the figures mean nothing",
    dict.fromkeys(("mnist", "cifar10", "cifar100", "natural"), ("smoke", {})),
    seeds=(0,),
    more_seeds=(1,),
    alphas=(0.0, 0.5),
    rhos=(0.0, 0.1),
    kappas=(0.1, 0.5),
    hessians=(0.5, 1.0),
    chosen_hessians=(0.5, 1.0),
    stages=("1", "4"),
    noise_samples=4,
    flops=2e7,
)
DEMO = Scale(
    "demo",
    "digits of scikit-learn, seconds per run, nothing to download",
    {"mnist": ("digits", {})},
    seeds=(0, 1, 2),
    flops=1e9,
    processes=2,
    studies=("demo", "illustration", "mnist-noise"),
)
LAPTOP = Scale(
    "laptop",
    "real data, 4,000 examples, a small network with batch norm that memorises them: two cores",
    _small("laptop"),
    seeds=(0, 1),
    more_seeds=(2, 3, 4),
    rhos=SMALL_RHOS,
    hessians=(0.05, 0.1, 0.2, 0.3, 0.5, 0.9),
    chosen_hessians=(0.1, 0.2, 0.3, 0.9),
    stages=("3", "7", "11"),
    flops=6e10,
    processes=2,
)
OVERNIGHT = Scale(
    "overnight",
    "the same with 20,000 examples, for data-dependent and cifar10-noisy: a night on two cores",
    _small("overnight"),
    seeds=(0,),
    more_seeds=(1, 2),
    alphas=(0.0, 0.1, 0.5, 0.9),
    rhos=SMALL_RHOS,
    kappas=(0.2, 0.4),
    chosen_hessians=(0.05, 0.1, 0.3),
    flops=6e10,
    processes=2,
    studies=("data-dependent", "cifar10-noisy"),
)
FEATURES = Scale(
    "features",
    "8,000 photographs through a frozen encoder, a network on top that memorises them: one core",
    {
        "cifar10": ("features-cifar10", {}),
        "cifar100": ("features-cifar100", {}),
        "natural": ("features-cifar10", {"data": {"path": "features/cifar10n-random1-10000-{split}.npz"}}),
    },
    seeds=(0,),
    more_seeds=(1, 2),
    alphas=(0.0, 0.1, 0.5, 0.9, 0.99),
    rhos=(0.0, 0.2, 0.5, 1.0, 2.0),
    kappas=(0.4, 0.5),
    hessians=(0.0125, 0.025, 0.05, 0.2),
    chosen_hessians=(0.006, 0.0125, 0.025, 0.05, 0.2),
    rates_by_noise=("cifar100",),
    flops=1.2e10,
    studies=("cifar100-noisy", "data-dependent", "cifar10-noisy", "natural-noise"),
)
FULL = Scale(
    "full",
    "the paper's settings, for GPUs",
    {
        # The paper says "3-layers convolutional neural networks" and no more: the rest as on CIFAR-10.
        "mnist": (
            "mnist",
            {
                "data": {"limit": 0, "validation": 0},
                "optimizer": {"hess_init": 0.9, "beta2": 0.9999166666666667},  # 1 − 2/steps
                "evaluate": {"samples": 64},
            },
        ),
        "cifar10": ("cifar10-symmetric", {}),
        "cifar100": ("cifar100-symmetric20", {}),
        "cifar100, symmetric 40 %": ("cifar100-symmetric40", {}),
        "cifar100, pairflip 20 %": ("cifar100-pairflip20", {}),
        "natural": ("clothing1m", {"train": {"channels_last": False}, "evaluate": {"samples": 64, "batch_size": 256}}),
    },
    seeds=(0, 1, 2, 3, 4),
    flops=2e13,
)
DAY = Scale(
    "day",
    "the paper's ResNet-34 on all of CIFAR-10, one seed, three noises: one GPU, about a day",
    {"cifar10": FULL.tasks["cifar10"]},
    seeds=(0,),
    alphas=(0.0, 0.5, 0.9),  # SGD, and the best on test at the scale overnight or near it
    rhos=(0.0, 0.1, 0.2),
    kappas=(0.2, 0.4),
    flips=("symmetric 40 %",),
    flops=2e13,
    studies=("data-dependent", "cifar10-noisy"),
)

SCALES = {scale.name: scale for scale in (SMOKE, DEMO, LAPTOP, OVERNIGHT, FEATURES, DAY, FULL)}
"""The smallest first."""


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise InputError(f"scale {name!r}: must be one of {', '.join(SCALES)}")
    return SCALES[name]


# ---- what a study costs: counted floating-point operations, or the time of a few steps on this machine ----

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
STEPS = 20  # that are timed, after two to warm up
SLOW = 2.0  # seconds per step, above which the two will do


def identify_data(recipe: Recipe) -> str:
    """The data set of a recipe; of embeddings, which: the name of their file.

    >>> identify_data(Recipe.from_dict({"data": {"name": "source", "path": "features/pets-{split}.npz"}}))
    'pets'
    """
    path = recipe.data.options.get("path")
    return Path(path).stem.removesuffix("-{split}") if path else recipe.data.name


@cache
def model_flops(name: str, options: tuple[tuple[str, Any], ...], classes: int, shape: tuple[int, ...]) -> float:
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


def run_flops(recipe: Recipe, noise_samples: int = 0) -> float:
    """Those of a whole run: training, the test at the end, and the label noise; a forward pass is a third."""
    _, test, classes, shape = SIZES[identify_data(recipe)]
    options = tuple(sorted(recipe.model.options.items()))
    once, examples = model_flops(recipe.model.name, options, classes, shape), count_examples(recipe)
    trained = recipe.train.epochs * examples * PASSES.get(recipe.optimizer.name, 1)
    sampled = recipe.optimizer.name in ("ivon", "bsam")
    averaged, noisy = (recipe.evaluate.samples, noise_samples) if sampled else (0, 0)
    return once * (trained + test * (1 + averaged) / 3 + examples * noisy / 3)


def count_examples(recipe: Recipe) -> int:
    """How many examples it trains on."""
    known = recipe.data.limit or SIZES[identify_data(recipe)][0]
    return round(known * (1 - recipe.data.validation))


def expected_seconds(recipes: Iterable[Recipe], scale: Scale, *, noise: bool = False) -> float:
    """At the speed that was measured for the scale, with as many runs at a time as it is meant for."""
    samples = scale.noise_samples if noise else 0
    flops = sum(run_flops(recipe, samples) for recipe in recipes)
    return flops / (scale.flops * scale.processes)


def time_steps(recipes: Iterable[Recipe], device: str | None = None) -> dict[str, tuple[float, int]]:
    """By optimizer: seconds of a step, measured on this machine by training a little, and the steps of all its runs."""
    found: dict[str, tuple[float, int]] = {}
    for recipe in recipes:
        name, size = recipe.optimizer.name, recipe.train.batch_size
        seconds, before = found.get(name) or (time_step(recipe, device), 0)
        steps = recipe.train.epochs * -(-count_examples(recipe) // size)
        found[name] = seconds, before + steps
    return found


def time_step(recipe: Recipe, device: str | None = None) -> float:
    """Seconds of a training step: two steps to warm up, then more if they are short."""
    seconds = 0.0
    for steps in (2, STEPS):
        few = steps * recipe.train.batch_size
        short = [f"data.limit={few}", "data.validation=0.0", "train.epochs=1", "evaluate.every=1"]
        short += ["evaluate.samples=1", "evaluate.test_limit=2", f"evaluate.batchnorm={few}"]
        with tempfile.TemporaryDirectory() as folder:
            small = Recipe.from_dict(override(recipe.to_dict(), short))
            run = train(small, Path(folder) / "run", device=device, quiet=True)
            seconds = run.seconds() / steps
        if seconds > SLOW:
            break
    return seconds
