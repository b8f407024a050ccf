"""From four recipes to a page: train what is missing, measure, draw, write."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from bayesmooth.errors import InputError
from bayesmooth.lab import Recipe, Run
from bayesmooth.lab.shipped import find
from bayesmooth.lab.studies.figures.demo.digits import Digits, digits_of
from bayesmooth.lab.studies.figures.demo.drawing import THEMES, curves, illustration, strips
from bayesmooth.lab.studies.figures.demo.live import watching
from bayesmooth.lab.studies.figures.demo.page import page
from bayesmooth.lab.studies.figures.demo.results import METHODS, OURS, Result, gather
from bayesmooth.lab.sweep import sweep

Plan = dict[str, list[Recipe]]
"""By the name of the method, a recipe a seed."""


@dataclass(frozen=True)
class Demo:
    """What the demo found, and the page that shows it."""

    page: Path
    results: list[Result]
    digits: Digits


def demo(
    out: Path,
    executor: Executor,
    *,
    seeds: int = 3,
    epochs: int | None = None,
    quiet: bool = False,
) -> Demo:
    """Train every method with `seeds` seeds, and write index.html and its pictures to `out`.

    Without `epochs` those of the recipes. Runs are kept under `out`/runs by their hash: what is finished is only drawn
    again.
    """
    planned = plan(seeds, epochs)
    with watching(planned, out / "runs", quiet) as live:
        runs = train_all(planned, out / "runs", executor, quiet or live)
        return show(runs, out)


def show(runs: dict[str, list[Run]], out: Path) -> Demo:
    """Measure, draw and write."""
    results = gather(runs)
    digits = digits_of(runs[OURS][0])
    pictures = {
        "illustration": [illustration(digits, theme) for theme in THEMES],
        "strips": [strips(digits, theme) for theme in THEMES],
        "curves": [curves(runs, theme) for theme in THEMES],
    }
    for name, (light, _) in pictures.items():
        (out / f"{name}.png").write_bytes(light)
    written = out / "index.html"
    written.write_text(page(results, runs, digits, pictures), "utf-8")
    return Demo(written, results, digits)


def plan(seeds: int, epochs: int | None = None) -> Plan:
    """The recipes, by method."""
    if seeds < 1:
        raise InputError(f"seeds={seeds}: must be ≥ 1")
    length = [] if epochs is None else [f"train.epochs={epochs}"]
    return {
        name: [
            Recipe.load(find(method.recipe), [*method.settings, *length, f"train.seed={seed}"])
            for seed in range(seeds)
        ]
        for name, method in METHODS.items()
    }


def train_all(planned: Plan, out: Path, executor: Executor, quiet: bool) -> dict[str, list[Run]]:
    """The finished runs; all methods have their first seed before any has its second."""
    order = [recipe for seed in zip(*planned.values(), strict=True) for recipe in seed]
    names = {
        recipe.hash: f"{name}, seed {recipe.train.seed}"
        for name, recipes in planned.items()
        for recipe in recipes
    }
    outcomes = sweep(order, out, executor, threads=1, names=names, quiet=quiet)
    for outcome in outcomes:
        if outcome.status != "finished":
            raise InputError(f"{names[outcome.recipe.hash]}: {outcome.status}: {outcome.message}")
    return {
        name: [Run.open(out / recipe.title) for recipe in recipes]
        for name, recipes in planned.items()
    }
