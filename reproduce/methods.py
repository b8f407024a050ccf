"""From a place in a figure (task, noise, method, its strength, seed) to the recipe that fills it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.losses import LOSSES
from bayesmooth.train import Recipe
from reproduce.scale import KAPPAS, Scale

KAPPA = "κ = {:g}"
NATURAL = "natural noise"
NOISES = {
    "none": "corruption={}",
    "clean": "corruption={}",
    NATURAL: "corruption={}",  # the labels as they came
    "symmetric 20 %": 'corruption={name="symmetric", rate=0.2}',
    "symmetric 40 %": 'corruption={name="symmetric", rate=0.4}',
    "pairflip 20 %": 'corruption={name="pairflip", rate=0.2}',
    **{
        KAPPA.format(kappa): f'corruption={{name="data_dependent", kappa={kappa}, beta=0.05}}'
        for kappa in KAPPAS
    },
}
"""What figures call a noise, and the setting that makes it; κ: n_i = κ + .05 i  (equ: diagonal noise)."""

PLAIN = 'loss={name="ce"}'
EARLY = "SGD, stopped early"  # at the epoch with the best accuracy on noisy validation labels
IVON_GRID = "IVON, h₀"
GRIDS = ("LS", "SAM", IVON_GRID)  # methods with a strength to choose
LOOKS = 15  # at the validation split: where the best epoch is stopped at, or learned from


@dataclass(frozen=True)
class Cell:
    """A place in a figure and the recipe that fills it; two places may share one (α = 0 and ρ = 0 are both SGD)."""

    labels: Mapping[str, Any]
    recipe: Recipe

    @property
    def name(self) -> str:
        """In words, for the display."""
        known = [value for value in self.labels.values() if value is not None]
        return "  ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in known)


def identify_data(recipe: Recipe) -> str:
    """The data set of a recipe; of embeddings, which: the name of their file.

    >>> identify_data(Recipe.from_dict({"data": {"name": "embeddings", "path": "features/pets-{split}.npz"}}))
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

    def load(self, method: str, *settings: str) -> Recipe:
        """The shipped recipe of a method (ls, sam or ivon) with these settings, and the measurements it needs."""
        stem, *own = self.scale.start(self.task, self.noise)
        # Digits come with the right labels, so at smoke scale some are flipped.
        flipped = self.scale.name == "smoke" and self.noise == NATURAL
        noise = NOISES["symmetric 40 %" if flipped else self.noise]
        given = [*own, noise, *settings, f"train.seed={self.seed}"]
        recipe = Recipe.load(f"{stem}-{method}", given)
        stoppable = (recipe.optimizer.name, recipe.loss.name) == ("sgd", "ce")
        learns = "past" in LOSSES[recipe.loss.name].needs
        looks = LOOKS if learns or (stoppable and recipe.data.validation) else 1
        every = max(recipe.train.epochs // looks, 1)
        return replace(recipe, evaluate=replace(recipe.evaluate, every=every))

    def sgd(self) -> Recipe:
        """SGD with plain cross-entropy."""
        return self.load("ls", PLAIN)

    def smooth(self, alpha: float) -> Recipe:
        """Label smoothing; at α = 0 plain cross-entropy."""
        return self.load("ls", f"loss.alpha={alpha}") if alpha else self.sgd()

    def sam(self, rho: float) -> Recipe:
        """SAM around SGD; at ρ = 0 that is SGD itself at SAM's learning rate, so that is what runs."""
        if rho:
            return self.load("sam", f"optimizer.rho={rho}")
        lr = self.load("sam").optimizer.options["lr"]
        return self.load("ls", PLAIN, f"optimizer.lr={lr}")

    def ivon(self, *settings: str) -> Recipe:
        """IVON with λ = the number of training examples."""
        return self.load("ivon", *settings)


def compare_methods(
    scale: Scale, task: str, noises: Sequence[str], seeds: Iterable[int]
) -> Iterator[Cell]:
    """SGD, IVON, LS over α, SAM over ρ and IVON over h₀: all noises with one seed before the next seed."""
    for seed in seeds:
        for noise in noises:
            condition = Condition(scale, task, noise, seed)
            ivon = condition.ivon()
            recipes: dict[tuple[str, float | None], Recipe] = {("IVON", None): ivon}
            if ivon.data.validation:
                recipes[EARLY, None] = condition.sgd()
            recipes |= {("LS", alpha): condition.smooth(alpha) for alpha in scale.alphas}
            recipes |= {("SAM", rho): condition.sam(rho) for rho in scale.rhos}
            for h0 in scale.chosen_hessians:
                recipes[IVON_GRID, h0] = condition.ivon(f"optimizer.hess_init={h0}")
            for (method, strength), recipe in recipes.items():
                labels = {"noise": noise, "method": method, "strength": strength, "seed": seed}
                yield Cell(labels, recipe)
