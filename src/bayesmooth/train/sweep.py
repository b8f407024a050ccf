"""Many recipes, each trained once: finished runs are skipped by their hash, interrupted ones go on.

`tune` lets the noisy labels of the validation split choose among them.
"""

import signal
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import torch

from bayesmooth import progress
from bayesmooth.data import data_root
from bayesmooth.errors import InputError
from bayesmooth.executors import DATA, set_variable
from bayesmooth.files import write_atomically
from bayesmooth.train.compare import compare_runs, format_csv
from bayesmooth.train.loop import DivergedError
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.recipe_files import Tree, override
from bayesmooth.train.run import Run
from bayesmooth.train.training import StoppedError, handle_signals, train
from bayesmooth.words import name_figures

OVER = ("finished", "diverged")  # how a run ends for good: run again, it would end the same way
NOISES = ("optimizer.noise=0.3,1.0,2.0",)  # what is tried where no grid is given
SHOWN = ("test.accuracy", "averaged.accuracy", "memorised")


@dataclass(frozen=True)
class Outcome:
    """What became of a recipe: finished, diverged, interrupted or failed; `message` says why."""

    recipe: Recipe
    path: Path
    status: str
    message: str = ""

    @property
    def run(self) -> Run:
        """The run itself."""
        return Run(self.path, self.recipe)


@dataclass(frozen=True)
class SweepJob:
    """A recipe and its directory, ready to be sent to another process or machine, and called there."""

    recipe: Recipe
    path: Path
    data: Path | None = None  # where public data sets lie; None: as this process knows it
    device: str | None = None
    threads: int = 0  # 0: as many as torch takes

    def __call__(self) -> Outcome:
        """Train; an error becomes part of the outcome, with its traceback in the log beside the run.

        Where another process trains the same run, this one waits, and takes over if the other stops.
        """
        if self.threads:
            torch.set_num_threads(self.threads)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as file, redirect_stdout(file), redirect_stderr(file), set_variable(DATA, self.data):
            try:
                train(self.recipe, self.path, device=self.device, quiet=True, patience=-1)
            except StoppedError:
                return self.end("interrupted")
            except DivergedError as error:
                return self.end("diverged", error)
            except Exception as error:
                traceback.print_exc()
                return self.end("failed", error)
        return self.end("finished")

    @property
    def log(self) -> Path:
        """What the job prints, beside the run."""
        return self.path.with_suffix(".log")

    def end(self, status: str, error: BaseException | None = None) -> Outcome:
        """The outcome; the lines of an error's message become one."""
        lines = [line.strip() for line in str(error or "").splitlines()]
        words = "; ".join(filter(None, lines))
        if status == "failed":
            words = f"{words or type(error).__name__} (see {self.log})"
        return Outcome(self.recipe, self.path, status, words)


def sweep(
    recipes: Iterable[Recipe],
    out: str | Path,
    executor: Executor,
    device: str | None = None,
    threads: int = 0,
    *,
    names: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Train every recipe in its directory `out`/title; equal recipes once. A failure does not stop the rest.

    Ctrl-C saves and stops what runs, and the same call goes on from there. `names` (by hash) are for the display; by
    default a run is called by the settings in which it differs from the others.
    """
    data = data_root(None).absolute()  # here: a worker has its own directory and variables
    jobs = {
        recipe.hash: SweepJob(recipe, Path(out).absolute() / recipe.title, data, device, threads) for recipe in recipes
    }
    ends = {key: Run(job.path, job.recipe).status for key, job in jobs.items()}
    outcomes = {key: jobs[key].end(end) for key, end in ends.items() if end in OVER}
    called, before = names or name_recipes([job.recipe for job in jobs.values()]), len(outcomes)
    with stopped_by_signals(), progress.bar(len(jobs), description="runs", done=before) as bar:
        many = f"{len(jobs)} run{'s' * (len(jobs) != 1)}"
        bar.line(many + (f", {before} of them done before" if before else ""))
        try:
            todo = {executor.submit(job): key for key, job in jobs.items() if key not in outcomes}
            for future in as_completed(todo):
                key, error = todo[future], future.exception()
                outcome = future.result() if error is None else jobs[key].end("failed", error)
                outcomes[key] = outcome
                words = [f"[{len(outcomes)}/{len(jobs)}]", f"{outcome.status:11}", called[key]]
                last = (outcome.run.metrics() or [{}])[-1]
                words += [outcome.message or "  ".join(name_figures(last, SHOWN))]
                bar.line("  ".join(filter(None, words)))
                bar.update(len(outcomes))
        except KeyboardInterrupt:
            executor.shutdown(wait=True, cancel_futures=True)  # nothing is left running
            raise KeyboardInterrupt("; what ran is saved, the same command goes on") from None
    return [outcomes[key] for key in jobs]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within the context SIGTERM and a closed terminal stop a sweep as Ctrl-C does, and leave no process behind."""
    closed = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
    heard = [n for n in (signal.SIGTERM, closed) if signal.getsignal(n) != signal.SIG_IGN]  # nohup
    with handle_signals(signal.default_int_handler, *heard):
        yield


def grid(tree: Tree, axes: Sequence[str], source: str = "recipe") -> list[Recipe]:
    """Every combination of values: `loss.alpha=0,.1,.3`, and `train.seed=0:5` for 0 … 4.

    >>> [recipe.train.seed for recipe in grid({}, ["train.seed=0:2", "train.epochs=1,2"])]
    [0, 0, 1, 1]
    """
    settings: dict[str, list[str]] = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        if not equals or not text:
            raise InputError(f"{axis!r}: not an axis; write section.key=value,value or =0:5")
        if key.strip() in settings:
            raise InputError(f"{axis!r}: a second axis of {key.strip()}; put all values in one")
        if not (found := split_values(text)):
            raise InputError(f"{axis!r}: no value; 0:5 is 0 … 4, so the second must be larger")
        settings[key.strip()] = [f"{key}={value}" for value in found]
    return [Recipe.from_dict(override(tree, chosen), source=source) for chosen in product(*settings.values())]


def split_values(text: str) -> list[str]:
    """The values of an axis, as text; a comma within brackets separates nothing.

    >>> split_values("0,.1,.3"), split_values("2:5"), split_values("[8, 16],[4]")
    (['0', '.1', '.3'], ['2', '3', '4'], ['[8, 16]', '[4]'])
    """
    first, colon, last = text.partition(":")
    if colon and first.isdigit() and last.isdigit():
        return [str(value) for value in range(int(first), int(last))]
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def find_differences(recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
    """For each recipe the keys in which they are not all alike."""
    flat = [recipe.flat() for recipe in recipes]
    keys = dict.fromkeys(key for each in flat for key in each)
    different = [key for key in keys if len({repr(each.get(key)) for each in flat}) > 1]
    return [{key: each[key] for key in different if key in each} for each in flat]


def name_recipes(recipes: Sequence[Recipe]) -> dict[str, str]:
    """By hash, what tells each recipe from the others; a single one has its title.

    >>> list(name_recipes(grid({"loss": {"name": "ls"}}, ["loss.alpha=0,.1"])).values())
    ['loss.alpha=0.0', 'loss.alpha=0.1']
    """
    return {
        recipe.hash: " ".join(f"{key}={value}" for key, value in settings.items()) or recipe.title
        for recipe, settings in zip(recipes, find_differences(recipes), strict=True)
    }


def sweep_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The table of a sweep: one row per run, called by its settings, then its figures."""
    names = name_recipes([outcome.recipe for outcome in outcomes])
    rows = compare_runs([outcome.run for outcome in outcomes])
    return [{**row, "run": name} for row, name in zip(rows, names.values(), strict=True)]


def export_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """CSV: one row per run with the settings in which the runs differ, how each ended, and its final figures."""
    rows = []
    differences = find_differences([outcome.recipe for outcome in outcomes])
    for outcome, settings in zip(outcomes, differences, strict=True):
        figures = outcome.run.report() if outcome.status == "finished" else {}
        ended = {"run": outcome.path.name, "status": outcome.status}
        rows.append({**settings, **ended, **figures})
    write_atomically(path, format_csv(rows))


def tune(
    recipes: Sequence[Recipe], out: str | Path, executor: Executor, device: str | None = None, threads: int = 0
) -> list[Outcome]:
    """Train whole runs, and let the noisy labels of the validation split choose: best first, by accuracy, then NLL.

    What did not finish comes last; the same call resumes. Short runs would mislead about the
    noise: they have not memorised anything yet, and prefer too little of it.
    """
    if len({recipe.hash for recipe in recipes}) < len(recipes):
        raise InputError("two recipes are the same: give each setting once")
    if not all(recipe.data.validation for recipe in recipes):
        raise InputError(
            "data.validation = 0: there is nothing to choose by; hold a part back with --set data.validation=0.2"
        )

    def rank(outcome: Outcome) -> tuple[float, float]:
        if outcome.status != "finished":
            return inf, inf
        report = outcome.run.report()
        return -report["validation.accuracy"], report["validation.nll"]

    return sorted(sweep(recipes, out, executor, device, threads), key=rank)
