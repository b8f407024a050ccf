"""What a figure is: its cells with their recipes, its drawing, its claims.

A cell is a place in a figure: task, noise, method, its strength, seed; `Condition` knows the recipe that fills it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesmooth.losses import LOSSES
from bayesmooth.train import Recipe, Run, Tree, read_recipe
from reproduce.scale import FULL, KAPPAS, NATURAL, Changes, Scale
from reproduce.table import EARLY, Claim, Table

Section = Mapping[str, Any]
KAPPA = "κ = {:g}"
NOISES: dict[str, Section] = {
    "none": {},
    NATURAL: {},  # the labels as they came
    "symmetric 20 %": {"name": "symmetric", "rate": 0.2},
    "symmetric 40 %": {"name": "symmetric", "rate": 0.4},
    "pairflip 20 %": {"name": "pairflip", "rate": 0.2},
    **{KAPPA.format(k): {"name": "data_dependent", "kappa": k, "beta": 0.05} for k in KAPPAS},
}
"""What figures call a noise, and the section of a recipe that makes it; κ: n_i = κ + .05 i  (equ: diagonal noise)."""

FIXED_IVON = "IVON"  # at the h₀ of its recipe
TUNED_IVON = "IVON, h₀"  # over h₀, from which noisy validation labels choose
GRIDS = ("LS", "SAM", TUNED_IVON)  # methods with a strength to choose
LOOKS = 15  # at the validation split: where the best epoch is stopped at, or learned from
TUNED_BY_PAPER = ("lr", "weight_decay", "hess_init")  # what its table of CIFAR-100 gives by noise


@dataclass(frozen=True)
class Cell:
    """A place in a figure, and the run that fills it; two places may share one (α = 0 and ρ = 0 are both SGD)."""

    tree: Tree  # the sections of its recipe
    method: str
    seed: int
    noise: str | None = None
    loss: str | None = None
    strength: float | None = None

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, built when it is first asked for."""
        return Recipe.from_dict(self.tree)

    @property
    def labels(self) -> dict[str, Any]:
        """What a table and the display call it by."""
        known: dict[str, Any] = {"noise": self.noise, "loss": self.loss, "method": self.method}
        known |= {"strength": self.strength, "seed": self.seed}
        return {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True)
class Finished:
    """The runs of a study that are over, by the hash of their recipe, and how to measure on them."""

    cells: Sequence[Cell]
    runs: Mapping[str, Run]
    device: str | None = None
    samples: int = 64  # of the posterior

    def pairs(self) -> Iterator[tuple[Cell, Run]]:
        """Every cell that has a run, with that run."""
        for cell in self.cells:
            if (run := self.runs.get(cell.recipe.hash)) is not None:
                yield cell, run


@dataclass(frozen=True)
class Study:
    """One figure.

    `cells` are the places in it with their recipes; `more` are those that follow from the table of the first ones
    (further seeds of what a grid chose). `measure` makes a table of the finished runs where accuracies are not what the
    figure shows. `draw` and `claims` see nothing but the table, so a figure can be drawn again from its CSV.
    """

    name: str
    figure: str  # the label in the paper; "" where the figure is not in it
    title: str
    shows: str
    cells: Callable[[Scale], list[Cell]]
    draw: Callable[[Table, Path], None]
    claims: Callable[[Table], list[Claim]]
    measure: Callable[[Finished], Table] | None = None
    more: Callable[[Scale, Table], list[Cell]] = lambda scale, table: []
    summarise: Callable[[Table], list[list[str]]] | None = None  # a table for people, head first
    measures_noise: bool = False  # the label noise of every training example, which takes time

    def recipes(self, scale: Scale) -> list[Recipe]:
        """What has to be trained, each once."""
        return list({cell.recipe.hash: cell.recipe for cell in self.cells(scale)}.values())


def merge(tree: Changes, *changes: Changes) -> Tree:
    """A copy of a recipe's sections with keys put in.

    >>> merge({"loss": {"name": "ls"}}, {"loss": {"alpha": 0.1}}, {"train": {"seed": 3}})
    {'loss': {'name': 'ls', 'alpha': 0.1}, 'train': {'seed': 3}}
    """
    merged = {name: dict(section) for name, section in tree.items()}
    for change in changes:
        for name, section in change.items():
            merged.setdefault(name, {}).update(section)
    return merged


@dataclass(frozen=True)
class Condition:
    """A task of a scale under one noise and seed, which methods are compared on."""

    scale: Scale
    task: str
    noise: str = "none"
    seed: int = 0

    def load(self, method: str, *, loss: Section | None = None, **changes: Section) -> Tree:
        """The shipped recipe of a method (ls, sam or ivon) with these keys, another loss, and the looks it needs."""
        stem, own = self.scale.start(self.task, self.noise)
        tree = merge(read_recipe(f"{stem}-{method}"), own)
        if self.task in self.scale.rates_by_noise:
            paper, _ = FULL.start(self.task, self.noise)
            given = read_recipe(f"{paper}-{method}")["optimizer"]
            tree["optimizer"] |= {key: given[key] for key in TUNED_BY_PAPER if key in given}
        tree = merge(tree, changes, {"train": {"seed": self.seed}})
        # Digits come with the right labels, so at smoke scale some are flipped.
        flipped = self.scale.name == "smoke" and self.noise == NATURAL
        tree["corruption"] = dict(NOISES["symmetric 40 %" if flipped else self.noise])
        if loss is not None:
            tree["loss"] = dict(loss)
        name = tree["loss"]["name"]
        stoppable = (tree["optimizer"]["name"], name) == ("sgd", "ce")
        held = tree["data"].get("validation", 0)
        looks = LOOKS if "past" in LOSSES[name].needs or (stoppable and held) else 1
        return merge(tree, {"evaluate": {"every": max(tree["train"]["epochs"] // looks, 1)}})

    def cell(self, method: str, strength: float | None = None, **optimizer: Any) -> Cell:
        """A method of the paper: LS with α, SAM with ρ, IVON with h₀; without a strength SGD, and IVON as it comes.

        At α = 0 and ρ = 0 it is SGD, at the learning rate of LS and of SAM: one run where these are the same.
        """
        if strength is not None and method not in ("LS", "SAM"):
            optimizer |= {"hess_init": strength}
        if optimizer or "IVON" in method:
            tree = self.load("ivon", optimizer=optimizer)
        elif method == "LS" and strength:
            tree = self.load("ls", loss={"name": "ls", "alpha": strength})
        elif method == "SAM" and strength:
            tree = self.load("sam", optimizer={"rho": strength})
        else:
            base = self.load("sam" if method == "SAM" else "ls")["optimizer"]
            tree = self.load("ls", loss={"name": "ce"}, optimizer={"lr": base["lr"]})
        return Cell(tree, method, self.seed, self.noise, strength=strength)


def compare_methods(scale: Scale, task: str, noises: Sequence[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """IVON, SGD, LS over α, SAM over ρ and IVON over h₀: all noises with one seed before the next seed."""
    grids = {"LS": scale.alphas, "SAM": scale.rhos, TUNED_IVON: scale.chosen_hessians}
    for seed in seeds:
        for noise in noises:
            condition = Condition(scale, task, noise, seed)
            yield (ivon := condition.cell(FIXED_IVON))
            if ivon.tree["data"].get("validation", 0):
                yield condition.cell(EARLY)
            for method, strengths in grids.items():
                yield from (condition.cell(method, strength) for strength in strengths)
