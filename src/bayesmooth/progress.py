"""Progress on stderr: a live bar on a terminal, one line in a notebook, several when piped, nothing when quiet."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

from bayesmooth.words import format_duration

T = TypeVar("T")

Numbers = Callable[[], Mapping[str, str]]
"""Figures to show, computed only when a line is about to be drawn."""

SILENT = ContextVar("SILENT", default=False)


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """No progress inside, if `quiet`: what is called there need not be told."""
    before = SILENT.set(quiet or SILENT.get())
    try:
        yield
    finally:
        SILENT.reset(before)


class Bar:
    """A bar to move, and to print lines above. This one is silent."""

    def update(self, done: int, title: str = "", numbers: Numbers = dict) -> None:
        """Show that `done` of the items are behind us."""

    def line(self, text: str) -> None:
        """Print a line that stays."""


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
def bar(total: int, *, description: str = "", done: int = 0, quiet: bool = False) -> Iterator[Bar]:
    """A bar over `total` steps (0: unknown) of which `done` were made earlier."""
    if quiet or SILENT.get():
        yield Bar()
    elif sys.stderr.isatty() and (rich := _rich()):
        with rich:
            yield _Live(rich, description, total, done)
    elif "ipykernel" in sys.modules:
        line = _InPlace(sys.stderr, description, total, done)
        try:
            yield line
        finally:
            line.end()
    else:
        yield _Plain(sys.stderr, description, total, done)


class _Plain(Bar):
    """A line every half a minute, so that a log stays short."""

    every = 30.0

    def __init__(self, stream: TextIO, description: str, total: int, done: int) -> None:
        self.stream, self.description, self.total, self.first = stream, description, total, done
        self.start = self.drawn = time.monotonic()

    def update(self, done: int, title: str = "", numbers: Numbers = dict) -> None:
        if (now := time.monotonic()) - self.drawn >= self.every:
            self.drawn = now
            parts = [f"{title or self.description} {done}/{self.total or '?'}"]
            parts += [f"{name} {value}" for name, value in numbers().items()]
            if self.total and done > self.first:
                rest = (now - self.start) / (done - self.first) * (self.total - done)
                parts.append(f"{format_duration(rest)} left")
            self.draw(" · ".join(parts))

    def draw(self, text: str) -> None:
        """Show how far the work is."""
        self.line(text)

    def line(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class _InPlace(_Plain):
    """A line that is written over itself, as a notebook can."""

    every = 0.3
    shown = 0  # characters, which the next line must cover

    def draw(self, text: str) -> None:
        print(f"\r{text:<{self.shown}}", end="", file=self.stream, flush=True)
        self.shown = len(text)

    def line(self, text: str) -> None:
        self.end()
        super().line(text)

    def end(self) -> None:
        """Delete the line."""
        print(f"\r{'':<{self.shown}}\r", end="", file=self.stream, flush=True)
        self.shown = 0


class _Live(Bar):
    """A bar that rich redraws; figures are refreshed ten times a second at most."""

    every = 0.1

    def __init__(self, rich: Any, description: str, total: int, done: int) -> None:
        self.rich, self.description, self.total, self.drawn = rich, description, total, 0.0
        self.task = rich.add_task(description, total=total or None, completed=done, numbers="")

    def update(self, done: int, title: str = "", numbers: Numbers = dict) -> None:
        if (now := time.monotonic()) - self.drawn >= self.every or done == self.total:
            self.drawn = now
            text = "  ".join(f"{name} {value}" for name, value in numbers().items())
            title = title or self.description
            self.rich.update(self.task, completed=done, description=title, numbers=text)

    def line(self, text: str) -> None:
        self.rich.console.print(text, highlight=False, markup=False)


def _rich() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    except ModuleNotFoundError:
        return None  # plain lines do without the package
    bar = BarColumn(bar_width=20)  # at 80 columns there is room for two figures
    columns = ("{task.description}", bar, MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, "{task.fields[numbers]}", console=Console(stderr=True))
