"""The table of the methods, side by side: live on a terminal while they train, and as text."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesmooth.studies.demo.results import MEASURES, Result, title
from bayesmooth.training import Recipe, Run
from bayesmooth.training.compare import table
from bayesmooth.training.run import METRICS

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
        self.planned, self.out = planned, out

    def table(self) -> Any:
        """A row a method: its progress, and its latest figures as the mean over the seeds that have any."""
        from rich import box
        from rich.table import Table

        shown = Table(box=box.SIMPLE_HEAD, title="training on labels that are partly wrong")
        shown.add_column("")
        for name in ("epochs", *(MEASURES[key].name for key in COLUMNS.values())):
            shown.add_column(name, justify="right")
        for name, recipes in self.planned.items():
            runs = [Run(self.out / recipe.title, recipe) for recipe in recipes]
            records = [run.metrics() for run in runs if (run.path / METRICS).exists()]
            records = [history for history in records if history]
            done = sum(len(history) for history in records)
            total = sum(recipe.train.epochs for recipe in recipes)
            cells = [
                MEASURES[column].said([history[-1][key] for history in records]) if records else "–"
                for key, column in COLUMNS.items()
            ]
            shown.add_row(title(name, runs[0]), f"{done}/{total}", *cells)
        return shown


def text(results: Sequence[Result]) -> str:
    """The final table, aligned."""
    return table(
        [
            {"": row.name, **{measure.name: row.said(key) for key, measure in MEASURES.items()}}
            for row in results
        ]
    )
