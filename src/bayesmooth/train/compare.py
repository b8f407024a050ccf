"""Figures as people read them: a run in a table, runs side by side, curves by epoch."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError, require
from bayesmooth.files import write_atomically
from bayesmooth.progress import format_duration, format_figure
from bayesmooth.train.run import Run

OTHERS = ("memorised", "validation.accuracy")  # figures of a report beside those of the test set

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
OKABE_ITO = {  # colours that the colour-blind can distinguish
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky blue": "#56B4E9",
    "black": "#000000",
    "yellow": "#F0E442",
}


def format_report(record: Mapping[str, Any], path: Path) -> str:
    """The figures of a finished run: at the mean of the weights, and averaged over the posterior where there is one.

    >>> report = {"test.accuracy": 0.9, "test.nll": 0.3, "averaged.accuracy": 0.91, "memorised": 0.1}
    >>> report |= {"validation.accuracy": 0.6, "averaged.validation.accuracy": 0.65}
    >>> print(format_report(report, Path("r")))
    r
    figure                 mean  averaged
    accuracy             90.0 %    91.0 %
    nll                   0.300         –
    memorised            10.0 %         –
    validation.accuracy  60.0 %    65.0 %
    """
    rows: list[dict[str, Any]] = []
    for key in record:
        if key.startswith("test.") or key in OTHERS:
            name = key.removeprefix("test.")
            averaged = record.get(f"averaged.{name}")
            row = {"figure": name, "mean": format_figure(name, record[key])}
            rows.append(row | {"averaged": None if averaged is None else format_figure(name, averaged)})
    return f"{path}\n{format_table(rows)}" if rows else str(path)


def compare_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per run: its path, status, epochs, and the last value of every figure that any of them has."""
    figures = [{k: v for record in run.metrics() for k, v in record.items()} for run in runs]
    shown = [key for key in FIGURES if any(key in own for own in figures)]
    return [
        {"run": str(run.path), "status": run.status, "epoch": own.get("epoch")}
        | {FIGURES[key]: format_figure(key, own[key]) if key in own else None for key in shown}
        | {"time": format_duration(run.seconds())}
        for run, own in zip(runs, figures, strict=True)
    ]


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as aligned text.

    >>> print(format_table([{"run": "a", "accuracy": "91.5 %"}, {"run": "b", "accuracy": None}]))
    run  accuracy
    a      91.5 %
    b           –
    """
    cells = [list(rows[0]), *(["–" if value is None else str(value) for value in row.values()] for row in rows)]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join([name.ljust(first), *map(str.rjust, rest, others)]) for name, *rest in cells)


def draw_curves(runs: Sequence[Run], path: Path) -> None:
    """Accuracy, calibration and memorisation by epoch, one line per run, as a picture."""
    matplotlib = require("matplotlib.figure", extra="train")
    records = {str(run.path): run.metrics() for run in runs}
    panels = [key for key in PANELS if any(key in r for rs in records.values() for r in rs)]
    if not panels:
        raise InputError("the runs have no figures by epoch of a test set or of known wrong labels: nothing to draw")
    figure = matplotlib.Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axis, key in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for (name, history), colour in zip(records.items(), cycle(OKABE_ITO.values())):
            points = {record["epoch"]: record[key] for record in history if key in record}
            axis.plot(list(points), list(points.values()), color=colour, marker=".", label=name)
        axis.set(title=PANELS[key], xlabel="epoch")
        axis.grid(alpha=0.25)
    columns = max(1, min(len(records), 120 // (max(map(len, records)) + 6)))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=columns)
    write_atomically(path, partial(figure.savefig, format=path.suffix[1:].lower(), dpi=150))
