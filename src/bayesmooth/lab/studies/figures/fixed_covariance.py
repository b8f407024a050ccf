"""fig:cifar100_fix_cov: the covariance learned, and fixed."""

from bayesmooth.lab.studies.figures.hessian_init import (
    FIXED,
    LEARNED,
    draw_over_hessians,
    ivon_cells,
)
from bayesmooth.lab.studies.rows import Table, best, distinct, format_percent, where
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.verdict import Claim, ahead


def claims(table: Table) -> list[Claim]:
    """Learned beats fixed, both at their best h₀."""
    noises = distinct(table, "noise")
    rows = {(n, m): where(table, noise=n, method=m) for n in noises for m in (LEARNED, FIXED)}
    pairs = [(best(rows[n, LEARNED])[1], best(rows[n, FIXED])[1]) for n in noises]
    words = [
        f"{noise}: learned {format_percent(ours)}, fixed {format_percent(others)}"
        for noise, (ours, others) in zip(noises, pairs, strict=True)
    ]
    return [
        Claim(
            "learned Σ outperforms every fixed Σ on all three noises",
            "; ".join(words),
            ahead(pairs),
        )
    ]


STUDY = Study(
    "fixed-covariance",
    "fig:cifar100_fix_cov",
    "The covariance, learned or fixed",
    "accuracy over h₀ with Σ learned, and with Σ fixed (β₂ = 1)",
    lambda scale: ivon_cells(scale, LEARNED, FIXED),
    draw_over_hessians,
    claims,
)
