"""Runs side by side: a table of their final figures, and curves by epoch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError
from bayesmooth.lab.run import Run
from bayesmooth.optional import require
from bayesmooth.progress import duration

FIGURES = {
    "test.accuracy": "accuracy",
    "averaged.accuracy": "averaged",
    "test.nll": "NLL",
    "averaged.nll": "avg NLL",
    "test.ece": "ECE",
    "averaged.ece": "avg ECE",
    "memorised": "memorised",
    "validation.accuracy": "validation",
}
PANELS = {
    "test.accuracy": "accuracy on the test set ↑",
    "test.ece": "calibration error (ECE) ↓",
    "memorised": "wrong labels memorised ↓",
}
PICTURES = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's: told apart by the colour-blind too."""


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run: its name, status, epochs, and the last value of every figure that any of them has."""
    last: list[dict[str, Any]] = [latest(run) for run in runs]
    present = {
        key: title for key, title in FIGURES.items() if any(key in figures for figures in last)
    }
    return [
        {
            "run": name,
            "status": run.status,
            "epoch": figures.get("epoch", 0),
            **{title: figures.get(key) for key, title in present.items()},
            "time": duration(run.seconds()),
        }
        for name, run, figures in zip(names(runs), runs, last, strict=True)
    ]


def names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its directory's name, or the whole path where another has the same name."""
    count = Counter(run.path.name for run in runs)
    return [run.path.name if count[run.path.name] == 1 else str(run.path) for run in runs]


def latest(run: Run) -> dict[str, Any]:
    """The most recent value of every figure of a run."""
    figures: dict[str, Any] = {}
    for record in run.metrics():
        figures |= record
    return figures


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as aligned text.

    >>> print(table([{"run": "a", "accuracy": 0.915, "NLL": 0.25}, {"run": "b", "accuracy": None, "NLL": 1.0}]))
    run  accuracy    NLL
    a      91.5 %  0.250
    b           –  1.000
    """
    columns = list(rows[0])
    cells = [columns] + [[_cell(name, row[name]) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for first, *rest in cells:
        aligned = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if "NLL" in name or "ECE" in name else f"{100 * value:.1f} %"
    return str(value)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Accuracy, calibration and memorisation by epoch, one line a run, as a picture."""
    matplotlib = require("matplotlib.figure", extra="plot")
    records = {name: run.metrics() for name, run in zip(names(runs), runs, strict=True)}
    panels = [key for key in PANELS if any(key in r for rs in records.values() for r in rs)]
    if not panels:
        raise InputError("none of the runs has finished an epoch yet: nothing to draw")
    figure = matplotlib.Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, key in zip(axes, panels, strict=True):
        _panel(axis, key, records)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = max(1, min(len(labels), 120 // (max(map(len, labels)) + 6)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=150)


def _panel(axis: Any, key: str, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for (name, history), colour in zip(records.items(), cycle(COLOURS)):
        points = [(record["epoch"], record[key]) for record in history if key in record]
        marker = "o" if len(points) < 3 else None
        axis.plot(
            [x for x, _ in points], [y for _, y in points], label=name, color=colour, marker=marker
        )
    axis.set(title=PANELS[key], xlabel="epoch")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
