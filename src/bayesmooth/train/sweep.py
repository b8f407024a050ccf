"""Many recipes, each trained once: finished runs are skipped by their hash, interrupted ones go on.

While it runs a terminal shows a live table, and a log gets one line per finished run.
"""

import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bayesmooth.data import data_root
from bayesmooth.errors import InputError
from bayesmooth.files import LockedError, is_locked, write_atomically
from bayesmooth.optional import require
from bayesmooth.train.compare import compare_runs, format_csv, name_figures
from bayesmooth.train.loop import DivergedError
from bayesmooth.train.recipe import Recipe, Tree, flat_keys, override
from bayesmooth.train.run import Run
from bayesmooth.train.training import StoppedError, handle_signals, train
from bayesmooth.words import format_duration

OVER = ("finished", "diverged")  # how a run ends for good: run again, it would end the same way

POLL = 1.0  # seconds between two looks at what runs
SHOWN = ("test.accuracy", "averaged.accuracy", "memorised")
ELSEWHERE = "running elsewhere"

Named = Mapping[Path, tuple[str, Run]]  # by directory, a run that a sweep has to do and its name


@dataclass(frozen=True)
class Outcome:
    """What became of a recipe: finished, diverged, interrupted or failed; `message` says why."""

    recipe: Recipe
    path: Path
    status: str
    message: str = ""


@dataclass(frozen=True)
class SweepJob:
    """A recipe and its directory, ready to be sent to another process or machine, and called there."""

    recipe: Recipe
    path: Path
    data_dir: Path | None = None
    device: str | None = None
    threads: int = 0  # 0: as many as torch takes

    def __call__(self) -> Outcome:
        """Train; an error becomes part of the outcome, with its traceback in the log beside the run."""
        if self.threads:
            torch.set_num_threads(self.threads)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
            try:
                train(
                    self.recipe, self.path, data_dir=self.data_dir, device=self.device, quiet=True
                )
            except StoppedError:
                return self.outcome("interrupted")
            except LockedError as error:
                return self.outcome(ELSEWHERE, str(error))
            except DivergedError as error:
                return self.outcome("diverged", str(error))
            except Exception as error:
                traceback.print_exc()
                return self.failed(error)
        return self.outcome("finished")

    @property
    def log(self) -> Path:
        """What the job prints, beside the run."""
        return self.path.with_suffix(".log")

    def outcome(self, status: str, message: str = "") -> Outcome:
        """The end of this job, with the lines of its message in one."""
        words = "; ".join(line.strip() for line in message.splitlines() if line.strip())
        return Outcome(self.recipe, self.path, status, words)

    def failed(self, error: BaseException) -> Outcome:
        """The end of this job in an error."""
        words = str(error).strip() or type(error).__name__
        return self.outcome("failed", f"{words} (see {self.log})")

    def checkpoint(self) -> Any:
        """Submitit asks for this when Slurm takes the node away: queue the same job again, it resumes."""
        return require("submitit.helpers", extra="slurm").DelayedSubmission(self)


class Board:
    """Counts what is done, estimates how long the rest will take, and says one line per run.

    With a `live` display of rich it shows what runs now as a table, and says only what has failed.
    """

    def __init__(
        self, runs: Named, skipped: int, say: Callable[[str], object], live: Any = None
    ) -> None:
        self.runs, self.skipped, self.say, self.live = runs, skipped, say, live
        self.start, self.total = time.monotonic(), skipped + len(runs)
        self.ends: dict[Path, str] = {}
        self.others: set[Path] = set()

    def elsewhere(self, path: Path) -> None:
        """Another process is at work on the run, and this one waits for it."""
        if path not in self.others and self.live is None:
            self.say(f"{ELSEWHERE}  {self.runs[path][0]}")
        self.others.add(path)

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        self.ends[path] = status
        count = f"[{self.skipped + len(self.ends)}/{self.total}]"
        name, run = self.runs[path]
        words = [count, f"{status:11}", name, message or format_figures(run), self.left()]
        if self.live is None or status != "finished":
            self.say("  ".join(filter(None, words)))

    def refresh(self) -> None:
        """Read how far the runs under way have come."""
        if self.live is None:
            return
        from rich.table import Table

        counts = Counter(self.ends.values()) + Counter(finished=self.skipped)
        summary = [f"{count} {status}" for status, count in counts.items()]
        table = Table("run", "epoch", "figures")
        table.title = "  ".join([*summary, f"of {self.total}", self.left()])
        for path, (name, run) in self.runs.items():
            if path not in self.ends and run.status == "running":
                where = f" ({ELSEWHERE})" if path in self.others else ""
                epochs = f"{len(_metrics(run))}/{run.recipe.train.epochs}"
                table.add_row(name + where, epochs, format_figures(run))
        self.live.update(table)

    def left(self) -> str:
        """The time that the rest will take at the pace so far."""
        rest = len(self.runs) - len(self.ends)
        if not rest or not self.ends:
            return ""
        return f"{format_duration((time.monotonic() - self.start) / len(self.ends) * rest)} left"


@contextmanager
def show_board(runs: Named, *, skipped: int = 0, quiet: bool = False) -> Iterator[Board]:
    """The display that suits where stderr goes."""
    if quiet:
        yield Board(runs, skipped, lambda text: None)
    elif sys.stderr.isatty() and (live := _live()):
        with live:
            say = partial(live.console.print, highlight=False, markup=False)
            yield Board(runs, skipped, say, live)
    else:
        # A job in a thread of this process redirects stderr while it runs.
        board = Board(runs, skipped, partial(print, file=sys.stderr, flush=True))
        board.say(f"{board.total} runs" + (f", {skipped} of them done before" if skipped else ""))
        yield board


def format_figures(run: Run) -> str:
    """The last figures of a run."""
    return "  ".join(name_figures((_metrics(run) or [{}])[-1], SHOWN))


def _metrics(run: Run) -> list[dict[str, Any]]:
    with suppress(InputError):  # a damaged run is the business of its job, which says so
        return run.metrics()
    return []


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    return Live(console=Console(stderr=True), refresh_per_second=2)


def sweep(
    recipes: Iterable[Recipe],
    out: str | Path,
    executor: Executor,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    threads: int = 0,
    names: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> list[Outcome]:
    """Train every recipe in its directory `out`/title; equal recipes once. A failure does not stop the rest.

    Where another process is at work on a run, this one waits, and takes over if the other stops. Ctrl-C saves and stops
    what runs, and the same call goes on from there. `names` (by hash) are for the display; by default a run is called
    by the settings in which it differs from the others.
    """
    where = data_root(data_dir).absolute()  # here: a worker has its own directory and variables
    jobs = [
        SweepJob(recipe, Path(out).absolute() / recipe.title, where, device, threads)
        for recipe in {recipe.hash: recipe for recipe in recipes}.values()
    ]
    outcomes = {job.recipe.hash: job.outcome(end) for job in jobs if (end := read_end(job.path))}
    todo = [job for job in jobs if job.recipe.hash not in outcomes]
    called = names or name_recipes([job.recipe for job in jobs])
    runs = {job.path: (called[job.recipe.hash], Run(job.path, job.recipe)) for job in todo}
    with stopped_by_signals(), show_board(runs, skipped=len(outcomes), quiet=quiet) as board:
        try:
            for outcome in _results(todo, executor, board):
                outcomes[outcome.recipe.hash] = outcome
                board.done(outcome.path, outcome.status, outcome.message)
        except KeyboardInterrupt:
            executor.shutdown(wait=True, cancel_futures=True)  # nothing is left running
            raise KeyboardInterrupt("; what ran is saved, the same command goes on") from None
    return [outcomes[job.recipe.hash] for job in jobs]


def _results(todo: Sequence[SweepJob], executor: Executor, board: Board) -> Iterable[Outcome]:
    """Outcomes as they come in; a job whose run is locked is sent again when the lock is gone."""
    futures = {executor.submit(job): job for job in todo}
    elsewhere: list[SweepJob] = []
    while futures or elsewhere:
        if not futures:
            time.sleep(POLL)
        for future in wait(futures, timeout=POLL, return_when=FIRST_COMPLETED).done:
            job, error = futures.pop(future), future.exception()
            outcome = future.result() if error is None else job.failed(error)
            if outcome.status == ELSEWHERE:
                elsewhere.append(job)
                board.elsewhere(job.path)
            else:
                yield outcome
        for job in [job for job in elsewhere if not is_locked(job.path)]:
            elsewhere.remove(job)
            if end := read_end(job.path):
                yield job.outcome(end)
            else:
                futures[executor.submit(job)] = job
        board.refresh()


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within the context SIGTERM and a closed terminal stop a sweep as Ctrl-C does, and leave no process behind."""
    closed = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
    heard = [n for n in (signal.SIGTERM, closed) if signal.getsignal(n) != signal.SIG_IGN]  # nohup
    with handle_signals(signal.default_int_handler, *heard):
        yield


def read_end(path: Path) -> str:
    """How a run ended for good, else nothing."""
    with suppress(InputError):  # no recipe yet: the job itself says what is wrong, if anything
        if (status := Run.open(path).status) in OVER:
            return status
    return ""


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
    return [
        Recipe.from_dict(override(tree, chosen), source=source)
        for chosen in product(*settings.values())
    ]


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
    flat = [flat_keys(recipe) for recipe in recipes]
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
    """The table of a sweep: one row per run, its swept values in place of its name, then its figures."""
    rows = compare_runs([Run.open(outcome.path) for outcome in outcomes])
    different = find_differences([outcome.recipe for outcome in outcomes])
    keys = {key for settings in different for key in settings}
    last = Counter(key.rpartition(".")[2] for key in keys)
    short = {key: end if last[end := key.rpartition(".")[2]] == 1 else key for key in keys}
    for row, settings in zip(rows, different, strict=True):
        swept = " ".join(f"{short[key]}={value}" for key, value in settings.items())
        row["run"] = swept or row["run"]
    return rows


def export_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """CSV: one row per run with the settings in which the runs differ, how each ended, and its final figures."""
    rows = []
    differences = find_differences([outcome.recipe for outcome in outcomes])
    for outcome, settings in zip(outcomes, differences, strict=True):
        figures = Run.open(outcome.path).report() if outcome.status == "finished" else {}
        ended = {"run": outcome.path.name, "status": outcome.status}
        rows.append({**settings, **ended, **figures})
    write_atomically(path, format_csv(rows))
