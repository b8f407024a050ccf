"""How large a study is (scales.toml)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError

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
