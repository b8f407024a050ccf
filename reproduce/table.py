"""The table behind a figure, a frame of pandas with one row per cell, and the verdict on a claim, from it alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any, Literal

from bayesmooth.errors import require
from bayesmooth.files import write_atomically
from bayesmooth.train import Run

Row = dict[str, Any]
Table = Any
"""A `pandas.DataFrame`; pandas is loaded when the first one is made."""
Values = Sequence[float]
Pair = tuple[Values, Values]
"""The accuracies of ours and of the other, one number per seed."""
Verdict = Literal["reproduced", "direction only", "not reproduced", "not run"]

EARLY = "SGD, stopped early"  # at the epoch with the best accuracy on noisy validation labels
TEXT = ("data", "noise", "method", "class", "other", "hash", "pixels", "kind")
SHARES = ("accuracy", "at_mean", "validation", "validation_at_mean", "memorised")
MEASURED = (*SHARES, "nll", "ece", "seconds", "diverged")
COLUMNS = (*TEXT, "strength", "seed", "epoch", *MEASURED)
PREDICTIONS = {"accuracy": "validation", "at_mean": "validation_at_mean"}
"""Averaged over the posterior, or at its mean: the test accuracy, and the noisy validation accuracy that chooses."""


def make_table(rows: Iterable[Row]) -> Table:
    """One row per dictionary, one column per key; an empty table has the usual columns."""
    known = list(rows)
    return require("pandas", extra="data").DataFrame(known, columns=None if known else COLUMNS)


def write_table(table: Table, path: Path) -> None:
    """CSV with six digits."""
    write_atomically(path, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def read_table(path: Path) -> Table:
    """What `write_table` wrote; an empty table where there is no file."""
    if not path.exists():
        return make_table([])
    pandas = require("pandas", extra="data")
    return pandas.read_csv(path, dtype=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=[""])


def read_final(run: Run, *, early: bool = False, averaged: bool = True) -> Row:
    """The last figures of a run; with `early`, those of its best epoch by accuracy on the noisy validation split.

    `accuracy`, NLL and ECE are those on the clean test set, averaged over the posterior if the method has one, unless
    `averaged` is false. `at_mean` is the accuracy of the mean; `validation` and `validation_at_mean` are on the noisy
    validation split. A diverged run counts as chance.
    """
    if run.status == "diverged":
        classes = len(run.data()["class_names"])
        shares = dict.fromkeys(SHARES[:4], 1 / classes)
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


@dataclass(frozen=True)
class Choice:
    """What was chosen of a method under a noise: its strength, its prediction, and its accuracy with every seed."""

    strength: float = math.nan
    prediction: str = "accuracy"
    values: list[float] = field(default_factory=list)
    edge: bool = False  # whether it is the largest or smallest strength that was tried; 0 is none


def choose(rows: Table, by: str = "validation") -> Choice:
    """The strength with the largest mean of `by`: "accuracy" is the best on test, "validation" what a user can choose.

    By validation it also chooses the prediction of a posterior, averaged or at the mean, where every row knows both. It
    sees the seeds that every strength has, because the test set had a say in who gets more. The best on test is that
    of the strengths with the most seeds: one lucky seed of a grid is no mean.
    """
    strengths = rows.groupby("seed")["strength"].nunique()
    seeds = rows.groupby("strength", dropna=False)["seed"].nunique()
    if by == "validation":
        tried = rows[rows["seed"].isin(strengths.index[strengths == strengths.max()])]
    else:
        tried = rows[rows["strength"].isin(seeds.index[seeds == seeds.max()])]
    best, top = Choice(), -math.inf
    columns = {"accuracy": "accuracy"} if by == "accuracy" else PREDICTIONS
    for prediction, column in columns.items():
        if column not in tried or (prediction == "at_mean" and tried[column].isna().any()):
            continue
        means = tried.groupby("strength", dropna=False)[column].mean().dropna().round(9)
        if len(means) and means.max() > top:
            strength, top = float(means.idxmax()), means.max()  # of equal means the first
            own = rows if math.isnan(strength) else rows[rows["strength"] == strength]
            ends = (rows["strength"].min(), rows["strength"].max())
            edge = len(seeds) > 1 and strength > 0 and strength in ends
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


# ---- claims ----

COMPARABLE = 0.01  # a point of accuracy: "comparable" means no further behind than this
CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or one of ours (`own`), beside what was measured."""

    says: str
    measured: str
    verdict: Verdict
    own: bool = False


def find_leads(pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Of each pair (mean difference, its standard error); nothing, where a value is missing.

    With one seed the error is unknown, so infinite.

    >>> find_leads([([0.5, 0.75], [0.25, 0.25]), ([0.5], [0.25])])
    [(0.375, 0.125), (0.25, inf)]
    """
    leads = []
    for ours, others in pairs:
        if not (ours and others):
            return []
        several = len(ours) > 1 and len(others) > 1
        error = math.sqrt(variance(ours) / len(ours) + variance(others) / len(others)) if several else math.inf
        leads.append((mean(ours) - mean(others), error))
    return leads


def ahead(pairs: Sequence[Pair], *, sign: int = 1, gain: float = 0.0) -> Verdict:
    """Ours is clearly ahead in every pair: reproduced; on average, and clearly behind in none: direction only.

    With the sign −1 less is better. Where the paper names a `gain`, half of it reproduces; a tenth is the direction.

    >>> ahead([([0.9, 0.91], [0.5, 0.51])]), ahead([([0.9], [0.5])]), ahead([([0.4], [0.5])])
    ('reproduced', 'direction only', 'not reproduced')
    >>> ahead([([0.5, 0.51], [0.9, 0.91])], sign=-1)
    'reproduced'
    >>> ahead([([0.9, 0.9], [0.8, 0.8])], gain=0.12), ahead([([0.805], [0.8])], gain=0.12)
    ('reproduced', 'not reproduced')
    """
    if not (leads := find_leads(pairs)):
        return "not run"
    clear = all(sign * value > CLEAR * error and sign * value >= gain / 2 for value, error in leads)
    average = mean(sign * value for value, _ in leads)
    lost = any(sign * value < -CLEAR * error for value, error in leads)
    return grade(clear, average > 0 and average >= gain / 10 and not lost)


def comparable(pairs: Sequence[Pair]) -> Verdict:
    """Ours is at most a point behind in every pair: reproduced; on average, or with one seed: direction only.

    >>> comparable([([0.89, 0.9], [0.9, 0.9])]), comparable([([0.895], [0.9])]), comparable([([0.8], [0.9])])
    ('reproduced', 'direction only', 'not reproduced')
    """
    if not (leads := find_leads(pairs)):
        return "not run"
    near = all(value + COMPARABLE >= 0 and error < math.inf for value, error in leads)
    return grade(near, mean(value + COMPARABLE for value, _ in leads) >= 0)


def holds(parts: Sequence[bool]) -> Verdict:
    """A statement in parts: all of them hold, more than half, fewer, or there are none.

    >>> holds([True, True]), holds([True, True, False]), holds([False]), holds([])
    ('reproduced', 'direction only', 'not reproduced', 'not run')
    """
    return grade(all(parts), sum(parts) > len(parts) / 2) if parts else "not run"


def grade(reproduced: bool, direction: bool) -> Verdict:
    """The verdict on what holds in full, in its direction, or not."""
    return "reproduced" if reproduced else "direction only" if direction else "not reproduced"
