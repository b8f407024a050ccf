"""How large a study is (scales.toml), and what that costs in counted operations."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.train import Recipe

KAPPA, NATURAL = "κ = {:g}", "natural noise"
Task = Mapping[str, Any]
"""`recipe`, the beginning of its recipes' names; and the sections with the keys to change in them."""


@dataclass(frozen=True)
class Scale:
    """What all studies of a size share; `tasks` by the name that studies use."""

    name: str
    about: str
    tasks: Mapping[str, Task]
    seeds: tuple[int, ...]  # of whole grids
    more_seeds: tuple[int, ...] = ()  # of SGD, IVON, and LS and SAM at the strength that was chosen
    alphas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    rhos: tuple[float, ...] = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5)  # the union of the paper's two lists
    kappas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    flips: tuple[str, ...] = ("symmetric 20 %", "symmetric 40 %", "pairflip 20 %")
    hessians: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2, 0.5, 0.9)  # of the curves over h₀
    chosen_hessians: tuple[float, ...] = ()  # from which validation chooses in each comparison
    rates_by_noise: tuple[str, ...] = ()  # tasks that take the paper's rates from its recipes
    noise_samples: int = 64  # of the posterior, to measure the label noise
    flops: float = 1.0  # per second and process, measured; for the expected time
    processes: int = 1  # at a time, in the expected time
    studies: tuple[str, ...] = ()  # for which the scale is meant; empty: all

    def task(self, name: str, noise: str) -> Task:
        """A task, with its own recipes for a kind of noise where the paper has such."""
        if name not in self.tasks:
            wanted = ", ".join(self.studies)
            raise InputError(f"scale {self.name!r} has no {name}; it is for {wanted}; use another --scale")
        return self.tasks.get(f"{name}, {noise}", self.tasks[name])


def read_scale(name: str, tree: Mapping[str, Any]) -> Scale:
    """A table of scales.toml."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
    return Scale(name, **fields)


TABLES = tomllib.loads((Path(__file__).parent / "scales.toml").read_text("utf-8"))
SCALES = {name: read_scale(name, tree) for name, tree in TABLES.items()}  # the smallest first

SIZES = {  # examples to train on, and to test with
    "digits": (1_438, 359),
    "mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar10n": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "cifar10-10000": (10_000, 5_000),
    "cifar10n-random1-10000": (10_000, 5_000),
    "cifar100-10000": (10_000, 5_000),
    "clothing1m": (1_000_000, 10_526),
}
# of a forward and a backward pass, per example, as torch's FlopCounterMode counts them at the usual size of inputs
FLOPS = {"mlp": 8.1e5, "cnn": 1.1e7, "cnn_batchnorm": 1.5e7, "resnet34": 6.95e9, "resnet50": 2.43e10}
PASSES = {"sam": 2}  # forward and backward passes per step; 1 for the others


def identify_data(recipe: Recipe) -> str:
    """The data set of a recipe; of embeddings, which: the name of their file.

    >>> identify_data(Recipe.from_dict({"data": {"name": "source", "path": "features/pets-{split}.npz"}}))
    'pets'
    """
    path = recipe.data.options.get("path")
    return Path(path).stem.removesuffix("-{split}") if path else recipe.data.name


def run_flops(recipe: Recipe) -> float:
    """Those of a whole run: training, and the test at the end; a forward pass is a third."""
    known, tested = SIZES[identify_data(recipe)]
    examples = round((recipe.data.limit or known) * (1 - recipe.data.validation))
    trained = recipe.train.epochs * examples * PASSES.get(recipe.optimizer.name, 1)
    averaged = recipe.evaluate.samples if recipe.optimizer.name == "ivon" else 0
    return FLOPS[recipe.model.name] * (trained + tested * (1 + averaged) / 3)
