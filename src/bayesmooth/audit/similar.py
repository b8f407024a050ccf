"""What a label is judged by: the nearest examples with it and with the suggested one, and what is usual for it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.neighbours import unit_rows

Array = NDArray[Any]

SHOWN = 1_000  # examples whose neighbours are looked for: as many as a person will look at
EACH = 3  # neighbours with each label
FENCE = 1.5  # interquartile ranges beyond the quartiles: Tukey's rule
SELDOM = 0.02  # of a class: categories with less are unusual
MOST_CATEGORIES = 50  # of a column: more are names
FEWEST = 8  # values of a class that it takes to say what is usual


class Similar(NamedTuple):
    """Of M examples the three nearest that carry the given label and the suggested one: positions, −1 where none is."""

    examples: Array
    """Positions of the M examples."""
    given: Array
    suggested: Array


def find_similar(embeddings: Tensor, labels: Array, suggested: Array, index: Array) -> Similar:
    """The nearest by cosine similarity, none of them the example itself.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> find_similar(x, np.array([0, 0, 1, 0]), np.array([0, 0, 1, 1]), np.array([3])).given.tolist()
    [[1, 0, -1]]
    """
    rows = unit_rows("embeddings", embeddings)
    found = [_find_nearest(rows, labels, wanted, index) for wanted in (labels, suggested)]
    return Similar(index, *found)


def _find_nearest(rows: Tensor, labels: Array, wanted: Array, index: Array) -> Array:
    """For each example of `index`, the nearest others that carry its wanted label."""
    found = np.full((len(index), EACH), -1)
    for label in np.unique(wanted[index]):
        asked, carriers = np.flatnonzero(wanted[index] == label), np.flatnonzero(labels == label)
        if not len(carriers):
            continue
        queries = torch.from_numpy(index[asked])
        similarity = rows[queries] @ rows[torch.from_numpy(carriers)].mT
        similarity[queries[:, None] == torch.from_numpy(carriers)] = -2.0  # itself
        best = similarity.topk(min(EACH, len(carriers)), dim=1)
        places = np.where(best.values.numpy() > -1.5, carriers[best.indices.numpy()], -1)
        found[asked, : places.shape[1]] = places
    return found


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
