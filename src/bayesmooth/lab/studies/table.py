"""The table behind a figure: a row a cell, its labels and what was measured; CSV out and in."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.lab import Run
from bayesmooth.lab.studies.methods import Cell

Row = dict[str, Any]
Table = list[Row]

FIGURES = ("accuracy", "nll", "ece")
TEXT = ("data", "noise", "method", "loss", "class", "other", "hash", "pixels")  # stay as they are


def figures(cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None = None) -> Table:
    """A row a cell: accuracy, NLL and ECE on the clean test set, accuracy on the noisy validation split, …

    `accuracy` is averaged over the posterior where the method has one; `at_mean` is that of the mean.
    """
    return [
        {
            "data": cell.recipe.data.name,
            **cell.labels,
            **final(runs[cell.recipe.hash]),
            "hash": cell.recipe.hash,
        }
        for cell in cells
        if cell.recipe.hash in runs
    ]


def final(run: Run) -> Row:
    """The last figures of a run; a diverged run has none, and counts as chance."""
    if run.status == "diverged":
        classes = len(run.data()["class_names"])
        chance = 1 / classes
        own = {"accuracy": chance, "nll": math.log(classes), "ece": 0.0}
        return {**own, "at_mean": chance, "validation": chance, "diverged": 1}
    report = run.report()
    own = {name: report.get(f"averaged.{name}", report[f"test.{name}"]) for name in FIGURES}
    return {
        **own,
        "at_mean": report["test.accuracy"],
        "validation": report.get("validation.accuracy"),
        "memorised": report.get("memorised"),
        "seconds": round(run.seconds(), 1),
    }


def write(table: Sequence[Row], path: Path) -> None:
    """CSV with six digits."""
    columns = list(dict.fromkeys(key for row in table for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    write_atomically(path, text.getvalue())


def read(path: Path) -> Table:
    """What `write` wrote."""
    with path.open(newline="") as file:
        return [
            {key: text if key in TEXT else _value(text) for key, text in row.items()}
            for row in csv.DictReader(file)
        ]


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def _value(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def where(table: Iterable[Row], **labels: Any) -> Table:
    """The rows with these labels."""
    return [row for row in table if all(row.get(key) == value for key, value in labels.items())]


def column(table: Iterable[Row], key: str = "accuracy") -> list[float]:
    """The numbers of a column, gaps left out."""
    return [float(row[key]) for row in table if row.get(key) is not None]


def distinct(table: Iterable[Row], key: str) -> list[Any]:
    """The values of a column, in the order in which they come."""
    return list(dict.fromkeys(row[key] for row in table if row.get(key) is not None))


def curve(
    table: Iterable[Row], x: str = "strength", y: str = "accuracy"
) -> list[tuple[float, list[float]]]:
    """For each x, in order, the y of all seeds."""
    rows = list(table)
    return [(at, column(where(rows, **{x: at}), y)) for at in sorted(distinct(rows, x))]


def best(table: Iterable[Row], by: str = "accuracy") -> tuple[float, list[float]]:
    """(strength, accuracy of its seeds) where the mean of `by` is largest; (nan, []) of nothing.

    A strength that lacks some of the seeds does not take part: one lucky seed is no mean.
    """
    rows = list(table)
    chosen = [(at, values) for at, values in curve(rows, y=by) if values]
    seeds = max((len(values) for _, values in chosen), default=0)
    if not chosen:
        return math.nan, []
    strength = max((pair for pair in chosen if len(pair[1]) == seeds), key=lambda p: mean(p[1]))[0]
    return strength, column(where(rows, strength=strength))


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 of a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def said(values: Sequence[float], unit: str = "%") -> str:
    """Shares of one in words.

    >>> said([0.5, 0.52]), said([0.5]), said([0.1, 0.1], "points")
    ('51.0 ± 1.4 % (2 seeds)', '50.0 % (1 seed)', '10.0 ± 0.0 points (2 seeds)')
    """
    return told([100 * value for value in values], ".1f", f" {unit}")


def told(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """Numbers in words.

    >>> told([0.5, 0.75]), told([0.5]), told([])
    ('0.62 ± 0.18 (2 seeds)', '0.50 (1 seed)', 'nothing')
    """
    if not values:
        return "nothing"
    if len(values) == 1:
        return f"{values[0]:{form}}{unit} (1 seed)"
    return f"{mean(values):{form}} ± {spread(values):{form}}{unit} ({len(values)} seeds)"
