"""From a place in a figure (task, noise, method, its strength, seed) to the recipe that fills it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesmooth.lab import Recipe
from bayesmooth.lab.studies.scale import Scale, Task
from bayesmooth.losses import LOSSES

Section = Mapping[str, Any]

NOISES: dict[str, Section] = {
    "none": {},
    "symmetric 20 %": {"name": "symmetric", "rate": 0.2},
    "symmetric 40 %": {"name": "symmetric", "rate": 0.4},
    "pairflip 20 %": {"name": "pairflip", "rate": 0.2},
}


def kappa_noise(kappa: float) -> tuple[str, Section]:
    """n_i = κ + .05 i  (equ: diagonal noise)."""
    return f"κ = {kappa:g}", {"name": "data_dependent", "kappa": kappa, "beta": 0.05}


@dataclass(frozen=True)
class Cell:
    """A place in a figure and the recipe that fills it; two places may share one (α = 0 and ρ = 0 are both SGD)."""

    labels: Mapping[str, Any]
    recipe: Recipe

    @property
    def name(self) -> str:
        """In words, for the display."""
        said = [value for value in self.labels.values() if value is not None]
        return "  ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in said)


def data_of(recipe: Recipe) -> str:
    """The data set of a recipe; of embeddings, which: the name of their file.

    >>> data_of(Recipe.from_dict({"data": {"name": "embeddings", "path": "features/pets-{split}.npz"}}))
    'pets'
    """
    path = recipe.data.options.get("path")
    return Path(path).stem.removesuffix("-{split}") if path else recipe.data.name


LOOKS = 15  # at the validation split: where the best epoch is stopped at, or learned from


def recipe(
    scale: Scale, task: Task, noise: Section, loss: Section, optimizer: Section, seed: int
) -> Recipe:
    """The recipe of a run: IVON warms up and follows a cosine, SGD and SAM follow the task's own schedule."""
    bayesian = optimizer["name"] == "ivon"
    plain = optimizer["name"] == "sgd" and loss["name"] == "ce" and task.data.get("validation")
    looks = LOOKS if plain or "past" in LOSSES[loss["name"]].needs else 1
    return Recipe.from_dict(
        {
            "data": task.data,
            "corruption": noise,
            "model": task.model,
            "loss": loss,
            "optimizer": {"weight_decay": task.weight_decay, **optimizer},
            "schedule": {"name": "cosine", "warmup": task.warmup} if bayesian else task.descent,
            "train": {
                "epochs": task.epochs,
                "batch_size": task.batch_size,
                "seed": seed,
                "channels_last": scale.channels_last,
            },
            "evaluate": {
                "every": max(task.epochs // looks, 1),
                "samples": scale.samples,
                "test_limit": scale.test_limit,
            },
        }
    )


def sgd(lr: float) -> Section:
    """Momentum .9 for all methods."""
    return {"name": "sgd", "lr": lr, "momentum": 0.9}


def sam(task: Task, rho: float) -> Section:
    """SAM around SGD; at ρ = 0 that is SGD itself, so that is what runs."""
    return {**sgd(task.sam_lr), **({"name": "sam", "rho": rho} if rho else {})}


def ivon(task: Task, **changes: Any) -> Section:
    """IVON with λ = the number of training examples."""
    own = {"lr": task.ivon_lr, "hess_init": task.hess_init, "beta2": task.beta2}
    return {"name": "ivon", **own, **changes}


def smoothed(alpha: float) -> Section:
    """Label smoothing; at α = 0 plain cross-entropy."""
    return {"name": "ls", "alpha": alpha} if alpha else {"name": "ce"}


EARLY = "SGD, stopped early"  # at the epoch with the best accuracy on noisy validation labels
IVON_GRID = "IVON, h₀"
GRIDS = ("LS", "SAM", IVON_GRID)  # methods with a strength to choose


def comparison(scale: Scale, name: str, noises: Iterable[tuple[str, Section]]) -> list[Cell]:
    """SGD, IVON, LS over α, SAM over ρ and IVON over h₀, on each kind of noise, for each seed."""
    noises = list(noises)
    whole = [
        cell
        for seed in scale.seeds  # a whole figure with one seed comes before the second
        for called, noise in noises
        for cell in _compared(scale, name, called, noise, seed)
    ]
    return whole + [
        cell
        for seed in scale.more_seeds
        for called, noise in noises
        for cell in _compared(scale, name, called, noise, seed)
        if cell.labels["method"] not in GRIDS
    ]


def repeated(
    scale: Scale,
    name: str,
    noises: Iterable[tuple[str, Section]],
    chosen: Iterable[tuple[str, str, float]],
) -> list[Cell]:
    """The cells of `scale.more_seeds` at the (noise, method, strength) that the grids chose."""
    wanted = set(chosen)
    return [
        cell
        for seed in scale.more_seeds
        for called, noise in noises
        for cell in _compared(scale, name, called, noise, seed)
        if (called, cell.labels["method"], cell.labels["strength"]) in wanted
    ]


def _compared(scale: Scale, name: str, called: str, noise: Section, seed: int) -> Iterator[Cell]:
    task, plain = scale.task(name, called), {"name": "ce"}
    methods: list[tuple[str, float | None, Section, Section]] = [("IVON", None, plain, ivon(task))]
    if task.data.get("validation"):
        methods += [(EARLY, None, plain, sgd(task.ls_lr))]
    methods += [("LS", alpha, smoothed(alpha), sgd(task.ls_lr)) for alpha in scale.alphas]
    methods += [("SAM", rho, plain, sam(task, rho)) for rho in scale.rhos]
    methods += [(IVON_GRID, h, plain, ivon(task, hess_init=h)) for h in scale.chosen_hessians]
    for method, strength, loss, optimizer in methods:
        labels = {"noise": called, "method": method, "strength": strength, "seed": seed}
        yield Cell(labels, recipe(scale, task, noise, loss, optimizer, seed))
