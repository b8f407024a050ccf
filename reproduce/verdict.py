"""A claim: what is said, what was measured, and whether the two agree, computed from the table alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Literal

Verdict = Literal["reproduced", "direction only", "not reproduced", "not run"]
Values = Sequence[float]
Pair = tuple[Values, Values]
"""The accuracies of ours and of the other, one number per seed."""

COMPARABLE = 0.01  # a point of accuracy: "comparable" means no further behind than this
CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or one of ours (`own`), beside what was measured."""

    says: str
    measured: str
    verdict: Verdict
    own: bool = False


def difference(ours: Values, others: Values) -> tuple[float, float]:
    """(mean difference, its standard error); with one seed the error is unknown, so infinite.

    >>> difference([0.5, 0.75], [0.25, 0.25]), difference([0.5], [0.25])
    ((0.375, 0.125), (0.25, inf))
    """
    if min(len(ours), len(others)) < 2:
        return mean(ours) - mean(others), math.inf
    error = math.sqrt(variance(ours) / len(ours) + variance(others) / len(others))
    return mean(ours) - mean(others), error


def ahead(pairs: Sequence[Pair], *, sign: int = 1, gain: float = 0.0) -> Verdict:
    """Ours is clearly ahead in every pair: reproduced; on average, and clearly behind in none: direction only.

    With the sign −1 less is better. Where the paper names a `gain`, half of it reproduces; a tenth is the direction.

    >>> ahead([([0.9, 0.91], [0.5, 0.51])]), ahead([([0.9], [0.5])]), ahead([([0.4], [0.5])])
    ('reproduced', 'direction only', 'not reproduced')
    >>> ahead([([0.5, 0.51], [0.9, 0.91])], sign=-1)
    'reproduced'
    >>> ahead([([0.9, 0.9], [0.8, 0.8])], gain=0.12), ahead([([0.805], [0.8])], gain=0.12)
    ('reproduced', 'not reproduced')
    """
    if not pairs or not all(len(values) for pair in pairs for values in pair):
        return "not run"
    leads = [(sign * value, error) for value, error in (difference(*pair) for pair in pairs)]
    clear = all(value > CLEAR * error and value >= gain / 2 for value, error in leads)
    average = mean(value for value, _ in leads)
    lost = any(value < -CLEAR * error for value, error in leads)
    return grade(clear, average > 0 and average >= gain / 10 and not lost)


def comparable(pairs: Sequence[Pair]) -> Verdict:
    """Ours is at most a point behind in every pair: reproduced; on average, or with one seed: direction only.

    >>> comparable([([0.89, 0.9], [0.9, 0.9])]), comparable([([0.895], [0.9])]), comparable([([0.8], [0.9])])
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not pairs or not all(len(values) for pair in pairs for values in pair):
        return "not run"
    leads = [difference(*pair) for pair in pairs]
    return grade(
        all(value + COMPARABLE >= 0 and error < math.inf for value, error in leads),
        mean(value for value, _ in leads) + COMPARABLE >= 0,
    )


def holds(parts: Sequence[bool]) -> Verdict:
    """A statement in parts: all of them hold, more than half, fewer, or there are none.

    >>> holds([True, True]), holds([True, True, False]), holds([False]), holds([])
    ('reproduced', 'direction only', 'not reproduced', 'not run')
    """
    return grade(all(parts), sum(parts) > len(parts) / 2) if parts else "not run"


def grade(reproduced: bool, direction: bool) -> Verdict:
    """The verdict on what holds in full, in its direction, or not."""
    return "reproduced" if reproduced else "direction only" if direction else "not reproduced"
