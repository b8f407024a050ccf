"""From a place in a figure (task, noise, method, its strength, seed) to the recipe that fills it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesmooth.losses import LOSSES
from bayesmooth.train import Recipe
from bayesmooth.train.recipe import Tree, read_recipe
from reproduce.scale import KAPPAS, Changes, Scale

Section = Mapping[str, Any]
KAPPA = "κ = {:g}"
NATURAL = "natural noise"
NOISES: dict[str, Section] = {
    "none": {},
    "clean": {},
    NATURAL: {},  # the labels as they came
    "symmetric 20 %": {"name": "symmetric", "rate": 0.2},
    "symmetric 40 %": {"name": "symmetric", "rate": 0.4},
    "pairflip 20 %": {"name": "pairflip", "rate": 0.2},
    **{KAPPA.format(k): {"name": "data_dependent", "kappa": k, "beta": 0.05} for k in KAPPAS},
}
"""What figures call a noise, and the section of a recipe that makes it; κ: n_i = κ + .05 i  (equ: diagonal noise)."""

PLAIN: Section = {"name": "ce"}
EARLY = "SGD, stopped early"  # at the epoch with the best accuracy on noisy validation labels
IVON_GRID = "IVON, h₀"
GRIDS = ("LS", "SAM", IVON_GRID)  # methods with a strength to choose
LOOKS = 15  # at the validation split: where the best epoch is stopped at, or learned from


@dataclass(frozen=True)
class Cell:
    """A place in a figure, and the run that fills it; two places may share one (α = 0 and ρ = 0 are both SGD)."""

    tree: Tree  # the sections of its recipe
    method: str
    seed: int
    noise: str | None = None
    loss: str | None = None
    strength: float | None = None
    samples: int | None = None  # of the posterior, where the label noise is measured

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, built when it is first asked for."""
        return Recipe.from_dict(self.tree)

    @property
    def labels(self) -> dict[str, Any]:
        """What a table calls it by."""
        known: dict[str, Any] = {"noise": self.noise, "loss": self.loss, "method": self.method}
        known |= {"strength": self.strength, "seed": self.seed}
        return {key: value for key, value in known.items() if value is not None}

    @property
    def name(self) -> str:
        """In words, for the display."""
        parts = self.labels.values()
        return "  ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in parts)


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


def identify_data(recipe: Recipe) -> str:
    """The data set of a recipe; of embeddings, which: the name of their file.

    >>> identify_data(Recipe.from_dict({"data": {"name": "source", "path": "features/pets-{split}.npz"}}))
    'pets'
    """
    path = recipe.data.options.get("path")
    return Path(path).stem.removesuffix("-{split}") if path else recipe.data.name


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
        tree = merge(read_recipe(f"{stem}-{method}"), own, changes, {"train": {"seed": self.seed}})
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

    def sgd(self) -> Tree:
        """SGD with plain cross-entropy."""
        return self.load("ls", loss=PLAIN)

    def smooth(self, alpha: float) -> Tree:
        """Label smoothing; at α = 0 plain cross-entropy."""
        return self.load("ls", loss={"name": "ls", "alpha": alpha}) if alpha else self.sgd()

    def sam(self, rho: float) -> Tree:
        """SAM around SGD; at ρ = 0 that is SGD itself at SAM's learning rate, so that is what runs."""
        tree = self.load("sam", optimizer={"rho": rho})
        if rho:
            return tree
        return self.load("ls", loss=PLAIN, optimizer={"lr": tree["optimizer"]["lr"]})

    def ivon(self, **optimizer: Any) -> Tree:
        """IVON with λ = the number of training examples."""
        return self.load("ivon", optimizer=optimizer)


def compare_methods(
    scale: Scale, task: str, noises: Sequence[str], seeds: Iterable[int]
) -> Iterator[Cell]:
    """SGD, IVON, LS over α, SAM over ρ and IVON over h₀: all noises with one seed before the next seed."""
    for seed in seeds:
        for noise in noises:
            condition = Condition(scale, task, noise, seed)
            ivon = condition.ivon()
            trees: dict[tuple[str, float | None], Tree] = {("IVON", None): ivon}
            if ivon["data"].get("validation", 0):
                trees[EARLY, None] = condition.sgd()
            trees |= {("LS", alpha): condition.smooth(alpha) for alpha in scale.alphas}
            trees |= {("SAM", rho): condition.sam(rho) for rho in scale.rhos}
            for h0 in scale.chosen_hessians:
                trees[IVON_GRID, h0] = condition.ivon(hess_init=h0)
            for (method, strength), tree in trees.items():
                yield Cell(tree, method, seed, noise, strength=strength)
