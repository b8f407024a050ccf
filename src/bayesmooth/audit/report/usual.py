"""What is usual for a label in each column of a table, so that the page can mark what is not."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FENCE = 1.5  # interquartile ranges beyond the quartiles: Tukey's rule
SELDOM = 0.02  # of a class: categories with less are unusual
MOST_CATEGORIES = 50  # of a column: more are names
FEWEST = 8  # values of a class that it takes to say what is usual

Array = NDArray[Any]
Usual = tuple[float, float] | list[str] | None
"""What is usual in a column: from … to, the categories, or unknown."""


def find_usual(
    columns: Mapping[str, Sequence[Any]], labels: Array, classes: int
) -> list[list[Usual]]:
    """One list per class, with what is usual there in each column.

    Numbers: Q₁ − 1.5 (Q₃ − Q₁) … Q₃ + 1.5 (Q₃ − Q₁), within what occurs. Categories: those of at least 2 % of a class.

    >>> find_usual({"age": list(range(40))}, np.zeros(40, int), 1)
    [[(0.0, 39.0)]]
    """
    by_column = [_find_usual_in(values, labels, classes) for values in columns.values()]
    return [list(row) for row in zip(*by_column, strict=True)]


def _find_usual_in(values: Sequence[Any], labels: Array, classes: int) -> list[Usual]:
    numbers = as_numbers(values)
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    if numbers is not None:
        return [_find_fence(numbers[some], numbers) for some in members]
    words = np.array([str(value) for value in values], object)
    if len(set(words)) > min(MOST_CATEGORIES, len(words) // 2):
        return [None] * classes
    return [_find_frequent(words[some]) for some in members]


def as_numbers(values: Sequence[Any]) -> Array | None:
    """A column as floats, missing values as NaN; None where it holds other things."""
    try:
        return np.array([float("nan" if v in ("", None) else v) for v in values])
    except (TypeError, ValueError):
        return None


def _find_fence(some: Array, everything: Array) -> Usual:
    some = some[np.isfinite(some)]
    if len(some) < FEWEST:
        return None
    low, high = np.quantile(some, [0.25, 0.75])
    spread = FENCE * (high - low)
    lowest, highest = np.nanmin(everything), np.nanmax(everything)
    return float(max(low - spread, lowest)), float(min(high + spread, highest))


def _find_frequent(some: Array) -> Usual:
    if len(some) < FEWEST:
        return None
    words, counts = np.unique(some.astype(str), return_counts=True)
    return [str(word) for word in words[counts >= SELDOM * len(some)]]
