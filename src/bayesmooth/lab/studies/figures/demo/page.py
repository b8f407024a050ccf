"""The demo as one HTML file that opens from disk: no scripts, nothing fetched, light and dark."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from statistics import mean

from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.demo.digits import DIGIT, DRAWS, Digits
from bayesmooth.lab.studies.figures.demo.drawing import DARK, LIGHT, means
from bayesmooth.lab.studies.figures.demo.results import (
    MEASURES,
    METHODS,
    OURS,
    PLAIN,
    SMOOTH,
    TUNED,
    Comparison,
    Measure,
    Result,
    compare,
)
from bayesmooth.lab.studies.figures.demo.template import CAUTION, PAGE, STYLE
from bayesmooth.progress import duration

Runs = Mapping[str, Sequence[Run]]
Pictures = Mapping[str, Sequence[bytes]]
"""By name, a PNG for a light page and one for a dark page."""


def page(results: Sequence[Result], runs: Runs, digits: Digits, pictures: Pictures) -> str:
    """The whole page."""
    numbers = _numbers(results, runs)
    ours = next(row for row in results if row.name == OURS)
    cautious = mean(ours.figures["confidence"]) < mean(ours.figures["accuracy"])
    return PAGE.substitute(
        numbers,
        style=STYLE + _colours(),
        table=_table(results),
        verdicts="\n".join(map(_against, compare(results))),
        caution=CAUTION.substitute(numbers) if cautious else "",
        commands=_commands(),
        **_noise(digits),
        **{name: _picture(pngs, ALT[name]) for name, pngs in pictures.items()},
    )


ALT = {
    "illustration": "A typical and an atypical digit, and the noise on their labels by class: that of label smoothing "
    "is the same for both.",
    "strips": "The training digits with the least label noise, and those with the most, each with its noise.",
    "curves": "Accuracy and memorised errors of every method by epoch.",
}


def percent(value: float) -> str:
    """A share in words.

    >>> percent(0.951)
    '95 %'
    """
    return f"{100 * value:.0f} %"


NAMED = {"plain": PLAIN, "smooth": SMOOTH, "tuned": TUNED, "ours": OURS}  # in the template


def _numbers(results: Sequence[Result], runs: Runs) -> dict[str, str]:
    """What the text quotes of the runs."""
    rows = {row.method: row for row in reversed(results)}  # the averaged row comes last
    first, every = runs[OURS][0], [run for own in runs.values() for run in own]
    epochs, accuracy = means(runs[PLAIN], "test.accuracy")
    seeds = len(runs[OURS])
    return {
        **{
            f"{name}_{key}": percent(mean(rows[method].figures[key]))
            for name, method in NAMED.items()
            for key in ("accuracy", "memorised", "confidence")
        },
        "rate": percent(first.recipe.corruption.options["rate"]),
        "peak": f"{max(accuracy):.0f} %",
        "peak_epoch": str(epochs[accuracy.index(max(accuracy))]),
        "train": f"{len(first.examples('train')):,}",
        "test": str(len(first.examples("test"))),
        "seeds": f"{seeds} seed{'s' if seeds > 1 else ''}",
        "samples": str(first.recipe.evaluate.samples),
        "runs": str(len(every)),
        "time": duration(sum(run.seconds() for run in every)),
    }


def _noise(digits: Digits) -> dict[str, str]:
    """What the text quotes of the label noise."""
    return {
        "digit": str(DIGIT),
        "agreeing": str(digits.agreeing()),
        "classes": str(len(digits.classes)),
        "right": f"{len(digits.labels):,}",
        "correlation": f"{digits.correlation():.2f}",
        "draws": str(DRAWS),
    }


def _colours() -> str:
    """A class a method, with its colour in both themes."""
    return "".join(
        f".{each} {{ --of: light-dark({LIGHT.colour(each)}, {DARK.colour(each)}); }}\n"
        for each in dict.fromkeys(method.colour for method in METHODS.values())
    )


def _table(results: Sequence[Result]) -> str:
    arrows = {1: " ↑", -1: " ↓", 0: ""}
    heads = "".join(
        f"<th scope='col'>{escape(m.name)}{arrows[m.better]}</th>" for m in MEASURES.values()
    )
    rows = "\n".join(_row(row, results) for row in results)
    return f"<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>"


def _row(row: Result, results: Sequence[Result]) -> str:
    cells = "".join(_cell(row, key, measure, results) for key, measure in MEASURES.items())
    kind = METHODS[row.method].colour + (" ours" if row.method == OURS else "")
    return f"<tr class='{kind}'><th scope='row'>{escape(row.name)}</th>{cells}</tr>"


def _cell(row: Result, key: str, measure: Measure, results: Sequence[Result]) -> str:
    """The figure, above a bar whose full length is 100 %, or the largest of the column."""
    column = [mean(other.figures[key]) for other in results]
    value = mean(row.figures[key])
    best = measure.better and value == max(column, key=lambda each: measure.better * each)
    length = 100 * value / (1.0 if measure.share else max(column))
    return (
        f"<td{' class=best' if best else ''}>{escape(row.said(key))}"
        f"<span class='bar'><i style='width:{length:.1f}%'></i></span></td>"
    )


def _against(found: Comparison) -> str:
    lines = "<br>".join(
        f"<b class='{side}'>{side}</b> {escape(', '.join(names))}"
        for side, names in found.sides().items()
    )
    return f"<dt>against {escape(found.rival.name)}</dt><dd>{lines}</dd>"


def _picture(pngs: Sequence[bytes], alt: str) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs)
    return (
        "<figure class='card'><picture>"
        f"<source media='(prefers-color-scheme: dark)' srcset='{dark}'>"
        f"<img alt='{escape(alt)}' src='{light}'></picture></figure>"
    )


def _commands() -> str:
    return "\n".join(
        escape(" ".join(["bayesmooth train", m.recipe, *(f"--set {s}" for s in m.settings)]))
        for m in METHODS.values()
    )
