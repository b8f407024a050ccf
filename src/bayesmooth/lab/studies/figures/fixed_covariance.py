"""fig:cifar100_fix_cov: the covariance learned, and fixed."""

from bayesmooth.lab.studies.figures.hessians import FIXED, LEARNED, cells, draw
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.table import Table, best, distinct, said, where
from bayesmooth.lab.studies.verdict import Claim, ahead


def claims(table: Table) -> list[Claim]:
    """Learned beats fixed, both at their best h₀."""
    noises = distinct(table, "noise")
    rows = {(n, m): where(table, noise=n, method=m) for n in noises for m in (LEARNED, FIXED)}
    pairs = [(best(rows[n, LEARNED])[1], best(rows[n, FIXED])[1]) for n in noises]
    words = [
        f"{noise}: learned {said(ours)}, fixed {said(others)}"
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
    lambda scale: cells(scale, LEARNED, FIXED),
    draw,
    claims,
)
