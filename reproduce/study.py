"""What a figure is: its cells with their recipes, its drawing, its claims; and how large it is, its scale.

A cell is a place in a figure: noise, method, its strength, seed; `Scale` knows the recipe that fills it.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.train import Recipe, Run, read_recipe
from reproduce.table import Claim, Table

Section = Mapping[str, Any]
Task = Mapping[str, Any]
"""`recipe`, the beginning of its recipes' names; and the sections with the keys to change in them."""
TEXTS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "studies.toml").read_text("utf-8"))
"""By study: its `title`, what it `shows`; and of the paper, the label of the `figure`, its `caption`, the `reason` why
ours may differ. The demo first, then the paper's order."""
KAPPA, NATURAL = "κ = {:g}", "natural noise"
NOISES: dict[str, Section] = {
    "none": {},
    NATURAL: {},  # the labels as they came
    "symmetric 20 %": {"name": "symmetric", "rate": 0.2},
    "symmetric 40 %": {"name": "symmetric", "rate": 0.4},
    "pairflip 20 %": {"name": "pairflip", "rate": 0.2},
    **{KAPPA.format(k): {"name": "data_dependent", "kappa": k, "beta": 0.05} for k in (0.1, 0.2, 0.3, 0.4, 0.5)},
}
"""What figures call a noise, and the section of a recipe that makes it; κ: n_i = κ + .05 i  (equ: diagonal noise)."""

LOOKS = 15  # at the validation split: where the best epoch is stopped at
TUNED_BY_PAPER = ("lr", "weight_decay", "hess_init")  # what its table of CIFAR-100 gives by noise


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A place in a figure, and the run that fills it; two places may share one (α = 0 and ρ = 0 are both SGD)."""

    recipe: Recipe
    noise: str | None = None
    method: str
    strength: float | None = None
    seed: int

    @property
    def labels(self) -> dict[str, Any]:
        """What a table and the display call it by."""
        return {key: value for key, value in vars(self).items() if key != "recipe" and value is not None}


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
    rates_by_noise: tuple[str, ...] = ()  # tasks that take the paper's rates from its recipes, under noise
    grids: Mapping[str, Section] = field(default_factory=dict)  # by study, for those that have grids of their own
    noise_samples: int = 64  # of the posterior, to measure the label noise
    studies: tuple[str, ...] = ()  # for which the scale is meant; empty: all

    def recipe(
        self, task: str, method: str, noise: str = "none", seed: int = 0, loss: Section | None = None, **keys: Section
    ) -> Recipe:
        """The shipped recipe of a method (ls, sam or ivon) with these keys, another loss, and the looks it needs."""
        if task not in self.tasks:
            wanted = ", ".join(self.studies)
            raise InputError(f"scale {self.name!r} has no {task}; it is for {wanted}; use another --scale")
        # The paper has recipes of its own for some kinds of noise.
        own, paper = (dict(tasks.get(f"{task}, {noise}", tasks[task])) for tasks in (self.tasks, SCALES["full"].tasks))
        tree = read_recipe(f"{own.pop('recipe')}-{method}")
        by_noise = task in self.rates_by_noise and noise != "none"
        given = read_recipe(f"{paper['recipe']}-{method}")["optimizer"] if by_noise else {}
        rates = {key: given[key] for key in TUNED_BY_PAPER if key in given}
        # Digits come with the right labels, so at smoke scale some are flipped.
        flipped = self.name == "smoke" and noise == NATURAL
        tree["corruption"] = dict(NOISES["symmetric 40 %" if flipped else noise])
        tree["loss"] = dict(tree["loss"] if loss is None else loss)
        for section, changes in [*own.items(), ("optimizer", rates), *keys.items(), ("train", {"seed": seed})]:
            tree.setdefault(section, {}).update(changes)
        stoppable = (tree["optimizer"]["name"], tree["loss"]["name"]) == ("sgd", "ce")
        looks = LOOKS if stoppable and tree["data"].get("validation", 0) else 1
        tree["evaluate"]["every"] = max(tree["train"]["epochs"] // looks, 1)
        return Recipe.from_dict(tree)

    def cell(
        self, task: str, noise: str, seed: int, method: str, strength: float | None = None, **optimizer: Any
    ) -> Cell:
        """A method of the paper: LS with α, SAM with ρ, IVON with h₀; without a strength SGD, and IVON as it comes.

        At α = 0 and ρ = 0 it is SGD, at the learning rate of LS and of SAM: one run where these are the same.
        """
        make = partial(self.recipe, task, noise=noise, seed=seed)
        if strength is not None and method not in ("LS", "SAM"):
            optimizer |= {"hess_init": strength}
        if optimizer or "IVON" in method:
            recipe = make("ivon", optimizer=optimizer)
        elif method == "LS" and strength:
            recipe = make("ls", loss={"name": "ls", "alpha": strength})
        elif method == "SAM" and strength:
            recipe = make("sam", optimizer={"rho": strength})
        else:
            rate = make("sam" if method == "SAM" else "ls").optimizer.options["lr"]
            recipe = make("ls", loss={"name": "ce"}, optimizer={"lr": rate})
        return Cell(recipe=recipe, noise=noise, method=method, strength=strength, seed=seed)


def read_scale(name: str, tree: Mapping[str, Any]) -> Scale:
    """A table of scales.toml."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
    return Scale(name, **fields)


TABLES = tomllib.loads((Path(__file__).parent / "scales.toml").read_text("utf-8"))
SCALES = {name: read_scale(name, tree) for name, tree in TABLES.items()}  # the smallest first


@dataclass(frozen=True)
class Finished:
    """The runs of a study that are over, each with its cell, and how to measure on them."""

    runs: Sequence[tuple[Cell, Run]]
    device: str | None = None
    samples: int = 64  # of the posterior


@dataclass(frozen=True)
class Study:
    """One figure.

    `cells` are the places in it with their recipes; `more` are those that follow from the table of the first ones
    (further seeds of what a grid chose). `measure` makes a table of the finished runs where accuracies are not what the
    figure shows. `draw` and `claims` see nothing but the table, so a figure can be drawn again from its CSV.
    """

    name: str  # texts about it are in TEXTS
    cells: Callable[[Scale], list[Cell]]
    draw: Callable[[Table, Path], None]
    claims: Callable[[Table], list[Claim]]
    measure: Callable[[Finished], Table] | None = None
    more: Callable[[Scale, Table], list[Cell]] = lambda scale, table: []
    summarise: Callable[[Table], list[list[str]]] | None = None  # a table for people, head first
