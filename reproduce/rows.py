"""The table behind a figure, a frame of pandas: one row per cell, its labels and what was measured; CSV out and in."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayesmooth.files import write_atomically
from bayesmooth.optional import require
from bayesmooth.train import Run
from reproduce.methods import EARLY, Cell, identify_data

Row = dict[str, Any]
Table = Any
"""A `pandas.DataFrame`; pandas is loaded when the first one is made."""

TEXT = ("data", "noise", "method", "loss", "class", "other", "hash", "pixels", "kind")
LABELS = (*TEXT, "strength", "seed", "epoch")
MEASURED = ("accuracy", "nll", "ece", "at_mean", "validation", "memorised", "seconds", "diverged")


def make_table(rows: Iterable[Row]) -> Table:
    """One row per dictionary, one column per key; an empty table has the usual columns."""
    known = list(rows)
    columns = None if known else [*LABELS, *MEASURED]
    return require("pandas", extra="data").DataFrame(known, columns=columns)


def tabulate_runs(cells: Sequence[Cell], runs: Mapping[str, Run], known: Iterable[Row]) -> Table:
    """One row per cell that has a finished run, or a row in `known` (an earlier table) with the same hash.

    `accuracy`, NLL and ECE are those on the clean test set, averaged over the posterior where the method has one, and
    `at_mean` is the accuracy of the mean; `validation` is the accuracy on the noisy validation split.
    """
    earlier = {(row["hash"], row["method"] == EARLY): row for row in known}
    table = []
    for cell in cells:
        early = cell.method == EARLY
        if (run := runs.get(cell.recipe.hash)) is not None:
            measured = read_final(run, early=early)
        elif row := earlier.get((cell.recipe.hash, early)):
            measured = {key: row[key] for key in MEASURED if key in row}
        else:
            continue
        facts = {"data": identify_data(cell.recipe), **cell.labels}
        table.append({**facts, **measured, "hash": cell.recipe.hash})
    return make_table(table)


def read_final(run: Run, *, early: bool = False, averaged: bool = True) -> Row:
    """The last figures of a run; with `early`, those of its best epoch by accuracy on the noisy validation split.

    Last figures are averaged over the posterior, if the method has one, unless `averaged` is false. A diverged run has
    none, and counts as chance.
    """
    if run.status == "diverged":
        classes = len(run.data()["class_names"])
        shares = dict.fromkeys(("accuracy", "at_mean", "validation"), 1 / classes)
        return {**shares, "nll": math.log(classes), "ece": 0.0, "diverged": 1}
    if early:
        looks = [record for record in run.metrics() if "validation.accuracy" in record]
        record = max(looks, key=lambda record: record["validation.accuracy"])
    else:
        record = run.report()
    averaged = averaged and not early and "averaged.accuracy" in record
    whose = "averaged" if averaged else "test"
    return {
        **{name: record[f"{whose}.{name}"] for name in ("accuracy", "nll", "ece")},
        "at_mean": record["test.accuracy"],
        "validation": record.get(f"{'averaged.' * averaged}validation.accuracy"),
        "memorised": record.get("memorised"),
        "seconds": round(run.seconds(), 1),
    }


def write_table(table: Table, path: Path) -> None:
    """CSV with six digits."""
    write_atomically(path, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def read_table(path: Path) -> Table:
    """What `write_table` wrote; an empty table where there is no file."""
    if not path.exists():
        return make_table([])
    text = dict.fromkeys(TEXT, str)
    pandas = require("pandas", extra="data")
    return pandas.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])


def find_best(table: Table, by: str = "accuracy") -> tuple[float, list[float]]:
    """(strength, accuracy of all its seeds) where the mean of `by` is largest; (nan, []) of nothing.

    Only seeds that every strength has take part in the choice: one lucky seed is no mean.
    """
    known = table.dropna(subset=[by, "strength"])
    common = known.pivot(index="seed", columns="strength", values=by).dropna()
    if common.empty:
        return math.nan, []
    strength = float(common.mean().round(9).idxmax())  # of equal means the first
    return strength, known.loc[known["strength"] == strength, "accuracy"].tolist()


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 of a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def select(table: Table, **labels: Any) -> Table:
    """The rows with these labels."""
    for key, value in labels.items():
        table = table[table[key] == value]
    return table


def list_values(table: Table, key: str = "accuracy", **labels: Any) -> list[float]:
    """What is known of a column, in the rows with these labels."""
    values: list[float] = select(table, **labels)[key].dropna().tolist()
    return values


def list_noises(table: Table) -> list[str]:
    """The kinds of noise, in the order of the table."""
    found: list[str] = table["noise"].dropna().unique().tolist()
    return found


def format_mean(values: Sequence[float], unit: float = 1.0, suffix: str = "") -> str:
    """Mean ± standard deviation for the cell of a table: three decimals, or one of shares in per cent.

    >>> format_mean([0.5, 0.75]), format_mean([0.5, 0.52], 100, " %"), format_mean([0.5]), format_mean([])
    ('0.625 ± 0.177', '51.0 ± 1.4 %', '0.500', '–')
    """
    if len(values) == 0:
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
    error, plural = (f" ± {spread(values):{form}}", "s") if len(values) > 1 else ("", "")
    return f"{mean(values):{form}}{error}{unit} ({len(values)} seed{plural})"


def format_shares(values: Sequence[float], unit: str = "%") -> str:
    """Mean and spread of shares of one.

    >>> format_shares([0.5, 0.52]), format_shares([0.5]), format_shares([0.1, 0.1], "points")
    ('51.0 ± 1.4 % (2 seeds)', '50.0 % (1 seed)', '10.0 ± 0.0 points (2 seeds)')
    """
    return format_values([100 * value for value in values], ".1f", f" {unit}")


BETTER: dict[str, tuple[str, int, Callable[[Sequence[float]], str]]] = {
    "accuracy": ("is more accurate", 1, format_shares),
    "nll": ("has a lower NLL", -1, format_values),
}
"""How a claim says that a figure is better, its sign (−1: less is better) and its format."""
