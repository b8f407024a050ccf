"""The table behind a figure, a frame of pandas: one row per cell, its labels and what was measured; CSV out and in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
SHARES = ("accuracy", "at_mean", "validation", "validation_at_mean", "memorised")
MEASURED = (*SHARES, "nll", "ece", "seconds", "diverged")
COLUMNS = (*TEXT, "strength", "seed", "epoch", *MEASURED)
PREDICTIONS = {"accuracy": "validation", "at_mean": "validation_at_mean"}
"""Averaged over the posterior, or at its mean: the test accuracy, and the noisy validation accuracy that chooses."""


def make_table(rows: Iterable[Row]) -> Table:
    """One row per dictionary, one column per key; an empty table has the usual columns."""
    known = list(rows)
    return require("pandas", extra="data").DataFrame(known, columns=None if known else COLUMNS)


def tabulate_runs(cells: Sequence[Cell], runs: Mapping[str, Run], earlier: Table) -> Table:
    """One row per cell that has a finished run, or a row in an earlier table with the same hash.

    `accuracy`, NLL and ECE are those on the clean test set, averaged over the posterior where the method has one, and
    `at_mean` is the accuracy of the mean; `validation` and `validation_at_mean` are on the noisy validation split.
    """
    known = {(row["hash"], row["method"] == EARLY): row for row in earlier.to_dict("records")}
    table = []
    for cell in cells:
        key = (cell.recipe.hash, cell.method == EARLY)
        if (run := runs.get(cell.recipe.hash)) is not None:
            measured = read_final(run, early=key[1])
        elif key in known:
            measured = {name: known[key][name] for name in MEASURED if name in known[key]}
        else:
            continue
        facts = {"data": identify_data(cell.recipe), **cell.labels}
        table.append({**measured, **facts, "hash": cell.recipe.hash})
    found = make_table(table)
    return found[[name for name in COLUMNS if name in found]]


def read_final(run: Run, *, early: bool = False, averaged: bool = True) -> Row:
    """The last figures of a run; with `early`, those of its best epoch by accuracy on the noisy validation split.

    Last figures are averaged over the posterior, if the method has one, unless `averaged` is false. A diverged run has
    none, and counts as chance.
    """
    if run.status == "diverged":
        classes = len(run.data()["class_names"])
        shares = dict.fromkeys(("accuracy", "at_mean", "validation"), 1 / classes)
        return {**shares, "nll": math.log(classes), "ece": 0.0, "diverged": 1}
    record = run.report()
    if early:
        looks = [record for record in run.metrics() if "validation.accuracy" in record]
        record = max(looks, key=lambda record: record["validation.accuracy"])
    has_both = not early and "averaged.accuracy" in record
    averaged = averaged and has_both
    whose = "averaged" if averaged else "test"
    at_mean = record.get("validation.accuracy")
    return {
        **{name: record[f"{whose}.{name}"] for name in ("accuracy", "nll", "ece")},
        "at_mean": record["test.accuracy"],
        "validation": record.get("averaged.validation.accuracy") if averaged else at_mean,
        "validation_at_mean": at_mean if has_both else None,
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
    text, pandas = dict.fromkeys(TEXT, str), require("pandas", extra="data")
    return pandas.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])


@dataclass(frozen=True)
class Choice:
    """What was chosen of a method under a noise: its strength, its prediction, and its accuracy with every seed."""

    strength: float = math.nan
    prediction: str = "accuracy"
    values: list[float] = field(default_factory=list)
    edge: bool = False  # whether it is the largest or smallest strength that was tried; 0 is none


def choose(rows: Table, by: str = "validation") -> Choice:
    """The strength with the largest mean of `by`: "accuracy" is the best on test, "validation" what a user can choose.

    By validation it also chooses the prediction of a posterior, averaged or at the mean, where the table knows both.
    Only seeds that every strength has take part: one lucky seed is no mean.
    """
    count = rows["strength"].nunique()
    counts = rows.groupby("seed")["strength"].nunique()
    common = rows[rows["seed"].isin(counts.index[counts == count])]
    best, top = Choice(), -math.inf
    for prediction, judge in PREDICTIONS.items():
        column = prediction if by == "accuracy" else judge
        if column not in common or (by == "accuracy" and prediction == "at_mean"):
            continue
        means = common.groupby("strength", dropna=False)[column].mean().dropna().round(9)
        if len(means) and means.max() > top:
            strength, top = float(means.idxmax()), means.max()  # of equal means the first
            own = rows if math.isnan(strength) else rows[rows["strength"] == strength]
            ends = (rows["strength"].min(), rows["strength"].max())
            edge = count > 1 and strength > 0 and strength in ends
            best = Choice(strength, prediction, own[prediction].dropna().tolist(), edge)
    return best


def format_mean(values: Sequence[float], unit: str = "", *, seeds: bool = False) -> str:
    """Mean ± standard deviation over seeds; shares of one where the unit is per cent or points.

    >>> format_mean([0.5, 0.75]), format_mean([0.5, 0.52], "%"), format_mean([0.5], "%", seeds=True), format_mean([])
    ('0.625 ± 0.177', '51.0 ± 1.4 %', '50.0 % (1 seed)', '–')
    """
    if len(values) == 0:
        return "–"
    factor, form = (100, ".1f") if unit else (1, ".3g" if mean(values) < 0.1 else ".3f")
    error = f" ± {factor * stdev(values):{form}}" if len(values) > 1 else ""
    count = f" ({len(values)} seed{'s' * (len(values) > 1)})" if seeds else ""
    return f"{factor * mean(values):{form}}{error}{unit and ' '}{unit}{count}"
