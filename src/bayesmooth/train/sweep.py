"""Many recipes, each trained once: finished runs are skipped by their hash, interrupted ones go on.

Held-out given labels choose among them, or before a run among what `bayesmooth.fit` tries.
"""

import re
import signal
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

import torch

from bayesmooth import progress
from bayesmooth.data import data_root
from bayesmooth.errors import InputError
from bayesmooth.executors import DATA, set_variable
from bayesmooth.fitting.choose import IVON_GRID, fit
from bayesmooth.fitting.linear import choose_rate, fit_linear
from bayesmooth.optim.schedule import ENOUGH
from bayesmooth.progress import format_epoch, format_percent
from bayesmooth.train.evaluate import SOURCE, prepare
from bayesmooth.train.loop import DivergedError, make_model
from bayesmooth.train.recipe import Recipe, Tree, find_differences, override
from bayesmooth.train.run import Run, StoppedError, handle_signals, train

OVER = ("finished", "diverged")  # how a run ends for good: run again, it would end the same way


@dataclass(frozen=True)
class Outcome:
    """What became of a run: finished, diverged, interrupted or failed; `message` says why."""

    run: Run
    status: str
    message: str = ""

    @classmethod
    def of(cls, run: Run, error: BaseException) -> Self:
        """The outcome where training raised an error; the lines of its message become one."""
        message = "; ".join(filter(None, map(str.strip, str(error).splitlines())))
        if isinstance(error, StoppedError):
            return cls(run, "interrupted")
        if isinstance(error, DivergedError):
            return cls(run, "diverged", message)
        return cls(run, "failed", f"{message or type(error).__name__} (see {run.path.with_suffix('.log')})")


def train_one(run: Run, device: str | None, data: Path) -> Outcome:
    """Train, in whatever process this is called; an error becomes the outcome, its traceback goes to PATH.log.

    `data` is where public data sets lie. Where another process trains the same run, this one waits, and takes over if
    the other stops.
    """
    run.path.parent.mkdir(parents=True, exist_ok=True)
    with run.path.with_suffix(".log").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            with set_variable(DATA, data):
                train(run.recipe, run.path, device=device, quiet=True, patience=-1)
        except (Exception, StoppedError) as error:
            outcome = Outcome.of(run, error)
            if outcome.status == "failed":
                traceback.print_exc()
            return outcome
    return Outcome(run, "finished")


def sweep(
    recipes: Iterable[Recipe],
    out: str | Path,
    executor: Executor,
    device: str | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Train every recipe in its directory `out`/title; equal recipes once. A failure does not stop the rest.

    Ctrl-C, SIGTERM and a closed terminal save and stop what runs, and the same call goes on from there. `names` (by
    hash) are for the display; by default a run is called by the settings in which it differs from the others.
    """
    data = data_root(None).absolute()  # here: a worker has its own directory and variables
    runs = {recipe.hash: Run(Path(out).absolute() / recipe.title, recipe) for recipe in recipes}
    ends = {key: Outcome(run, run.status) for key, run in runs.items()}
    outcomes = {key: end for key, end in ends.items() if end.status in OVER}
    called, before = names or name_recipes([run.recipe for run in runs.values()]), len(outcomes)
    stops = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))  # Windows has no SIGHUP
    heard = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    with (
        handle_signals(signal.default_int_handler, *heard),
        progress.bar(len(runs), description="runs", done=before) as bar,
    ):
        many = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        bar.line(many + (f", {before} of them done before" if before else ""))
        try:
            todo = {
                executor.submit(train_one, run, device, data): key for key, run in runs.items() if key not in outcomes
            }
            for future in as_completed(todo):
                key, error = todo[future], future.exception()
                outcomes[key] = outcome = Outcome.of(runs[key], error) if error else future.result()
                words = [f"[{len(outcomes)}/{len(runs)}]", f"{outcome.status:11}", called[key]]
                figures = [format_epoch(last, runs[key].recipe.train.epochs) for last in runs[key].metrics()[-1:]]
                bar.line("  ".join([*words, *([outcome.message] if outcome.message else figures)]))
                bar.update(len(outcomes))
        except KeyboardInterrupt:
            executor.shutdown(wait=True, cancel_futures=True)  # nothing is left running
            raise KeyboardInterrupt("; what ran is saved, the same command goes on") from None
    return [outcomes[key] for key in runs]


def grid(tree: Tree, axes: Sequence[str], source: str = "recipe") -> list[Recipe]:
    """Every combination of values: `loss.alpha=0,.1,.3`, and `train.seed=0:5` for 0 … 4.

    >>> [recipe.train.seed for recipe in grid({}, ["train.seed=0:2", "train.epochs=1,2"])]
    [0, 0, 1, 1]
    """
    settings: dict[str, list[str]] = {}
    for axis in axes:
        key, _, text = map(str.strip, axis.partition("="))
        if not text:
            raise InputError(f"{axis!r}: not an axis; write section.key=value,value or =0:5")
        if key in settings:
            raise InputError(f"{axis!r}: a second axis of {key}; put all values in one")
        settings[key] = [f"{key}={value}" for value in split_values(text)]
        if not settings[key]:
            raise InputError(f"{axis!r}: no value; 0:5 is 0 … 4, so the second must be larger")
    return [Recipe.from_dict(override(tree, chosen), source=source) for chosen in product(*settings.values())]


def split_values(text: str) -> list[str]:
    """The values of an axis, as text; a comma within brackets separates nothing.

    >>> split_values("0,.1,.3"), split_values("2:5"), split_values("[8, 16],[4]")
    (['0', '.1', '.3'], ['2', '3', '4'], ['[8, 16]', '[4]'])
    """
    first, colon, last = text.partition(":")
    if colon and first.isdigit() and last.isdigit():
        return [str(value) for value in range(int(first), int(last))]
    return [value.strip() for value in re.split(r",(?![^\[]*\])", text)]


def name_recipes(recipes: Sequence[Recipe]) -> dict[str, str]:
    """By hash, what tells each recipe from the others; a single one has its title.

    >>> list(name_recipes(grid({"loss": {"name": "ls"}}, ["loss.alpha=0,.1"])).values())
    ['loss.alpha=0.0', 'loss.alpha=0.1']
    """
    words = [" ".join(f"{key}={value}" for key, value in own.items()) for own in find_differences(recipes)]
    return {recipe.hash: name or recipe.title for recipe, name in zip(recipes, words, strict=True)}


def export_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per run: the settings in which the runs differ, how each ended, and its final figures."""
    return [
        {**settings, "run": each.run.path.name, "status": each.status}
        | (each.run.report() if each.status == "finished" else {})
        for each, settings in zip(outcomes, find_differences([o.run.recipe for o in outcomes]), strict=True)
    ]


def choose_best(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The finished run that predicts the noisy labels of the validation split best, by accuracy, then NLL.

    Whole runs are compared: short ones would mislead about the noise, as they have not memorised anything yet.
    """
    finished = [(outcome.run.report(), outcome) for outcome in outcomes if outcome.status == "finished"]
    scores = [(report["validation.accuracy"], -report["validation.nll"]) for report, _ in finished]
    return finished[scores.index(max(scores))][1] if finished else None


def choose_settings(recipe: Recipe) -> Recipe:
    """The recipe with what the held-out given labels choose: lr and noise of the network, or a linear model's prior.

    The network is taken where it predicts them better than the linear model by a standard error; fewer than `ENOUGH` of
    them do not tell, and rows of numbers get the linear model then. It needs no labels to stop by, so it learns from
    all of them. What is chosen stands in the recipe of the run, and so in its hash.
    """
    splits = prepare(recipe)
    flat = len(splits.train.input_shape) == 1
    if splits.validation is None or (len(splits.validation) < ENOUGH and not flat):
        return recipe
    parts = splits.train, splits.validation
    (inputs, labels), held = (
        (part.batch(torch.arange(len(part), device="cpu")), part.labels.numbers) for part in parts
    )
    classes, shape, quiet = splits.train.num_classes, splits.train.input_shape, progress.SILENT.get()
    tree, best, chosen, line = recipe.to_dict(), 0.0, "held-out labels:", None
    if flat:
        rows, given = torch.cat([inputs, held[0]]), torch.cat([labels, held[1]])
        line = fit_linear(rows, given, torch.arange(len(rows), device="cpu") >= len(inputs), classes)
        if dropped := int((~line.kept).sum()):
            chosen += f" without the {dropped:,} labels that the audit contradicts others are predicted better;"
            tree["data"]["audit"] = "drop"
            kept = line.kept[: len(inputs)]
            inputs, labels = inputs[kept], labels[kept]
    if len(splits.validation) >= ENOUGH:
        found = fit(
            lambda: make_model(recipe, num_classes=classes, input_shape=shape),
            (inputs, labels),
            recipe.train.epochs,
            batch_size=recipe.train.batch_size,
            validation=held,
            grid=IVON_GRID,
            teach=False,
            stop=False,  # as the run of the recipe
            seed=recipe.train.seed,
            quiet=quiet,
        )
        tree["optimizer"] |= found.setting
        best = max(row["accuracy"] for row in found.table if row["trained"] == 1)
        chosen += f" a network predicts {format_percent(best)} of them,"
    if line is not None:
        chosen += f" a linear model {format_percent(line.accuracy)}"
        if line.is_level_with(best):
            tree["data"]["validation"], tree["model"]["hidden"] = 0.0, []
            decay = line.precision / int(line.kept.sum())
            rate = choose_rate(rows[line.kept], decay)
            tree["optimizer"] = {"name": "ivon", "lr": rate, "hess_init": 0.1, "weight_decay": decay}
            chosen += "; it is trained on all others" if dropped else "; it is trained on all labels"
    if not quiet:
        print(chosen.removesuffix(","))
    return Recipe.from_dict(tree, SOURCE)
