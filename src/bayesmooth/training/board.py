"""What a sweep is doing: a live table on a terminal, a line a finished run when piped."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesmooth.progress import duration
from bayesmooth.training.run import METRICS, STATUS, Run
from bayesmooth.training.summary import COLUMNS, shown

SHOWN = ("test.accuracy", "averaged.accuracy", "memorised")


class Board:
    """Counts what is done, and says how long the rest will take. Nothing is shown: that is the quiet one."""

    def __init__(self, names: Mapping[Path, str], skipped: int) -> None:
        self.names, self.skipped, self.start = names, skipped, time.monotonic()
        self.ends: dict[Path, str] = {}

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        self.ends[path] = status

    def refresh(self) -> None:
        """Look again at what is under way."""

    def left(self) -> str:
        """The time that the rest will take at the pace so far."""
        rest = len(self.names) - self.skipped - len(self.ends)
        if not rest or not self.ends:
            return ""
        return f"{duration((time.monotonic() - self.start) / len(self.ends) * rest)} left"

    def line(self, path: Path, message: str = "") -> str:
        """A finished run in a line."""
        count = f"[{self.skipped + len(self.ends)}/{len(self.names)}]"
        words = [
            count,
            f"{self.ends[path]:11}",
            self.names[path],
            message or figures(path),
            self.left(),
        ]
        return "  ".join(word for word in words if word)


class Plain(Board):
    """A line a run."""

    def __init__(self, names: Mapping[Path, str], skipped: int) -> None:
        super().__init__(names, skipped)
        self.stream = sys.stderr  # a job in a thread of this process redirects it while it runs
        old = f", {skipped} of them done before" if skipped else ""
        print(f"{len(names)} runs{old}", file=self.stream, flush=True)

    def done(self, path: Path, status: str, message: str = "") -> None:
        """A run has ended."""
        super().done(path, status, message)
        print(self.line(path, message), file=self.stream, flush=True)


class Live(Board):
    """What runs now as a table that rich redraws, below the lines of what has failed."""

    def __init__(self, names: Mapping[Path, str], skipped: int, live: Any) -> None:
        super().__init__(names, skipped)
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
        table = Table(title="  ".join([*summary, f"of {len(self.names)}", self.left()]))
        for column in ("run", "epoch", "figures"):
            table.add_column(column)
        for path, name in self.names.items():
            if path not in self.ends and (path / STATUS).exists():
                run = Run.open(path)
                if run.status == "running":
                    table.add_row(name, epochs(run), figures(path))
        self.live.update(table)


@contextmanager
def board(names: Mapping[Path, str], *, skipped: int = 0, quiet: bool = False) -> Iterator[Board]:
    """The display that suits where stderr goes."""
    if quiet:
        yield Board(names, skipped)
    elif sys.stderr.isatty() and (live := _live()):
        with live:
            yield Live(names, skipped, live)
    else:
        yield Plain(names, skipped)


def epochs(run: Run) -> str:
    """Done, and of how many."""
    return f"{len(run.metrics())}/{run.recipe.train.epochs}"


def figures(path: Path) -> str:
    """The last figures of a run in words."""
    if not (path / METRICS).exists():
        return ""
    last = (Run.open(path).metrics() or [{}])[-1]
    numbers = shown({COLUMNS[key]: last[key] for key in SHOWN if key in last})
    return "  ".join(f"{name} {value}" for name, value in numbers.items())


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    return RichLive(console=Console(stderr=True), refresh_per_second=2)
