"""Progress on stderr: a live bar on a terminal, one line in a notebook, several when piped, nothing when quiet."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, TypeVar

from bayesmooth.words import format_duration

T = TypeVar("T")

Numbers = Callable[[], Mapping[str, str]]
"""Figures to show, computed only when a line is about to be drawn."""

SILENT = ContextVar("SILENT", default=False)
LIVE, NOTEBOOK, LINES, NOTHING = 0.1, 0.3, 30.0, inf
"""The kinds of bars, by the seconds after which they are drawn again; a log stays short."""


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """No progress inside, if `quiet`: what is called there need not be told."""
    before = SILENT.set(quiet or SILENT.get())
    try:
        yield
    finally:
        SILENT.reset(before)


def track(items: Iterable[T], *, description: str, quiet: bool = False) -> Iterator[T]:
    """Pass `items` on, and show how many are done and how long the rest will take.

    >>> sum(track([1, 2, 3], description="adding", quiet=True))
    6
    """
    total = len(items) if isinstance(items, Sized) else 0
    with bar(total, description=description, quiet=quiet) as shown_bar:
        for done, item in enumerate(items, start=1):
            yield item
            shown_bar.update(done)


@contextmanager
def bar(total: int, *, description: str = "", done: int = 0, quiet: bool = False) -> Iterator["Bar"]:
    """A bar over `total` steps (0: unknown) of which `done` were made earlier."""
    if quiet or SILENT.get():
        yield Bar(NOTHING, description, total, done)
    elif sys.stderr.isatty() and (rich := _rich()):
        with rich:
            yield Bar(LIVE, description, total, done, rich)
    else:
        shown_bar = Bar(NOTEBOOK if "ipykernel" in sys.modules else LINES, description, total, done)
        try:
            yield shown_bar
        finally:
            if shown_bar.shown:
                shown_bar.erase()


class Bar:
    """A bar to move, and to print lines above; `every` says which kind it is."""

    def __init__(self, every: float, description: str, total: int, done: int, rich: Any = None) -> None:
        self.every, self.description, self.total, self.first, self.rich = every, description, total, done, rich
        self.stream, self.start = sys.stderr, time.monotonic()  # a job in a thread may redirect stderr
        self.drawn = self.start
        self.shown = 0  # characters of the line that a notebook writes over
        if rich is not None:
            self.task = rich.add_task(description, total=total or None, completed=done, numbers="")

    def update(self, done: int, title: str = "", numbers: Numbers = dict) -> None:
        """Show that `done` of the items are behind us."""
        ends = self.rich is not None and done == self.total
        if (now := time.monotonic()) - self.drawn < self.every and not ends:
            return
        self.drawn, title = now, title or self.description
        figures = [f"{name} {value}" for name, value in numbers().items()]
        if self.rich is not None:
            self.rich.update(self.task, completed=done, description=title, numbers="  ".join(figures))
            return
        parts = [f"{title} {done}/{self.total or '?'}", *figures]
        if self.total and done > self.first:
            rest = (now - self.start) / (done - self.first) * (self.total - done)
            parts.append(f"{format_duration(rest)} left")
        text = " · ".join(parts)
        if self.every == NOTEBOOK:
            print(f"\r{text:<{self.shown}}", end="", file=self.stream, flush=True)
            self.shown = len(text)
        else:
            self.line(text)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        if self.rich is not None:
            self.rich.console.print(text, highlight=False, markup=False)
        elif self.every != NOTHING:
            if self.shown:
                self.erase()
            print(text, file=self.stream, flush=True)

    def erase(self) -> None:
        """Delete the line that a notebook shows."""
        print(f"\r{'':<{self.shown}}\r", end="", file=self.stream, flush=True)
        self.shown = 0


def _rich() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    bar = BarColumn(bar_width=20)  # at 80 columns there is room for two figures
    columns = ("{task.description}", bar, MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, "{task.fields[numbers]}", console=Console(stderr=True))
