"""fig:cifar100_fix_cov: the covariance learned, and fixed."""

from bayesmooth.lab.studies.figures.comparing import find_rows, list_noises
from bayesmooth.lab.studies.figures.hessian_init import (
    FIXED,
    LEARNED,
    draw_over_hessians,
    list_hessians,
)
from bayesmooth.lab.studies.rows import Table, find_best, format_shares
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.verdict import Claim, ahead


def claims(table: Table) -> list[Claim]:
    """Learned beats fixed, both at their best h₀."""
    noises = list_noises(table)
    best = {(n, m): find_best(find_rows(table, n, m))[1] for n in noises for m in (LEARNED, FIXED)}
    words = [
        f"{n}: learned {format_shares(best[n, LEARNED])}, fixed {format_shares(best[n, FIXED])}"
        for n in noises
    ]
    return [
        Claim(
            "learned Σ outperforms every fixed Σ on all three noises",
            "; ".join(words),
            ahead([(best[n, LEARNED], best[n, FIXED]) for n in noises]),
        )
    ]


STUDY = Study(
    "fixed-covariance",
    "fig:cifar100_fix_cov",
    "The covariance, learned or fixed",
    "accuracy over h₀ with Σ learned, and with Σ fixed (β₂ = 1)",
    lambda scale: list_hessians(scale, LEARNED, FIXED),
    draw_over_hessians,
    claims,
)
