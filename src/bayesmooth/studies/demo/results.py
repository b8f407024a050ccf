"""What was measured: every figure of every method, a number a seed, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bayesmooth.studies.table import spread
from bayesmooth.studies.verdict import CLEAR, difference
from bayesmooth.training import Run
from bayesmooth.training.evaluate import evaluate, probabilities


@dataclass(frozen=True)
class Method:
    """A recipe that is shipped, what the demo changes in it, and its colour (in `style.COLOURS`)."""

    recipe: str
    colour: str
    settings: tuple[str, ...] = ()


METHODS: dict[str, Method] = {
    "cross-entropy": Method("digits-ce", "SGD"),
    "label smoothing": Method("digits-ls", "LS", ("loss.alpha=0.1",)),  # what people use untuned
    "label smoothing, tuned": Method("digits-ls", "LS"),
    "IVON": Method("digits-ivon", "IVON"),
}
OURS, AVERAGED = "IVON", "IVON, averaged"


@dataclass(frozen=True)
class Measure:
    """A figure: its name for people, whether it is a share, and the direction in which it is better (0: neither)."""

    name: str
    share: bool
    better: int

    def said(self, values: Sequence[float]) -> str:
        """Mean ± standard deviation over seeds.

        >>> MEASURES["accuracy"].said([0.95, 0.97]), MEASURES["ece"].said([0.3])
        ('96.0 ± 1.4 %', '0.300')
        """
        scale, digits = (100.0, 1) if self.share else (1.0, 3)
        text = f"{scale * mean(values):.{digits}f}"
        if len(values) > 1:
            text += f" ± {scale * spread(values):.{digits}f}"
        return text + (" %" if self.share else "")


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("accuracy", True, 1),
    "memorised": Measure("memorised errors", True, -1),
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
    """The name of a method, with its smoothing rate if it has one."""
    alpha = run.recipe.loss.options.get("alpha")
    return name if alpha is None else f"{name} (α = {alpha:g})"


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
    report, model, splits = run.report(), run.model(), run.splits()
    how = {"posterior": run.posterior(), "samples": run.recipe.evaluate.samples}
    return {
        **{key: report[f"averaged.{key}"] for key in ("accuracy", "nll", "ece")},
        "memorised": evaluate(model, wrong=splits.wrong, **how)["memorised"],
        "confidence": float(probabilities(model, splits.test, **how).max(1).values.mean()),
    }


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


@dataclass(frozen=True)
class Comparison:
    """IVON beside another method: the measures in which it is clearly ahead, clearly behind, or neither."""

    rival: Result
    ahead: list[str]
    level: list[str]
    behind: list[str]


def compare(results: Sequence[Result]) -> list[Comparison]:
    """IVON at the mean of its weights (as cheap to use as the others) against each of the others."""
    ours = next(row for row in results if row.name == OURS)
    return [_compared(ours, row) for row in results if row.method != OURS]


def _compared(ours: Result, rival: Result) -> Comparison:
    sides: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
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


def sentence(ours: Result, found: Comparison) -> str:
    """A comparison in words, with its numbers."""
    parts = []
    for side, keys in (("ahead", found.ahead), ("level", found.level), ("behind", found.behind)):
        if keys:
            numbers = [
                f"{MEASURES[key].name} ({ours.said(key)} against {found.rival.said(key)})"
                for key in keys
            ]
            parts.append(f"{side} in {', '.join(numbers)}")
    return f"IVON against {found.rival.name}: {'; '.join(parts)}."
