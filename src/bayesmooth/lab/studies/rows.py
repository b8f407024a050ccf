"""The table behind a figure: one row per cell, its labels and what was measured; CSV out and in."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.lab import Run
from bayesmooth.lab.studies.methods import EARLY, Cell, data_of

Row = dict[str, Any]
Table = list[Row]

MEASURED = ("accuracy", "nll", "ece", "at_mean", "validation", "memorised", "seconds", "diverged")
TEXT = ("data", "noise", "method", "loss", "class", "other", "hash", "pixels")  # stay as they are


def tabulate(cells: Sequence[Cell], runs: Mapping[str, Run], known: Iterable[Row] = ()) -> Table:
    """One row per cell that has a finished run, or a row in `known` (an earlier table) with the same hash.

    `accuracy`, NLL and ECE are those on the clean test set, averaged over the posterior where the method has one, and
    `at_mean` is the accuracy of the mean; `validation` is the accuracy on the noisy validation split.
    """
    earlier = {(row["hash"], row["method"] == EARLY): row for row in known if "hash" in row}
    table = []
    for cell in cells:
        early = cell.labels["method"] == EARLY
        if (run := runs.get(cell.recipe.hash)) is not None:
            measured = stopped_early(run) if early else final(run)
        elif row := earlier.get((cell.recipe.hash, early)):
            measured = {key: row[key] for key in MEASURED if row.get(key) is not None}
        else:
            continue
        facts = {"data": data_of(cell.recipe), **cell.labels}
        table.append({**facts, **measured, "hash": cell.recipe.hash})
    return table


def final(run: Run) -> Row:
    """The last figures of a run; a diverged run has none, and counts as chance."""
    if run.status == "diverged":
        classes = len(run.data()["class_names"])
        chance = 1 / classes
        own = {"accuracy": chance, "nll": math.log(classes), "ece": 0.0}
        return {**own, "at_mean": chance, "validation": chance, "diverged": 1}
    report = run.report()
    whose = "averaged" if "averaged.accuracy" in report else "test"
    prefix = "averaged." if whose == "averaged" else ""
    validation = report.get(f"{prefix}validation.accuracy", report.get("validation.accuracy"))
    return {
        **{name: report[f"{whose}.{name}"] for name in ("accuracy", "nll", "ece")},
        "at_mean": report["test.accuracy"],
        "validation": validation,
        "memorised": report.get("memorised"),
        "seconds": round(run.seconds(), 1),
    }


def final_at_mean(run: Run) -> Row:
    """The last figures of a run, all of them at the mean of its posterior."""
    report = run.report()
    own = {name: report[f"test.{name}"] for name in ("accuracy", "nll", "ece")}
    return {**own, "validation": report.get("validation.accuracy")}


def stopped_early(run: Run) -> Row:
    """The figures of the epoch with the best accuracy on the noisy validation split."""
    if run.status == "diverged":
        return final(run)
    looks = [record for record in run.metrics() if "validation.accuracy" in record]
    best = max(looks, key=lambda record: record["validation.accuracy"])
    own = {name: best[f"test.{name}"] for name in ("accuracy", "nll", "ece")}
    more = {"validation": best["validation.accuracy"], "memorised": best.get("memorised")}
    return {**own, "at_mean": own["accuracy"], **more, "seconds": round(run.seconds(), 1)}


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
    """What `write` wrote; an empty table where there is no file."""
    if not path.exists():
        return []
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
    """(strength, accuracy of all its seeds) where the mean of `by` is largest; (nan, []) of nothing.

    Only seeds that every strength has take part in the choice: one lucky seed is no mean.
    """
    rows = [row for row in table if row.get(by) is not None]
    strengths = distinct(rows, "strength")
    seeds = [set(distinct(where(rows, strength=at), "seed")) for at in strengths]
    common = [row for row in rows if all(row["seed"] in of for of in seeds)]
    if not common:
        return math.nan, []
    strength = max(curve(common, y=by), key=lambda point: mean(point[1]))[0]
    return strength, column(where(rows, strength=strength))


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 of a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def format_percent(values: Sequence[float], unit: str = "%") -> str:
    """Mean and spread of shares of one.

    >>> format_percent([0.5, 0.52]), format_percent([0.5]), format_percent([0.1, 0.1], "points")
    ('51.0 ± 1.4 % (2 seeds)', '50.0 % (1 seed)', '10.0 ± 0.0 points (2 seeds)')
    """
    return format_values([100 * value for value in values], ".1f", f" {unit}")


def format_mean(values: Sequence[float], unit: float = 1.0, suffix: str = "") -> str:
    """Mean ± standard deviation for the cell of a table: three decimals, or one of shares in per cent.

    >>> format_mean([0.5, 0.75]), format_mean([0.5, 0.52], 100, " %"), format_mean([0.5]), format_mean([])
    ('0.625 ± 0.177', '51.0 ± 1.4 %', '0.500', '–')
    """
    if not values:
        return "–"
    form = ".3f" if unit == 1.0 else ".1f"
    error = f" ± {unit * spread(values):{form}}" if len(values) > 1 else ""
    return f"{unit * mean(values):{form}}{error}{suffix}"


def format_values(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """Mean and spread of numbers.

    >>> format_values([0.5, 0.75]), format_values([0.5]), format_values([])
    ('0.62 ± 0.18 (2 seeds)', '0.50 (1 seed)', 'nothing')
    """
    if not values:
        return "nothing"
    if len(values) == 1:
        return f"{values[0]:{form}}{unit} (1 seed)"
    return f"{mean(values):{form}} ± {spread(values):{form}}{unit} ({len(values)} seeds)"
