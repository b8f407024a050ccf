"""Progress on stderr: a line that is written over on a terminal or in a notebook, lines when piped, or nothing."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from shutil import get_terminal_size
from typing import TypeVar

from bayesmooth.words import format_duration

T = TypeVar("T")

Numbers = Callable[[], Mapping[str, str]]
"""Figures to show, computed only when a line is about to be drawn."""

SILENT = ContextVar("SILENT", default=False)
LIVE, LINES, NOTHING = 0.2, 30.0, inf
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
    every = LIVE if sys.stderr.isatty() or "ipykernel" in sys.modules else LINES
    shown = Bar(NOTHING if quiet or SILENT.get() else every, description, total, done)
    try:
        yield shown
    finally:
        if shown.shown:
            shown.line("", end="")


class Bar:
    """A bar to move, and to print lines above; `every` says which kind it is."""

    def __init__(self, every: float, description: str, total: int, done: int) -> None:
        self.every, self.description, self.total, self.first = every, description, total, done
        self.stream, self.start = sys.stderr, time.monotonic()  # a job in a thread may redirect stderr
        self.drawn = self.start
        self.shown = 0  # characters of the line that is written over

    def update(self, done: int, title: str = "", numbers: Numbers = dict) -> None:
        """Show that `done` of the items are behind us."""
        now = time.monotonic()
        if now - self.drawn < self.every:
            return
        self.drawn = now
        parts = [f"{title or self.description} {done}/{self.total or '?'}"]
        parts += [f"{name} {value}" for name, value in numbers().items()]
        if self.total and done > self.first:
            rest = (now - self.start) / (done - self.first) * (self.total - done)
            parts.append(f"{format_duration(rest)} left")
        text = " · ".join(parts)
        if self.every == LINES:
            self.line(text)
            return
        text = text[: get_terminal_size().columns - 1]
        self.line(text, end="")
        self.shown = len(text)

    def line(self, text: str, end: str = "\n") -> None:
        """Print a line that stays, in the place of one that is written over."""
        if self.every != NOTHING:
            clear = f"\r{'':<{self.shown}}\r" if self.shown else ""
            print(clear + text, end=end, file=self.stream, flush=True)
            self.shown = 0
