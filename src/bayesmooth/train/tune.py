"""Try settings, and let the noisy labels of the validation split choose.

Whole runs choose well. Short runs cost less and mislead about the noise: they have not memorised anything yet, and
prefer too little of it. `bayesmooth.fit` keeps two of six settings after a quarter of the run, and lets them go on.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.sweep import Outcome, sweep

AXES = ("optimizer.noise=0.3,1.0,2.0",)
WORST = {"validation.accuracy": -1.0, "validation.nll": float("inf")}  # of what did not finish


@dataclass(frozen=True)
class Trial:
    """A setting, with its accuracy and NLL under the noisy labels of the validation split, if it finished."""

    recipe: Recipe  # of the whole run
    outcome: Outcome  # of the run that was measured, short or whole
    accuracy: float
    nll: float


def tune(
    recipes: Sequence[Recipe],
    out: str | Path,
    executor: Executor,
    *,
    shorten: int = 1,
    keep: int = 2,
    **how: Any,
) -> tuple[list[Trial], list[Trial]]:
    """Short trials and whole ones, each best first.

    With `shorten` above 1 all recipes are tried over that part of their epochs, and the best `keep` of them over all
    epochs; else there are no short trials. `how` goes to `sweep`, which skips finished runs, so the same call resumes.
    """
    if shorten < 1 or keep < 1:
        raise InputError(f"shorten={shorten}, keep={keep}: must be ≥ 1")
    if len({recipe.hash for recipe in recipes}) < len(recipes):
        raise InputError("two recipes are the same: give each setting once")
    if not all(recipe.data.validation for recipe in recipes):
        raise InputError(
            "data.validation = 0: there is nothing to choose by; hold a part back with --set data.validation=0.2"
        )
    short = [shortened(recipe, shorten) for recipe in recipes] if shorten > 1 else []
    tried = _ranked(recipes, sweep(short, out, executor, **how)) if short else []
    best = [trial.recipe for trial in tried[:keep]] or recipes
    return tried, _ranked(best, sweep(best, out, executor, **how))


def shortened(recipe: Recipe, factor: int) -> Recipe:
    """The same recipe over a part of the epochs; everything that is a share of the run shrinks with it."""
    epochs = max(1, round(recipe.train.epochs / factor))
    return replace(recipe, train=replace(recipe.train, epochs=epochs))


def _ranked(recipes: Iterable[Recipe], outcomes: Iterable[Outcome]) -> list[Trial]:
    """Best first: by accuracy, then NLL; what did not finish comes last."""
    trials = []
    for recipe, outcome in zip(recipes, outcomes, strict=True):
        report = outcome.run.report() if outcome.status == "finished" else WORST
        figures = report["validation.accuracy"], report["validation.nll"]
        trials.append(Trial(recipe, outcome, *figures))
    return sorted(trials, key=lambda trial: (-trial.accuracy, trial.nll))
