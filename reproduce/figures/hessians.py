"""IVON over its first Hessian h₀: with Σ learned (fig:cifar100_ivon_hess), and with Σ fixed (fig:cifar100_fix_cov)."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

from reproduce.figures.comparing import (
    CIFAR100_NOISY,
    FLIPS,
    describe_costs,
    find_costs,
)
from reproduce.methods import Cell, Condition
from reproduce.rows import Table, find_best, format_shares, list_noises, select
from reproduce.scale import Scale
from reproduce.study import Study
from reproduce.style import PAGE, figure, legend_below, line, name_data
from reproduce.verdict import Claim, ahead, holds

LEARNED, FIXED = "learned Σ", "fixed Σ"
METHODS = {LEARNED: {}, FIXED: {"beta2": 1.0}}
SMALL = 0.05  # the paper speaks of h₀ above this,
ALLOWED = 0.10  # and of accuracies that differ by up to this


def list_hessians(scale: Scale, *methods: str) -> list[Cell]:
    """IVON over h₀, with Σ learned or fixed (β₂ = 1), on CIFAR-100 under three kinds of noise."""
    return [
        Cell(
            Condition(scale, "cifar100", noise, seed).ivon(hess_init=h0, **METHODS[method]),
            method,
            seed,
            noise,
            strength=h0,
        )
        for noise in FLIPS
        for seed in scale.hessian_seeds or scale.seeds
        for method in methods
        for h0 in scale.hessians
    ]


def draw_over_hessians(table: Table, out: Path) -> None:
    """Accuracy over h₀, one panel per noise."""
    noises = list_noises(table)
    with figure(out, 1, len(noises), width=PAGE, height=2.4) as (axes,):
        for axis, noise in zip(axes, noises, strict=True):
            for method in table["method"].unique():
                rows = select(table, noise=noise, method=method)
                line(axis, method, list(rows.groupby("strength")["accuracy"]))
            axis.set(
                xscale="log", xlabel="first Hessian $h_0$", title=f"{name_data(table)}, {noise}"
            )
            axis.set_xticks(table["strength"].unique(), minor=False)
            axis.set_xticks([], minor=True)
            axis.xaxis.set_major_formatter("{x:g}")
        axes[0].set_ylabel("test accuracy (%)")
        legend_below(axes[0])


def list_with_sam(scale: Scale) -> list[Cell]:
    """IVON over h₀; and SAM over ρ, which it is compared with: the runs of `cifar100-noisy`."""
    same = replace(scale, seeds=scale.hessian_seeds or scale.seeds)
    others = [cell for cell in CIFAR100_NOISY.cells(same) if cell.method == "SAM"]
    return [*list_hessians(scale, LEARNED), *others]


def judge_sensitivity(table: Table) -> list[Claim]:
    """Accuracy varies by 10 points at most, and by less than that of SAM."""
    ours = find_costs(select(table[table["strength"] > SMALL], method=LEARNED))
    sam = find_costs(select(table, method="SAM"))
    return [
        Claim(
            "accuracy varies by up to 10 points over h₀ > .05",
            describe_costs(ours),
            holds([mean(cost) <= ALLOWED for cost in ours.values()]),
        ),
        Claim(
            "it is less sensitive to h₀ than SAM is to ρ",
            f"h₀: {describe_costs(ours)}; SAM's ρ: {describe_costs(sam)}",
            ahead([(sam[noise], ours[noise]) for noise in ours if noise in sam]),
        ),
    ]


def judge_learned(table: Table) -> list[Claim]:
    """Learned beats fixed, both at their best h₀."""
    pairs, words = [], []
    for noise in list_noises(table):
        learned, fixed = (
            find_best(select(table, noise=noise, method=method))[1] for method in (LEARNED, FIXED)
        )
        pairs.append((learned, fixed))
        words.append(f"{noise}: learned {format_shares(learned)}, fixed {format_shares(fixed)}")
    says = "learned Σ outperforms every fixed Σ on all three noises"
    return [Claim(says, "; ".join(words), ahead(pairs))]


HESSIAN_INIT = Study(
    "hessian-init",
    "fig:cifar100_ivon_hess",
    "The first Hessian",
    "IVON's accuracy over h₀",
    list_with_sam,
    lambda table, out: draw_over_hessians(select(table, method=LEARNED), out),
    judge_sensitivity,
)
FIXED_COVARIANCE = Study(
    "fixed-covariance",
    "fig:cifar100_fix_cov",
    "The covariance, learned or fixed",
    "accuracy over h₀ with Σ learned, and with Σ fixed (β₂ = 1)",
    lambda scale: list_hessians(scale, LEARNED, FIXED),
    draw_over_hessians,
    judge_learned,
)
