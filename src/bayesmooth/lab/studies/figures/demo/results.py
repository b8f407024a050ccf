"""What was measured: every figure of every method, a number a seed, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from bayesmooth.lab import Run
from bayesmooth.lab.evaluate import evaluate, probabilities
from bayesmooth.lab.studies.table import spread
from bayesmooth.lab.studies.verdict import CLEAR, difference


@dataclass(frozen=True)
class Method:
    """A recipe that is shipped, what the demo changes in it, and its colour (in `style.COLOURS`)."""

    recipe: str
    colour: str
    settings: tuple[str, ...] = ()


PLAIN, SMOOTH, TUNED, OURS = "cross-entropy", "label smoothing", "label smoothing, tuned", "IVON"
AVERAGED = "IVON, averaged"

METHODS: dict[str, Method] = {
    PLAIN: Method("digits-ce", "SGD"),
    SMOOTH: Method("digits-ls", "LS", ("loss.alpha=0.1",)),  # what people take who do not tune
    TUNED: Method("digits-ls", "LS"),
    OURS: Method("digits-ivon", "IVON"),
}


@dataclass(frozen=True)
class Measure:
    """A figure: its name for people, whether it is a share, and the direction in which it is better (0: neither)."""

    name: str
    share: bool
    better: int

    def said(self, values: Sequence[float]) -> str:
        """Mean ± standard deviation over seeds.

        >>> MEASURES["accuracy"].said([0.95, 0.97]), MEASURES["ece"].said([0.3])
        ('96.0 ± 1.4 %', '0.30')
        """
        scale, digits = (100.0, 1) if self.share else (1.0, 2)
        text = f"{scale * mean(values):.{digits}f}"
        if len(values) > 1:
            text += f" ± {scale * spread(values):.{digits}f}"
        return text + (" %" if self.share else "")


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("accuracy", True, 1),
    "memorised": Measure("memorised", True, -1),
    "nll": Measure("NLL", False, -1),
    "ece": Measure("ECE", False, -1),
    "confidence": Measure("confidence", True, 0),
}


@dataclass(frozen=True)
class Result:
    """A row of the table: by measure, a number a seed."""

    name: str
    method: str
    figures: Mapping[str, list[float]]

    def said(self, key: str) -> str:
        """A figure in words."""
        return MEASURES[key].said(self.figures[key])


def gather(runs: Mapping[str, Sequence[Run]]) -> list[Result]:
    """A row a method, and a second one for predictions that are averaged over the posterior."""
    rows = [
        Result(title(name, own[0]), name, _columns([at_mean(run) for run in own]))
        for name, own in runs.items()
    ]
    return [*rows, Result(AVERAGED, OURS, _columns([averaged(run) for run in runs[OURS]]))]


def title(name: str, run: Run) -> str:
    """The name of a method, with its smoothing rate if it has one: label smoothing 0.7, tuned."""
    alpha = run.recipe.loss.options.get("alpha")
    return name if alpha is None else name.replace(SMOOTH, f"{SMOOTH} {alpha:g}")


def at_mean(run: Run) -> dict[str, float]:
    """The figures of a run's report, and how sure it is of what it says about the test set."""
    report = run.report()
    sure = probabilities(run.model(), run.examples("test")).max(1).values.mean()
    return {
        **{key: report[f"test.{key}"] for key in ("accuracy", "nll", "ece")},
        "memorised": report["memorised"],
        "confidence": float(sure),
    }


def averaged(run: Run) -> dict[str, float]:
    """The same for predictions averaged over the posterior."""
    report, model, wrong = run.report(), run.model(), run.splits().wrong
    how: dict[str, Any] = {"posterior": run.posterior(), "samples": run.recipe.evaluate.samples}
    sure = probabilities(model, run.examples("test"), **how).max(1).values.mean()
    return {
        **{key: report[f"averaged.{key}"] for key in ("accuracy", "nll", "ece")},
        "memorised": evaluate(model, wrong=wrong, **how)["memorised"],
        "confidence": float(sure),
    }


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


@dataclass(frozen=True)
class Comparison:
    """IVON beside another method: the measures in which it is clearly ahead, clearly behind, or neither."""

    rival: Result
    ahead: list[str]
    behind: list[str]
    level: list[str]

    def sides(self) -> dict[str, list[str]]:
        """In words, with the names of the measures; empty sides are left out."""
        said = {"ahead": self.ahead, "behind": self.behind, "level": self.level}
        return {side: [MEASURES[key].name for key in keys] for side, keys in said.items() if keys}


def compare(results: Sequence[Result]) -> list[Comparison]:
    """IVON at the mean of its weights (as cheap to use as the others) against each of the others."""
    ours = next(row for row in results if row.name == OURS)
    return [_compared(ours, row) for row in results if row.method != OURS]


def _compared(ours: Result, rival: Result) -> Comparison:
    sides: dict[str, list[str]] = {"ahead": [], "behind": [], "level": []}
    for key, measure in MEASURES.items():
        if measure.better:
            gain, error = difference(ours.figures[key], rival.figures[key])
            gain *= measure.better
            # one seed has no error bar, so it can show no clear difference
            side = (
                "ahead" if gain > CLEAR * error else "behind" if -gain > CLEAR * error else "level"
            )
            sides[side].append(key)
    return Comparison(rival, **sides)


def sentences(results: Sequence[Result]) -> list[str]:
    """What the comparisons say, in words."""
    return [
        f"IVON against {found.rival.name}, "
        + "; ".join(f"{side}: {', '.join(names)}" for side, names in found.sides().items())
        for found in compare(results)
    ]
