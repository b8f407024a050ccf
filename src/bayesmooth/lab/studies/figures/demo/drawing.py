"""The demo's pictures as PNG, in a light and a dark theme."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from statistics import mean
from typing import Any

from torch import Tensor, nn

from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.demo.digits import DIGIT, Digits
from bayesmooth.lab.studies.figures.demo.results import METHODS, TUNED, title
from bayesmooth.lab.studies.figures.noise_of import ALPHA, smoothing_noise
from bayesmooth.lab.studies.style import COLOURS, STYLE
from bayesmooth.optional import require

WIDTH = 6.0  # inches; at DPI that is 1,200 pixels
DPI = 200
SHOWN = 10  # digits in a strip


@dataclass(frozen=True)
class Theme:
    """Colours of a background. `changed` are those methods whose colour would not be seen on it."""

    paper: str
    ink: str
    muted: str
    changed: Mapping[str, str] = field(default_factory=dict)

    def colour(self, method: str) -> str:
        """Of a method in `style.COLOURS`."""
        return self.changed.get(method, COLOURS[method])

    @property
    def style(self) -> dict[str, Any]:
        """For matplotlib."""
        inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
        return {
            **STYLE,
            **dict.fromkeys(inked, self.ink),
            "axes.edgecolor": self.muted,
            "axes.facecolor": "none",
            "grid.color": self.muted,
            "figure.facecolor": self.paper,
        }


LIGHT = Theme("#ffffff", "#1a1d21", "#8a929c")
DARK = Theme(
    "#1b1e23", "#e9ebee", "#6b7480", {"SGD": "#e9ebee", "LS": "#a0a7b1", "IVON": "#f07a28"}
)
THEMES = (LIGHT, DARK)


@contextmanager
def sheet(theme: Theme, height: float, png: BytesIO) -> Iterator[Any]:
    """A figure to draw on, written to `png` at the end."""
    matplotlib = require("matplotlib", extra="plot")
    with matplotlib.rc_context(theme.style):
        figure = require("matplotlib.figure", extra="plot").Figure(
            figsize=(WIDTH, height), layout="constrained"
        )
        yield figure
        figure.savefig(png, dpi=DPI, format="png")


def illustration(digits: Digits, theme: Theme) -> bytes:
    """fig:illustration: a typical and an atypical digit, and the noise on their labels, class by class."""
    png = BytesIO()
    pair = digits.pair()
    top = 110 * max(float(digits.noise[at].max()) for at in pair)
    with sheet(theme, 3.2, png) as figure:
        axes = figure.subplots(2, 2, gridspec_kw={"width_ratios": [1, 3.6]}, sharex="col")
        for (picture, bars), at, kind in zip(axes, pair, ("a typical", "an atypical"), strict=True):
            _picture(picture, digits.pictures[at], theme)
            picture.set_title(f"{kind} {DIGIT}", fontsize=9, pad=2)
            _noises(bars, digits, at, theme)
            bars.set_ylim(0, top)
        axes[1][1].set_xlabel("class")
    return png.getvalue()


def _noises(axis: Any, digits: Digits, at: int, theme: Theme) -> None:
    """Two bars a class, and what they come to."""
    classes = digits.noise.shape[1]
    same = smoothing_noise(classes, int(digits.labels[at])).abs()
    for method, name, noise, side in (
        ("LS", f"label smoothing, α = {ALPHA}", same, -1),
        ("IVON", "variational (IVON)", digits.noise[at], 1),
    ):
        places = [k + 0.21 * side for k in range(classes)]
        axis.bar(places, (100 * noise).tolist(), 0.4, color=theme.colour(method))
        words = {"color": theme.colour(method), "fontsize": 9.5, "fontweight": "bold"}
        hiding = {"facecolor": theme.paper, "edgecolor": "none", "pad": 1}  # the grid behind them
        at_line = {"transform": axis.transAxes, "va": "top", "bbox": hiding}
        height = 0.91 - 0.08 * side
        total = f"{50 * float(noise.sum()):.0f} %"
        axis.text(0.1, height, total, ha="right", **words, **at_line)
        axis.text(0.12, height, name, **words, **at_line)
    axis.set(xticks=list(range(classes)), ylabel="label noise (%)")
    axis.grid(visible=False, axis="x")
    axis.set_axisbelow(True)
    axis.tick_params(length=0)


def strips(digits: Digits, theme: Theme) -> bytes:
    """The digits with the least noise, and those with the most."""
    png = BytesIO()
    names = ("clearest", "most\nambiguous")
    with sheet(theme, 1.75, png) as figure:
        axes = figure.subplots(2, SHOWN)
        for row, chosen, name in zip(axes, digits.extremes(SHOWN), names, strict=True):
            for axis, at in zip(row, chosen, strict=False):
                _picture(axis, digits.pictures[at], theme)
                size = f"{100 * float(digits.size[at]):.0f} %"
                axis.set_title(size, fontsize=7.5, color=theme.colour("IVON"), pad=2)
            row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return png.getvalue()


def _picture(axis: Any, pixels: Tensor, theme: Theme) -> None:
    colors = require("matplotlib.colors", extra="plot")
    ink = colors.LinearSegmentedColormap.from_list("ink", [theme.paper, theme.ink])
    framed = nn.functional.pad(pixels, (1, 1, 1, 1)).numpy()
    axis.imshow(framed, cmap=ink, interpolation="bicubic", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    axis.grid(visible=False)


PANELS = {
    "test.accuracy": "accuracy on clean test digits (%)",
    "memorised": "wrong labels memorised (%)",
}


def curves(runs: Mapping[str, Sequence[Run]], theme: Theme) -> bytes:
    """Accuracy and memorised errors by epoch, the mean over seeds."""
    png = BytesIO()
    with sheet(theme, 2.5, png) as figure:
        axes = figure.subplots(1, len(PANELS))
        for axis, (key, name) in zip(axes, PANELS.items(), strict=True):
            for method, own in runs.items():
                colour = theme.colour(METHODS[method].colour)
                dashes = "--" if method == TUNED else "-"
                axis.plot(*means(own, key), dashes, color=colour, label=title(method, own[0]))
            axis.set_title(name, loc="left")
            axis.set_xlabel("epoch")
            axis.tick_params(length=0)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return png.getvalue()


def means(runs: Sequence[Run], key: str) -> tuple[list[int], list[float]]:
    """Epochs, and a figure's mean over the seeds in per cent."""
    histories = list(zip(*(run.metrics() for run in runs), strict=True))
    values = [100 * mean(record[key] for record in records) for records in histories]
    return [records[0]["epoch"] for records in histories], values
