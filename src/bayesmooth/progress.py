"""Figures in words, and progress on stderr.

A bar is a line that is written over on a terminal or in a notebook, lines when piped, or nothing.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from shutil import get_terminal_size
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

Numbers = Callable[[], Mapping[str, str]]
"""Figures to show, computed only when a line is about to be drawn."""

SILENT = ContextVar("SILENT", default=False)
LIVE, LINES, NOTHING = 0.2, 30.0, inf
"""The kinds of bars, by the seconds after which they are drawn again; a log stays short."""
LINE = {
    "train.loss": "loss",
    "validation.accuracy": "validation",
    "test.accuracy": "test",
    "averaged.accuracy": "averaged",
    "memorised": "memorised",
}
"""The figures of an epoch's line."""


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """No progress inside, if `quiet`: functions called there need no argument for it."""
    before = SILENT.set(quiet or SILENT.get())
    try:
        yield
    finally:
        SILENT.reset(before)


def track(items: Iterable[T], *, description: str, quiet: bool = False) -> Iterator[T]:
    """Pass `items` on, and show the number done and the time that the rest will take.

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
    kind, now = NOTHING if quiet or SILENT.get() else every, time.monotonic()
    shown = Bar(kind, description, total, done, sys.stderr, now, now)  # a job in a thread may redirect stderr
    try:
        yield shown
    finally:
        if shown.shown:
            shown.line("", end="")


@dataclass
class Bar:
    """A bar to move, and to print lines above; `every` is its kind."""

    every: float
    description: str
    total: int
    first: int  # done earlier
    stream: TextIO
    start: float
    drawn: float
    shown: int = 0  # characters of the line that is written over

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


# ---- figures ----


def format_percent(share: float) -> str:
    """A share of one in per cent.

    >>> format_percent(0.8123)
    '81.2 %'
    """
    return f"{100 * share:.1f} %"


def format_figure(name: str, value: float) -> str:
    """A figure by its name: accuracies and the memorised share in per cent, the others with three digits.

    >>> format_figure("test.accuracy", 0.8123), format_figure("train.loss", 0.51234)
    ('81.2 %', '0.512')
    """
    return format_percent(value) if name.endswith(("accuracy", "memorised")) else f"{value:.3f}"


def format_epoch(record: Mapping[str, Any], epochs: int) -> str:
    """An epoch in a line.

    >>> format_epoch({"epoch": 3, "train.loss": 0.5, "test.accuracy": 0.931}, epochs=20)
    'epoch  3/20  loss 0.500  test 93.1 %'
    """
    figures = [f"{name} {format_figure(key, record[key])}" for key, name in LINE.items() if key in record]
    return "  ".join([f"epoch {record['epoch']:{len(str(epochs))}}/{epochs}", *figures])


def format_duration(seconds: float) -> str:
    """A length of time as a person says it.

    >>> format_duration(7.2), format_duration(190), format_duration(7500), format_duration(1e6)
    ('7 s', '3 min', '2 h 05 min', '12 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes > 100 * 60:
        return f"{minutes / 1440:.0f} days"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
