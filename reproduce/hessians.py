"""IVON over its first Hessian h₀: with Σ learned (fig:cifar100_ivon_hess), and with Σ fixed (fig:cifar100_fix_cov)."""

from pathlib import Path
from statistics import mean
from typing import Any

from reproduce.comparing import CIFAR100_NOISY, describe_costs, draw_strengths, find_costs
from reproduce.study import Cell, Scale, Study
from reproduce.table import Claim, Table, ahead, choose, format_mean, holds

LEARNED, FIXED = "learned Σ", "fixed Σ"
SMALL = 0.05  # the paper speaks of h₀ above this,
ALLOWED = 0.10  # and of accuracies that vary by up to this


def list_hessians(scale: Scale, *methods: str) -> list[Cell]:
    """IVON over h₀, with Σ learned or fixed (β₂ = 1), on CIFAR-100 under three kinds of noise."""
    fixed: dict[str, dict[str, Any]] = {LEARNED: {}, FIXED: {"beta2": 1.0}}
    return [
        scale.cell("cifar100", noise, seed, method, h0, **fixed[method])
        for noise in scale.flips
        for seed in scale.seeds
        for method in methods
        for h0 in scale.hessians
    ]


def list_with_sam(scale: Scale) -> list[Cell]:
    """IVON over h₀; and SAM over ρ, which it is compared with: the runs of `cifar100-noisy`."""
    others = [cell for cell in CIFAR100_NOISY.cells(scale) if cell.method == "SAM"]
    return [*list_hessians(scale, LEARNED), *others]


def draw_hessians(table: Table, out: Path) -> None:
    """Accuracy over h₀ above, that of SAM over ρ below where the table has it, one column per noise."""
    there = {*table["method"]}
    rows = {"IVON": [m for m in (LEARNED, FIXED) if m in there], "SAM": ["SAM"]}
    draw_strengths(table, out, {name: methods for name, methods in rows.items() if {*methods} & there}, across=False)


def judge_sensitivity(table: Table) -> list[Claim]:
    """Accuracy varies by a tenth at most, and by less than that of SAM."""
    own = table[(table["method"] == LEARNED) & (table["strength"] > SMALL)]
    ours, sam = find_costs(own), find_costs(table[table["method"] == "SAM"])
    best = {n: own[own["noise"] == n].groupby("strength")["accuracy"].mean().max() for n in ours}
    shares = {noise: mean(cost) / best[noise] for noise, cost in ours.items()}
    lost = [f"{noise}: {100 * share:.0f} % of {100 * best[noise]:.1f}" for noise, share in shares.items()]
    return [
        Claim(
            "accuracy is consistent: over h₀ > .05 it varies by up to 10 % (we ask: of the best accuracy, "
            "because ours are lower)",
            "; ".join(lost) or "nothing",
            holds([share <= ALLOWED for share in shares.values()]),
        ),
        Claim(
            "it is less sensitive to h₀ > .05 than SAM is to ρ",
            f"h₀: {describe_costs(ours)}; SAM's ρ: {describe_costs(sam)}",
            ahead([(sam[noise], ours[noise]) for noise in ours if noise in sam]),
        ),
    ]


def judge_learned(table: Table) -> list[Claim]:
    """Learned beats fixed, both at their best h₀."""
    pairs, words = [], []
    for noise, rows in table.groupby("noise", sort=False):
        learned, fixed = (choose(rows[rows["method"] == m], "accuracy").values for m in (LEARNED, FIXED))
        pairs.append((learned, fixed))
        shown = [format_mean(values, "%", seeds=True) for values in (learned, fixed)]
        words.append(f"{noise}: learned {shown[0]}, fixed {shown[1]}")
    says = "learned Σ outperforms every fixed Σ on all three noises"
    return [Claim(says, "; ".join(words) or "nothing", ahead(pairs))]


HESSIAN_INIT = Study("hessian-init", list_with_sam, draw_hessians, judge_sensitivity)
FIXED_COVARIANCE = Study(
    "fixed-covariance", lambda scale: list_hessians(scale, LEARNED, FIXED), draw_hessians, judge_learned
)
