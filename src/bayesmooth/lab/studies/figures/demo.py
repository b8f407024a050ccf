"""Not in the paper: its comparison in a minute, on the digits that scikit-learn carries, with 30 % wrong labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.lab import Recipe, Run
from bayesmooth.lab.studies.methods import EARLY, Cell
from bayesmooth.lab.studies.rows import (
    Row,
    Table,
    column,
    curve,
    distinct,
    final_at_mean,
    format_mean,
    format_percent,
    format_values,
    tabulate,
    where,
)
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import COLOURS, PAGE, figure, legend_below
from bayesmooth.lab.studies.verdict import Claim, ahead

USUAL = "label smoothing, α = 0.1"
RECIPES: dict[str, tuple[str, Sequence[str]]] = {
    "SGD": ("digits-ce", ()),
    EARLY: ("digits-ce", ()),
    USUAL: ("digits-ls", ("loss.alpha=0.1",)),
    "LS": ("digits-ls", ()),
    "SAM": ("digits-sam", ()),
    "IVON": ("digits-ivon", ()),
}
"""Method → the shipped recipe, and what is changed in it. LS, SAM and IVON were tuned on noisy validation labels."""
AT_MEAN = "IVON, at its mean"
DRAWN = ("SGD", "LS", "SAM", "IVON")
COLUMNS = ("method", "accuracy", "memorised", "NLL", "ECE")


def cells(scale: Scale) -> list[Cell]:
    """All methods have their first seed before any has its second; the smoke scale trains two epochs."""
    short = ["train.epochs=2"] if scale.name == "smoke" else []
    return [
        Cell(
            {"method": method, "seed": seed},
            Recipe.load(name, [*changes, *short, f"train.seed={seed}"]),
        )
        for seed in scale.seeds
        for method, (name, changes) in RECIPES.items()
    ]


def measure(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None, quiet: bool
) -> Table:
    """The final figures of every method, then those of every epoch."""
    rows = [{"strength": _strength(cell.recipe), **row} for cell, row in _final(cells, runs)]
    rows += [
        {**row, "method": AT_MEAN, **final_at_mean(runs[row["hash"]])}
        for row in rows
        if row["method"] == "IVON"
    ]
    for cell in cells:
        if cell.labels["method"] in DRAWN and (run := runs.get(cell.recipe.hash)) is not None:
            rows += [
                {
                    **cell.labels,
                    "epoch": record["epoch"],
                    "accuracy": record["test.accuracy"],
                    "memorised": record["memorised"],
                }
                for record in run.metrics()
                if "test.accuracy" in record
            ]
    return rows


def _final(cells: Sequence[Cell], runs: Mapping[str, Run]) -> list[tuple[Cell, Row]]:
    return [(cell, tabulate([cell], runs)[0]) for cell in cells if cell.recipe.hash in runs]


def _strength(recipe: Recipe) -> Any:
    return recipe.loss.options.get("alpha", recipe.optimizer.options.get("rho"))


def draw(table: Table, out: Path) -> None:
    """Accuracy and memorised labels by epoch, the mean over seeds."""
    panels = {
        "accuracy": "accuracy on clean test digits (%)",
        "memorised": "wrong labels learned by heart (%)",
    }
    epochs = [row for row in table if row.get("epoch") is not None]
    with figure(out, 1, 2, width=PAGE, height=2.6) as (axes,):
        for axis, (key, title) in zip(axes, panels.items(), strict=True):
            for method in distinct(epochs, "method"):
                points = curve(where(epochs, method=method), "epoch", key)
                axis.plot(
                    [epoch for epoch, _ in points],
                    [100 * mean(values) for _, values in points],
                    color=COLOURS[method],
                    label=AT_MEAN if method == "IVON" else name_method(table, method),
                )
            axis.set(xlabel="epoch", title=title)
        legend_below(axes[0], title="")


def name_method(table: Table, method: str) -> str:
    """As a reader knows it, with its strength."""
    strength = column(where(table, method=method), "strength")[:1]
    names = {"SGD": "SGD, to the end", "LS": "label smoothing, tuned α", "SAM": "SAM, tuned ρ"}
    names["IVON"] = "IVON, averaged"
    return names.get(method, method) + "".join(f" = {at:g}" for at in strength if method in names)


def summarise(table: Table) -> list[list[str]]:
    """One row per method: mean ± standard deviation over seeds; IVON averaged and at its mean."""
    final = [row for row in table if row.get("epoch") is None]
    rows = [list(COLUMNS)]
    for method in distinct(final, "method"):
        own = where(final, method=method)
        name = name_method(table, method)
        shares = [format_mean(column(own, key), 100, " %") for key in ("accuracy", "memorised")]
        rows.append([name, *shares, *(format_mean(column(own, key)) for key in ("nll", "ece"))])
    return rows


def claims(table: Table) -> list[Claim]:
    """IVON, averaged or at its mean as noisy validation chose, against the others in accuracy and likelihood."""
    final = [row for row in table if row.get("epoch") is None]
    found = []
    averaged, at_mean = (column(where(final, method=m), "validation") for m in ("IVON", AT_MEAN))
    chosen = AT_MEAN if sum(at_mean) > sum(averaged) else "IVON"
    for other in (EARLY, "LS", "SAM"):
        ours, theirs = (where(final, method=method) for method in (chosen, other))
        name = name_method(table, other)
        found.append(
            Claim(
                f"(not in the paper) {name_method(table, chosen)}, is more accurate than {name}",
                f"{format_percent(column(ours))} against {format_percent(column(theirs))}",
                ahead([(column(ours), column(theirs))]),
            )
        )
        losses = [column(rows, "nll") for rows in (ours, theirs)]
        found.append(
            Claim(
                f"(not in the paper) {name_method(table, chosen)}, has a lower NLL than {name}",
                f"{format_values(losses[0])} against {format_values(losses[1])}",
                ahead([([-nll for nll in losses[0]], [-nll for nll in losses[1]])]),
            )
        )
    return found


STUDY = Study(
    "demo",
    "",
    "Digits with wrong labels",
    "six ways to train on digits of which 30 % are labelled wrong: accuracy and memorised labels by epoch",
    cells,
    draw,
    claims,
    measure,
    summarise=summarise,
)
