"""fig:cifar100_ivon_hess: how much IVON depends on h₀."""

from bayesmooth.studies.comparing import sensitivity
from bayesmooth.studies.hessians import LEARNED, cells, draw
from bayesmooth.studies.study import Study
from bayesmooth.studies.table import Table, distinct, where
from bayesmooth.studies.verdict import Claim, holds

SMALL, ALLOWED = (
    0.05,
    0.10,
)  # the paper speaks of h₀ above the one, and of a variation up to the other


def claims(table: Table) -> list[Claim]:
    """Accuracy varies by 10 points at most."""
    large = [row for row in table if row["strength"] > SMALL]
    noises = distinct(large, "noise")
    found = {noise: sensitivity(where(large, noise=noise)) for noise in noises}
    known = {noise: loss for noise, loss in found.items() if loss is not None}
    words = [f"{noise}: {100 * loss:.1f} points" for noise, loss in known.items()]
    return [
        Claim(
            "accuracy varies by up to 10 points over h₀ > .05",
            "; ".join(words) or "nothing",
            holds([loss <= ALLOWED for loss in known.values()]),
        )
    ]


STUDY = Study(
    "hessian-init",
    "fig:cifar100_ivon_hess",
    "The first Hessian",
    "IVON's accuracy over h₀",
    lambda scale: cells(scale, LEARNED),
    draw,
    claims,
)
