"""How the package words things: shares, figures, an epoch, lengths of time, and names that do not exist."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

NEAREST = 3  # names that are offered instead of one that does not exist
LINE = {
    "train.loss": "loss",
    "validation.accuracy": "validation",
    "test.accuracy": "test",
    "averaged.accuracy": "averaged",
    "memorised": "memorised",
}
"""The figures of an epoch's line."""


def format_percent(share: float) -> str:
    """A share of one in per cent.

    >>> format_percent(0.8123)
    '81.2 %'
    """
    return f"{100 * share:.1f} %"


def format_figure(name: str, value: float) -> str:
    """A figure by its name: accuracies and what is memorised in per cent, the others with three digits.

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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about a name that does not exist: the nearest ones that do.

    >>> did_you_mean("weight_deacy", ["lr", "weight_decay"]), did_you_mean("x", ["lr", "ess"])
    ("did you mean 'weight_decay'?", "there are 'ess' and 'lr'")
    """
    known = sorted(known)
    if near := get_close_matches(name, known, NEAREST):
        return f"did you mean {_join(near, 'or')}?"
    if len(known) > 2 * NEAREST:
        near = get_close_matches(name, known, NEAREST, cutoff=0)
        return f"the nearest of {len(known)} are {_join(near, 'and')}"
    return f"there are {_join(known, 'and')}" if known else "there are none"


def _join(names: list[str], word: str) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} {word} {last}" if first else last
