"""One look for all figures: the width of a paper's column or page, one colour per method, safe for the colour-blind."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayesmooth.errors import require
from bayesmooth.files import write_atomically
from bayesmooth.train.compare import OKABE_ITO
from reproduce.table import EARLY, Table

COLUMN, PAGE = 3.35, 6.9  # inches

# A method has the same colour and mark in every figure.
COLOURS = {
    "IVON": OKABE_ITO["vermilion"],
    "LS": "#7F7F7F",
    "SAM": OKABE_ITO["blue"],
    "SGD": OKABE_ITO["black"],
    EARLY: OKABE_ITO["sky blue"],
    "OLS": OKABE_ITO["green"],
    "fixed Σ": OKABE_ITO["purple"],
    "learned Σ": OKABE_ITO["vermilion"],
}
MARKS = dict(zip(COLOURS, "os^xPDvo", strict=True))

DATA_NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10n": "CIFAR-10N",
    "clothing1m": "Clothing1M",
    "cifar10-10000": "CIFAR-10 features",
    "cifar100-10000": "CIFAR-100 features",
    "cifar10n-random1-10000": "CIFAR-10N features",
}


@contextmanager
def figure(
    out: Path, rows: int = 1, columns: int = 1, *, width: float = COLUMN, height: float = 2.3, **share: Any
) -> Iterator[Any]:
    """Axes (rows × columns) to draw on; written to `out`.png at the end."""
    matplotlib = require("matplotlib.figure", extra="train")
    with require("matplotlib", extra="train").rc_context(fname=Path(__file__).with_name("figures.mplstyle")):
        sheet = matplotlib.Figure(figsize=(width, height), layout="constrained")
        yield sheet.subplots(rows, columns, squeeze=False, **share)
        # Without the version of matplotlib in it, the same figure is the same file.
        save = partial(sheet.savefig, format="png", dpi=220, metadata={"Software": None})
        write_atomically(out.with_suffix(".png"), save)


def look(method: str, label: str = "") -> dict[str, str]:
    """The colour, mark and label of a method."""
    return {"color": COLOURS[method], "marker": MARKS[method], "label": label or method}


def line(axis: Any, method: str, points: Sequence[tuple[float, Sequence[float]]], label: str = "") -> None:
    """Means over seeds, in per cent, their standard deviation as bars; two points are not joined to a line."""
    known = [(x, [100 * value for value in values]) for x, values in points if len(values)]
    places, means = [x for x, _ in known], [mean(values) for _, values in known]
    bars = [stdev(values) if len(values) > 1 else 0.0 for _, values in known]
    joined = "-" if len(known) > 2 else "none"
    axis.errorbar(places, means, bars if any(bars) else None, linestyle=joined, **look(method, label))


def level(axis: Any, method: str, values: Sequence[float]) -> None:
    """A method without a strength on the axis: a line across, its standard deviation as a band."""
    if values:
        centre, colour = 100 * mean(values), COLOURS[method]
        dashes = ":" if method == EARLY else "-"
        axis.axhline(centre, color=colour, linestyle=dashes, label=method)
        if len(values) > 1:
            half = 100 * stdev(values)
            axis.axhspan(centre - half, centre + half, color=colour, alpha=0.18, linewidth=0)


def legend_below(axes: Sequence[Any], groups: Iterable[Sequence[float]], bars: bool = True) -> None:
    """One legend for all panels, under them; its title says how many seeds a point has, and what its bars are."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    counts, title = sorted({len(group) for group in groups if len(group)}), "one seed"
    if counts and counts[-1] > 1:
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        title = f"mean of {many} seeds{' ± one standard deviation' * bars}"
    sheet = axes[0].figure
    columns = min(len(found), 2 if sheet.get_figwidth() < PAGE / 2 else 5)
    style = {"loc": "outside lower center", "title_fontsize": 6.5}
    sheet.legend(found.values(), found.keys(), ncols=columns, title=title, **style)


def name_data(table: Table) -> str:
    """The data set of a table, as people write it."""
    return ", ".join(DATA_NAMES.get(name, name) for name in table["data"].dropna().unique())


def picture(axis: Any, pixels: Any) -> None:
    """A grey image, dark on light, without a frame."""
    axis.imshow(pixels, cmap="gray_r")
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
