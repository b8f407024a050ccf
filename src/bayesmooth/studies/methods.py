"""From a place in a figure (task, noise, method, its strength, seed) to the recipe that fills it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayesmooth.losses import LOSSES
from bayesmooth.studies.scale import Scale, Task
from bayesmooth.training import Recipe

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


LOOKS = 20  # at the validation split, for a loss that learns from the best of its own past


def recipe(
    scale: Scale, task: Task, noise: Section, loss: Section, optimizer: Section, seed: int
) -> Recipe:
    """The recipe of a run: SGD and SAM step down at 1/2 and 3/4, IVON warms up and follows a cosine."""
    bayesian = optimizer["name"] == "ivon"
    looks = LOOKS if "past" in LOSSES[loss["name"]].needs else 1
    return Recipe.from_dict(
        {
            "data": task.data,
            "corruption": noise,
            "model": task.model,
            "loss": loss,
            "optimizer": {"weight_decay": task.weight_decay, **optimizer},
            "schedule": {"name": "cosine", "warmup": task.warmup}
            if bayesian
            else {"name": "steps"},
            "train": {
                "epochs": task.epochs,
                "batch_size": task.batch_size,
                "seed": seed,
                "channels_last": scale.channels_last,
            },
            "evaluate": {"every": max(task.epochs // looks, 1), "samples": scale.samples},
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


def comparison(scale: Scale, name: str, noises: Iterable[tuple[str, Section]]) -> list[Cell]:
    """IVON, LS over its grid and SAM over its grid, on each kind of noise, for each seed."""
    return [cell for called, noise in noises for cell in _compared(scale, name, called, noise)]


def _compared(scale: Scale, name: str, called: str, noise: Section) -> Iterator[Cell]:
    task, plain = scale.task(name, called), {"name": "ce"}
    methods: list[tuple[str, float | None, Section, Section]] = [("IVON", None, plain, ivon(task))]
    methods += [("LS", alpha, smoothed(alpha), sgd(task.ls_lr)) for alpha in scale.alphas]
    methods += [("SAM", rho, plain, sam(task, rho)) for rho in scale.rhos]
    for seed in scale.seeds:  # a whole figure with one seed comes before the second
        for method, strength, loss, optimizer in methods:
            labels = {"noise": called, "method": method, "strength": strength, "seed": seed}
            yield Cell(labels, recipe(scale, task, noise, loss, optimizer, seed))
