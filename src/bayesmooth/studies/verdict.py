"""What the paper says, what was measured, and whether the two agree: computed from the table alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Literal

Verdict = Literal["reproduced", "direction only", "not reproduced", "not run"]
Values = Sequence[float]
Pair = tuple[Values, Values]
"""The accuracies of ours and of the other, a number a seed."""

COMPARABLE = 0.01  # a point of accuracy: "comparable" means no further behind than this
CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper beside what was measured."""

    paper: str
    measured: str
    verdict: Verdict


def difference(ours: Values, others: Values) -> tuple[float, float]:
    """(mean difference, its standard error); with one seed the error is unknown, so infinite.

    >>> difference([0.5, 0.75], [0.25, 0.25]), difference([0.5], [0.25])
    ((0.375, 0.125), (0.25, inf))
    """
    if min(len(ours), len(others)) < 2:
        return mean(ours) - mean(others), math.inf
    error = math.sqrt(variance(ours) / len(ours) + variance(others) / len(others))
    return mean(ours) - mean(others), error


def ahead(pairs: Sequence[Pair], by: float = 0.0) -> Verdict:
    """Ours is ahead by more than `by` in every pair, clearly: reproduced; on average only: direction only.

    >>> ahead([([0.9, 0.91], [0.5, 0.51])]), ahead([([0.9], [0.5])]), ahead([([0.4], [0.5])])
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not _complete(pairs):
        return "not run"
    differences = [difference(*pair) for pair in pairs]
    if all(value - by > CLEAR * error for value, error in differences):
        return "reproduced"
    return "direction only" if mean(value for value, _ in differences) > by else "not reproduced"


def comparable(pairs: Sequence[Pair]) -> Verdict:
    """Ours is at most a point behind in every pair: reproduced; on average only: direction only.

    >>> comparable([([0.895], [0.9])]), comparable([([0.8], [0.9])])
    ('reproduced', 'not reproduced')
    """
    if not _complete(pairs):
        return "not run"
    behind = [difference(*pair)[0] + COMPARABLE for pair in pairs]
    if min(behind) >= 0:
        return "reproduced"
    return "direction only" if mean(behind) >= 0 else "not reproduced"


def gain(pair: Pair, claimed: float) -> Verdict:
    """A gain of `claimed`: half of it or more is a reproduction, any gain at all the direction.

    >>> gain(([0.9], [0.8]), 0.12), gain(([0.81], [0.8]), 0.12), gain(([0.79], [0.8]), 0.12)
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not _complete([pair]):
        return "not run"
    measured = difference(*pair)[0]
    if measured >= claimed / 2:
        return "reproduced"
    return "direction only" if measured > 0 else "not reproduced"


def holds(parts: Sequence[bool]) -> Verdict:
    """A statement in parts: all of them, more than half, fewer; none were looked at.

    >>> holds([True, True]), holds([True, True, False]), holds([False]), holds([])
    ('reproduced', 'direction only', 'not reproduced', 'not run')
    """
    if not parts:
        return "not run"
    if all(parts):
        return "reproduced"
    return "direction only" if sum(parts) > len(parts) / 2 else "not reproduced"


def _complete(pairs: Sequence[Pair]) -> bool:
    return bool(pairs) and all(len(ours) and len(others) for ours, others in pairs)
