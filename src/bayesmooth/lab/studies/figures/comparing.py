"""IVON against LS over α and SAM over ρ: the cells, the figure with two rows of panels, and the claims about it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.lab.studies.methods import (
    EARLY,
    GRIDS,
    IVON_GRID,
    Cell,
    Section,
    comparison,
    repeated,
)
from bayesmooth.lab.studies.rows import (
    Table,
    best,
    column,
    curve,
    distinct,
    format_mean,
    format_percent,
    where,
)
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.style import PAGE, data_name, figure, legend_below, level, line
from bayesmooth.lab.studies.verdict import Claim, ahead, comparable, holds

BASELINES = {"LS": ("α", "smoothing rate α"), "SAM": ("ρ", "radius ρ")}
WAYS = {"accuracy": "best on test", "validation": "chosen on noisy validation"}
SENSITIVE = 0.05  # accuracy that a wrong ρ costs, to call SAM sensitive


def compare_on(
    task: str, noises: Callable[[Scale], Sequence[tuple[str, Section]]]
) -> dict[str, Any]:
    """The cells of a study: whole grids, then more seeds at each strength that the grids chose."""

    def cells(scale: Scale) -> list[Cell]:
        return comparison(scale, task, noises(scale))

    def more(scale: Scale, table: Table) -> list[Cell]:
        chosen = {
            (noise, method, best(where(table, noise=noise, method=method), by)[0])
            for noise in levels(table)
            for method in GRIDS
            for by in WAYS
        }
        # SGD; early stopping has trained these already.
        chosen |= {(noise, "LS", 0.0) for noise in levels(table)}
        return repeated(scale, task, noises(scale), chosen)

    return {"cells": cells, "more": more, "summarise": summarise}


def summarise(table: Table) -> list[list[str]]:
    """One row per noise: every method, LS and SAM at their best on test and as validation chose."""
    head = ["data", "noise", "SGD", EARLY]
    for method, (symbol, _) in BASELINES.items():
        head += [f"{method}, best {symbol}", f"{method}, {symbol} by validation"]
    rows = [[*head, "IVON", "IVON at its mean", "IVON, h₀ by validation"]]
    for noise in levels(table):
        ivon = where(table, noise=noise, method="IVON")
        values = [column(where(table, noise=noise, method="LS", strength=0.0))]
        values += [accuracies(table, noise, EARLY)]
        values += [accuracies(table, noise, method, by) for method in BASELINES for by in WAYS]
        values += [column(ivon), column(ivon, "at_mean")]
        values += [accuracies(table, noise, IVON_GRID, "validation")]
        rows.append([data_name(table), noise, *(format_mean(each, 100) for each in values)])
    return rows


def levels(table: Table) -> list[str]:
    """The kinds of noise, in the order of the figure."""
    return distinct(table, "noise")


def accuracies(table: Table, noise: str, method: str, by: str = "accuracy") -> list[float]:
    """The accuracies of a method under a noise, at the strength that is best by the column `by` if it has one."""
    rows = where(table, noise=noise, method=method)
    return best(rows, by)[1] if method in GRIDS else column(rows)


def draw_panels(table: Table, out: Path) -> None:
    """LS above, SAM below, one column per noise; IVON is the line across, its gain over the best written below."""
    noises = levels(table)
    size = {"width": max(PAGE * len(noises) / 3, 3.35), "height": 4.2}
    with figure(out, 2, len(noises), sharey="col", **size) as axes:
        for row, (method, (_, name)) in zip(axes, BASELINES.items(), strict=True):
            for axis, noise in zip(row, noises, strict=True):
                _panel(axis, table, noise, method)
                axis.set_xlabel(name)
            row[0].set_ylabel("test accuracy (%)")
        for axis, noise in zip(axes[0], noises, strict=True):
            axis.set_title(f"{data_name(table)}, {noise}")
        legend_below(axes[0][0], axes[1][0])


def _panel(axis: Any, table: Table, noise: str, method: str) -> None:
    """The strengths are spaced evenly, each with its tick: the interesting ones lie close together."""
    ours, others = accuracies(table, noise, "IVON"), accuracies(table, noise, method)
    points = curve(where(table, noise=noise, method=method))
    level(axis, "IVON", ours)
    level(axis, EARLY, accuracies(table, noise, EARLY))
    line(axis, method, list(enumerate(values for _, values in points)))
    axis.set_xticks(range(len(points)), [f"{strength:g}" for strength, _ in points])
    axis.margins(y=0.2)  # room for the words
    if ours and others:
        gain = 100 * (mean(ours) - mean(others))
        words = f"IVON − best {method}: {gain:+.1f}".replace("-", "−")
        axis.annotate(words, (0.03, 0.04), xycoords="axes fraction", fontsize=7)


def judge_ahead(table: Table) -> list[Claim]:
    """IVON beats LS and SAM at their best on every noise; best on test as in the paper, then by noisy validation."""
    found = []
    for by, how in WAYS.items():
        for method, (symbol, _) in BASELINES.items():
            pairs = [
                (accuracies(table, n, "IVON"), accuracies(table, n, method, by))
                for n in levels(table)
            ]
            claim = f"IVON outperforms {method} on every noise ({symbol} {how})"
            found.append(Claim(claim, describe(table, method, by), ahead(pairs)))
    early = [(accuracies(table, n, "IVON"), accuracies(table, n, EARLY)) for n in levels(table)]
    if any(others for _, others in early):
        claim = "(not in the paper) IVON outperforms SGD stopped early by noisy validation"
        found.append(Claim(claim, describe(table, EARLY), ahead(early)))
    return found


def judge_ahead_or_level(table: Table) -> list[Claim]:
    """IVON beats LS, is comparable to SAM at its peak, and SAM depends on ρ."""
    pairs = [(accuracies(table, n, "IVON"), accuracies(table, n, "SAM")) for n in levels(table)]
    claim = "IVON is comparable with SAM at its best ρ"
    peak = Claim(claim, describe(table, "SAM"), comparable(pairs))
    costs = sensitivities(where(table, method="SAM"))
    sensitive = Claim(
        "SAM is sensitive to ρ",
        f"from the best to the worst ρ: {describe_costs(costs)}",
        holds([mean(cost) >= SENSITIVE for cost in costs.values()]),
    )
    return [*judge_ahead(table), peak, sensitive]


def sensitivities(table: Table) -> dict[str, list[float]]:
    """By noise: what the worst strength costs against the best, one number per seed."""
    found = {}
    for noise in levels(table):
        rows = where(table, noise=noise)
        points = [(mean(values), at) for at, values in curve(rows) if values]
        if len(points) > 1:
            top, low = (where(rows, strength=at) for _, at in (max(points), min(points)))
            pairs = [[column(where(r, seed=s)) for r in (top, low)] for s in distinct(rows, "seed")]
            found[noise] = [high[0] - deep[0] for high, deep in pairs if high and deep]
    return {noise: costs for noise, costs in found.items() if costs}


def describe_costs(costs: dict[str, list[float]]) -> str:
    """One noise after another."""
    parts = [f"{noise}: {format_percent(cost, 'points')}" for noise, cost in costs.items()]
    return "; ".join(parts) or "nothing"


def describe(table: Table, method: str, by: str = "accuracy") -> str:
    """Both sides in words, one noise after another."""
    parts = []
    for noise in levels(table):
        values, at = accuracies(table, noise, method, by), ""
        if method in BASELINES and values:
            strength = best(where(table, noise=noise, method=method), by)[0]
            at = f" at {BASELINES[method][0]} = {strength:g}"
        ours = format_percent(accuracies(table, noise, "IVON"))
        others = format_percent(values) + at if values else "not measured"
        parts.append(f"{noise}: IVON {ours}, {method} {others}")
    return "; ".join(parts)
