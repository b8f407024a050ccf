"""The table of the methods, side by side: live on a terminal while they train, and as text."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.lab import Recipe, Run
from bayesmooth.lab.compare import table
from bayesmooth.lab.studies.figures.demo.results import MEASURES, OURS, Result, title
from bayesmooth.progress import duration

COLUMNS = {
    "test.accuracy": "accuracy",
    "memorised": "memorised",
    "test.nll": "nll",
    "test.ece": "ece",
}


@contextmanager
def watching(planned: Mapping[str, Sequence[Recipe]], out: Path, quiet: bool) -> Iterator[bool]:
    """Show how the runs are doing, where stderr is a terminal; says whether it does."""
    live = None if quiet or not sys.stderr.isatty() else _live(planned, out)
    if live is None:
        yield False
        return
    with live:
        yield True


def _live(planned: Mapping[str, Sequence[Recipe]], out: Path) -> Any:
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    watched = Watched(planned, out)
    return Live(
        get_renderable=watched.table,
        console=Console(stderr=True),
        refresh_per_second=2,
        transient=True,
    )


class Watched:
    """Runs under way, read from their directories."""

    def __init__(self, planned: Mapping[str, Sequence[Recipe]], out: Path) -> None:
        self.start = time.monotonic()
        self.runs = {
            name: [Run(out / recipe.title, recipe) for recipe in recipes]
            for name, recipes in planned.items()
        }

    def table(self) -> Any:
        """A row a method: how far it is, and its latest figures as the mean over the seeds that have any."""
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        shown = Table(box=box.SIMPLE_HEAD, caption_justify="left")
        shown.add_column("", no_wrap=True)
        shown.add_column("training")
        for key in COLUMNS.values():
            shown.add_column(MEASURES[key].name, justify="right")
        done = total = 0
        for name, runs in self.runs.items():
            histories = [history for run in runs if (history := run.metrics())]
            trained = sum(map(len, histories))
            epochs = sum(run.recipe.train.epochs for run in runs)
            done, total = done + trained, total + epochs
            bar = ProgressBar(total=epochs, completed=trained, width=10)
            style = "bold dark_orange" if name == OURS else ""
            shown.add_row(title(name, runs[0]), bar, *_latest(histories), style=style)
        shown.caption = self.left(done / total)
        return shown

    def left(self, done: float) -> str:
        """What is still to come."""
        if done == 1:
            return "measuring and drawing"
        if not done:
            return "loading"
        return f"{duration((time.monotonic() - self.start) * (1 - done) / done)} left"


def _latest(histories: Sequence[Sequence[Mapping[str, float]]]) -> list[str]:
    if not histories:
        return ["–"] * len(COLUMNS)
    return [
        MEASURES[name].said([mean(history[-1][key] for history in histories)])
        for key, name in COLUMNS.items()
    ]


def text(results: Sequence[Result]) -> str:
    """The final table, aligned; it fits into 80 columns."""
    return table(
        [
            {"": row.name, **{MEASURES[key].name: row.said(key) for key in COLUMNS.values()}}
            for row in results
        ]
    )
