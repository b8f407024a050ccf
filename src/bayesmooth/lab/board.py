"""What a sweep is doing: a live table on a terminal, a line a finished run when piped."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.lab.run import Run
from bayesmooth.lab.summary import COLUMNS, shown
from bayesmooth.progress import duration

SHOWN = ("test.accuracy", "averaged.accuracy", "memorised")
ELSEWHERE = "running elsewhere"

Named = Mapping[Path, tuple[str, Run]]
"""The runs that a sweep has to do, by directory, and what each is called."""


class Board:
    """Counts what is done, and says how long the rest will take. Nothing is shown: that is the quiet one."""

    def __init__(self, runs: Named, skipped: int) -> None:
        self.runs, self.skipped, self.start = runs, skipped, time.monotonic()
        self.total = skipped + len(runs)
        self.ends: dict[Path, str] = {}
        self.others: set[Path] = set()

    def elsewhere(self, path: Path) -> None:
        """Another process is at work on the run, and this one waits for it."""
        self.others.add(path)

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        self.ends[path] = status

    def refresh(self) -> None:
        """Look again at what is under way."""

    def left(self) -> str:
        """The time that the rest will take at the pace so far."""
        rest = len(self.runs) - len(self.ends)
        if not rest or not self.ends:
            return ""
        return f"{duration((time.monotonic() - self.start) / len(self.ends) * rest)} left"

    def line(self, path: Path, message: str = "") -> str:
        """A finished run in a line."""
        count = f"[{self.skipped + len(self.ends)}/{self.total}]"
        name, run = self.runs[path]
        words = [count, f"{self.ends[path]:11}", name, message or figures(run), self.left()]
        return "  ".join(word for word in words if word)


class Plain(Board):
    """A line a run."""

    def __init__(self, runs: Named, skipped: int) -> None:
        super().__init__(runs, skipped)
        self.stream = sys.stderr  # a job in a thread of this process redirects it while it runs
        old = f", {skipped} of them done before" if skipped else ""
        print(f"{self.total} runs{old}", file=self.stream, flush=True)

    def elsewhere(self, path: Path) -> None:
        """Another process is at work on the run, and this one waits for it."""
        if path not in self.others:
            print(f"{ELSEWHERE}  {self.runs[path][0]}", file=self.stream, flush=True)
        super().elsewhere(path)

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        super().done(path, status, message)
        print(self.line(path, message), file=self.stream, flush=True)


class Live(Board):
    """What runs now as a table that rich redraws, below the lines of what has failed."""

    def __init__(self, runs: Named, skipped: int, live: Any) -> None:
        super().__init__(runs, skipped)
        self.live = live

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        super().done(path, status, message)
        if status != "finished":
            self.live.console.print(self.line(path, message), highlight=False, markup=False)

    def refresh(self) -> None:
        """Read how far the runs under way have come."""
        from rich.table import Table

        counts = Counter(self.ends.values()) + Counter(finished=self.skipped)
        summary = [f"{count} {status}" for status, count in counts.items()]
        table = Table(title="  ".join([*summary, f"of {self.total}", self.left()]))
        for column in ("run", "epoch", "figures"):
            table.add_column(column)
        for path, (name, run) in self.runs.items():
            if path not in self.ends and run.status == "running":
                where = f" ({ELSEWHERE})" if path in self.others else ""
                table.add_row(name + where, epochs(run), figures(run))
        self.live.update(table)


@contextmanager
def board(runs: Named, *, skipped: int = 0, quiet: bool = False) -> Iterator[Board]:
    """The display that suits where stderr goes."""
    if quiet:
        yield Board(runs, skipped)
    elif sys.stderr.isatty() and (live := _live()):
        with live:
            yield Live(runs, skipped, live)
    else:
        yield Plain(runs, skipped)


def epochs(run: Run) -> str:
    """Done, and of how many."""
    return f"{len(_metrics(run))}/{run.recipe.train.epochs}"


def figures(run: Run) -> str:
    """The last figures of a run in words."""
    last = (_metrics(run) or [{}])[-1]
    numbers = shown({COLUMNS[key]: last[key] for key in SHOWN if key in last})
    return "  ".join(f"{name} {value}" for name, value in numbers.items())


def _metrics(run: Run) -> list[dict[str, Any]]:
    with suppress(InputError):  # a damaged run is the business of its job, which says so
        return run.metrics()
    return []


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    return RichLive(console=Console(stderr=True), refresh_per_second=2)
