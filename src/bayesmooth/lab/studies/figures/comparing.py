"""IVON against LS over α and SAM over ρ: the figure with two rows of panels, and the claims about it."""

from pathlib import Path
from statistics import mean

from bayesmooth.lab.studies.style import PAGE, data_name, figure, legend_below, level, line
from bayesmooth.lab.studies.table import Table, best, column, curve, distinct, said, where
from bayesmooth.lab.studies.verdict import Claim, Values, ahead, comparable, holds

BASELINES = {"LS": ("α", "smoothing rate α"), "SAM": ("ρ", "radius ρ")}
SENSITIVE = 0.05  # accuracy that a wrong ρ costs, to call SAM sensitive


def levels(table: Table) -> list[str]:
    """The kinds of noise, in the order of the figure."""
    return distinct(table, "noise")


def chosen(table: Table, noise: str, method: str, by: str = "accuracy") -> Values:
    """The accuracies of a method under a noise, at the strength that is best by the column `by`."""
    rows = where(table, noise=noise, method=method)
    return column(rows) if method == "IVON" else best(rows, by)[1]


def draw_panels(table: Table, out: Path) -> None:
    """LS above, SAM below, a column a noise; IVON is the line across, its gain over the best written below."""
    noises = levels(table)
    size = {"width": max(PAGE * len(noises) / 3, 3.35), "height": 4.0}
    with figure(out, 2, len(noises), sharey="col", **size) as axes:
        for row, (method, (_, name)) in zip(axes, BASELINES.items(), strict=True):
            for axis, noise in zip(row, noises, strict=True):
                _panel(axis, table, noise, method)
                axis.set_xlabel(name)
            row[0].set_ylabel("test accuracy (%)")
        for axis, noise in zip(axes[0], noises, strict=True):
            axis.set_title(f"{data_name(table)}, {noise}")
        for axis in axes[1]:
            axis.set_xscale("symlog", linthresh=0.01)
            axis.set_xticks([0, 0.01, 0.05, 0.1, 0.5], ["0", ".01", ".05", ".1", ".5"])
        legend_below(axes[0][0], axes[1][0])


def _panel(axis: object, table: Table, noise: str, method: str) -> None:
    ours, others = chosen(table, noise, "IVON"), chosen(table, noise, method)
    level(axis, "IVON", ours)
    line(axis, method, curve(where(table, noise=noise, method=method)))
    if ours and others:
        gain = 100 * (mean(ours) - mean(others))
        words = f"IVON − best {method}: {gain:+.1f}".replace("-", "−")
        axis.annotate(words, (0.03, 0.04), xycoords="axes fraction", fontsize=7)  # type: ignore[attr-defined]


def overtakes(table: Table) -> list[Claim]:
    """IVON beats LS and SAM at their best on every noise; best on test as in the paper, then by noisy validation."""
    found = []
    for by, how in (("accuracy", "best on test"), ("validation", "chosen on noisy validation")):
        for method in BASELINES:
            pairs = [
                (chosen(table, n, "IVON"), chosen(table, n, method, by)) for n in levels(table)
            ]
            claim = f"IVON outperforms {method} on every noise ({BASELINES[method][0]} {how})"
            found.append(Claim(claim, measured(table, method, by), ahead(pairs)))
    return found


def equals_sam(table: Table) -> list[Claim]:
    """IVON beats LS, is comparable to SAM at its peak, and SAM depends on ρ."""
    pairs = [(chosen(table, n, "IVON"), chosen(table, n, "SAM")) for n in levels(table)]
    peak = Claim(
        "IVON is comparable with SAM at its best ρ", measured(table, "SAM"), comparable(pairs)
    )
    costs = sensitivities(where(table, method="SAM"))
    sensitive = Claim(
        "SAM is sensitive to ρ",
        f"from the best to the worst ρ: {in_words(costs)}",
        holds([mean(cost) >= SENSITIVE for cost in costs.values()]),
    )
    return [*overtakes(table), peak, sensitive]


def sensitivities(table: Table) -> dict[str, list[float]]:
    """By noise: what the worst strength costs against the best, a number a seed."""
    found = {}
    for noise in levels(table):
        rows = where(table, noise=noise)
        points = [(mean(values), at) for at, values in curve(rows) if values]
        if len(points) > 1:
            top, low = (where(rows, strength=at) for _, at in (max(points), min(points)))
            pairs = [[column(where(r, seed=s)) for r in (top, low)] for s in distinct(rows, "seed")]
            found[noise] = [high[0] - deep[0] for high, deep in pairs if high and deep]
    return {noise: costs for noise, costs in found.items() if costs}


def in_words(costs: dict[str, list[float]]) -> str:
    """A noise after another."""
    return (
        "; ".join(f"{noise}: {said(cost, 'points')}" for noise, cost in costs.items()) or "nothing"
    )


def measured(table: Table, method: str, by: str = "accuracy") -> str:
    """Both sides in words, a noise after another."""
    symbol = BASELINES[method][0]
    parts = []
    for noise in levels(table):
        strength, values = best(where(table, noise=noise, method=method), by)
        ours = said(chosen(table, noise, "IVON"))
        others = f"{said(values)} at {symbol} = {strength:g}" if values else "not measured"
        parts.append(f"{noise}: IVON {ours}, {method} {others}")
    return "; ".join(parts)
