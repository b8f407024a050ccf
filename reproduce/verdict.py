"""What the paper says, what was measured, and whether the two agree: computed from the table alone."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """A sentence of the paper beside what was measured."""

    paper: str
    measured: str
    verdict: Verdict


def count_verdicts(claims: Sequence[Mapping[str, str]]) -> str:
    """How many claims of a study's JSON have which verdict.

    >>> count_verdicts([{"verdict": "reproduced"}, {"verdict": "not run"}, {"verdict": "reproduced"}])
    '3 claims: 2 reproduced, 1 not run'
    """
    counts = Counter(claim["verdict"] for claim in claims).most_common()
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts)
    return (
        f"{len(claims)} claim{'' if len(claims) == 1 else 's'}: {said or 'nothing is measured yet'}"
    )


def difference(ours: Values, others: Values) -> tuple[float, float]:
    """(mean difference, its standard error); with one seed the error is unknown, so infinite.

    >>> difference([0.5, 0.75], [0.25, 0.25]), difference([0.5], [0.25])
    ((0.375, 0.125), (0.25, inf))
    """
    if min(len(ours), len(others)) < 2:
        return mean(ours) - mean(others), math.inf
    error = math.sqrt(variance(ours) / len(ours) + variance(others) / len(others))
    return mean(ours) - mean(others), error


def ahead(pairs: Sequence[Pair], sign: int = 1) -> Verdict:
    """Ours is clearly ahead in every pair: reproduced; on average, and clearly behind in none: direction only.

    With the sign −1 less is better.

    >>> ahead([([0.9, 0.91], [0.5, 0.51])]), ahead([([0.9], [0.5])]), ahead([([0.4], [0.5])])
    ('reproduced', 'direction only', 'not reproduced')
    >>> ahead([([0.5, 0.51], [0.9, 0.91])], sign=-1)
    'reproduced'
    """
    if not _complete(pairs):
        return "not run"
    leads = [(sign * value, error) for value, error in (difference(*pair) for pair in pairs)]
    lost = any(value < -CLEAR * error for value, error in leads)
    return _grade(
        all(value > CLEAR * error for value, error in leads),
        mean(value for value, _ in leads) > 0 and not lost,
    )


def comparable(pairs: Sequence[Pair]) -> Verdict:
    """Ours is at most a point behind in every pair: reproduced; on average, or with one seed: direction only.

    >>> comparable([([0.89, 0.9], [0.9, 0.9])]), comparable([([0.895], [0.9])]), comparable([([0.8], [0.9])])
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not _complete(pairs):
        return "not run"
    leads = [difference(*pair) for pair in pairs]
    return _grade(
        all(value + COMPARABLE >= 0 and error < math.inf for value, error in leads),
        mean(value for value, _ in leads) + COMPARABLE >= 0,
    )


def gain(pair: Pair, claimed: float) -> Verdict:
    """A gain of `claimed`: half of it or more, and clear, is a reproduction; a tenth of it the direction.

    >>> gain(([0.9, 0.9], [0.8, 0.8]), 0.12), gain(([0.9], [0.8]), 0.12), gain(([0.805], [0.8]), 0.12)
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not _complete([pair]):
        return "not run"
    measured, error = difference(*pair)
    clear = measured >= claimed / 2 and measured > CLEAR * error
    return _grade(clear, measured >= claimed / 10)


def holds(parts: Sequence[bool]) -> Verdict:
    """A statement in parts: all of them hold, more than half, fewer, or there are none.

    >>> holds([True, True]), holds([True, True, False]), holds([False]), holds([])
    ('reproduced', 'direction only', 'not reproduced', 'not run')
    """
    return _grade(all(parts), sum(parts) > len(parts) / 2) if parts else "not run"


def _grade(reproduced: bool, direction: bool) -> Verdict:
    return "reproduced" if reproduced else "direction only" if direction else "not reproduced"


def _complete(pairs: Sequence[Pair]) -> bool:
    return bool(pairs) and all(len(ours) and len(others) for ours, others in pairs)
