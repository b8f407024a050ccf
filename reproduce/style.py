"""One look for all figures: the width of a paper's column or page, one colour per method, safe for the colour-blind."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.files import replace_with
from bayesmooth.optional import require
from bayesmooth.train.compare import OKABE_ITO
from reproduce.methods import EARLY
from reproduce.rows import Table, spread

COLUMN, PAGE = 3.35, 6.9  # inches

# A method has the same colour and mark in every figure.
COLOURS = {
    "IVON": OKABE_ITO["vermilion"],
    "EVON": OKABE_ITO["purple"],
    "LS": "#7F7F7F",
    "SAM": OKABE_ITO["blue"],
    "SGD": OKABE_ITO["black"],
    EARLY: OKABE_ITO["sky blue"],
    "OLS": OKABE_ITO["green"],
    "fixed Σ": OKABE_ITO["purple"],
    "learned Σ": OKABE_ITO["vermilion"],
}
MARKS = dict(zip(COLOURS, "ohs^xPDvo", strict=True))

DATA_NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10n": "CIFAR-10N",
    "clothing1m": "Clothing1M",
    "cifar10-10000": "CIFAR-10 features",
    "cifar10-all": "CIFAR-10 features",
    "cifar100-10000": "CIFAR-100 features",
    "cifar10n-random1-10000": "CIFAR-10N features",
}

STYLE = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "errorbar.capsize": 2,
    "svg.fonttype": "path",
    "svg.hashsalt": "bayesmooth",  # the same figure is the same file
}


@contextmanager
def figure(
    out: Path,
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = COLUMN,
    height: float = 2.3,
    **share: Any,
) -> Iterator[Any]:
    """Axes (rows × columns) to draw on; written to `out`.png and `out`.svg at the end."""
    matplotlib = require("matplotlib.figure", extra="train")
    with require("matplotlib", extra="train").rc_context(STYLE):
        sheet = matplotlib.Figure(figsize=(width, height), layout="constrained")
        yield sheet.subplots(rows, columns, squeeze=False, **share)
        for kind, how in (("png", {"dpi": 220}), ("svg", {"metadata": {"Date": None}})):
            replace_with(out.with_suffix(f".{kind}"), partial(sheet.savefig, format=kind, **how))


def line(
    axis: Any, method: str, points: Sequence[tuple[float, Sequence[float]]], label: str = ""
) -> None:
    """Means over seeds, in per cent, with their standard deviation as bars."""
    known = [(x, mean(values), spread(values)) for x, values in points if len(values)]
    places, means, bars = zip(*known, strict=True) if known else ((), (), ())
    axis.errorbar(places, [100 * x for x in means], [100 * x for x in bars], **look(method, label))


def look(method: str, label: str = "") -> dict[str, str]:
    """The colour, mark and label of a method."""
    return {"color": COLOURS[method], "marker": MARKS[method], "label": label or method}


def level(axis: Any, method: str, values: Sequence[float]) -> None:
    """A method without a strength to tune: a line across, its standard deviation as a band."""
    if values:
        centre, half = 100 * mean(values), 100 * spread(values)
        dashes = ":" if method == EARLY else "-"
        axis.axhline(centre, color=COLOURS[method], linestyle=dashes, label=method)
        axis.axhspan(centre - half, centre + half, color=COLOURS[method], alpha=0.18, linewidth=0)


BARS = "mean over seeds; bars and bands: ± one standard deviation"


def legend_below(*axes: Any, title: str = BARS) -> None:
    """One legend for all panels, under them; it says what the bars are."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    sheet = axes[0].figure
    sheet.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(len(found), 2 if sheet.get_figwidth() < PAGE / 2 else 5),
        title=title,
        title_fontsize=6.5,
    )


def name_data(table: Table) -> str:
    """The data set of a table, as people write it."""
    return ", ".join(DATA_NAMES.get(name, name) for name in table["data"].dropna().unique())


def picture(axis: Any, pixels: Any) -> None:
    """A grey image, dark on light, without a frame."""
    axis.imshow(pixels, cmap="gray_r")
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
