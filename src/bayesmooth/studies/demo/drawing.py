"""The demo's pictures as PNG, in a light and a dark theme."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from statistics import mean
from typing import Any

from torch import Tensor

from bayesmooth.optional import require
from bayesmooth.studies.demo.digits import DIGIT, Digits
from bayesmooth.studies.demo.results import METHODS, title
from bayesmooth.studies.noise_of import ALPHA, smoothing_noise
from bayesmooth.studies.style import COLOURS, STYLE
from bayesmooth.training import Run

WIDTH = 6.0  # inches; at DPI that is 1,200 pixels
DPI = 200
SHOWN = 10  # digits in a strip


@dataclass(frozen=True)
class Theme:
    """Colours of a background. `changed` are those methods whose colour would not be seen on it."""

    paper: str
    ink: str
    muted: str
    digits: str  # a colour map, from paper to ink
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


LIGHT = Theme("#ffffff", "#1a1d21", "#8a929c", "gray_r")
DARK = Theme(
    "#1b1e23", "#e9ebee", "#6b7480", "gray", {"SGD": "#e9ebee", "LS": "#a0a7b1", "IVON": "#f07a28"}
)


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
    top = 118 * max(float(digits.noise[at].max()) for at in pair)
    with sheet(theme, 3.3, png) as figure:
        axes = figure.subplots(2, 2, gridspec_kw={"width_ratios": [1, 3.4]}, sharex="col")
        for (picture, bars), at, kind in zip(axes, pair, ("typical", "atypical"), strict=True):
            _picture(picture, digits.pictures[at], theme)
            picture.set_title(f"{'an' if kind == 'atypical' else 'a'} {kind} {DIGIT}", fontsize=9)
            _bars(bars, digits, at, theme)
            bars.set_ylim(0, top)
        axes[1][1].set_xlabel("class")
    return png.getvalue()


def _bars(axis: Any, digits: Digits, at: int, theme: Theme) -> None:
    label = int(digits.labels[at])
    classes = range(digits.noise.shape[1])
    same = smoothing_noise(len(classes), label).abs()
    for method, noise, shift in (("LS", same, -0.21), ("IVON", digits.noise[at], 0.21)):
        places = [k + shift for k in classes]
        axis.bar(places, (100 * noise).tolist(), 0.4, color=theme.colour(method))
    words = {
        "LS": (f"label smoothing, α = {ALPHA}", same),
        "IVON": ("variational (IVON)", digits.noise[at]),
    }
    for line, (method, (name, noise)) in enumerate(words.items()):
        axis.text(
            0.02,
            0.97 - 0.15 * line,
            f"{name}: {50 * float(noise.sum()):.0f} %",
            color=theme.colour(method),
            transform=axis.transAxes,
            va="top",
            fontsize=9,
            fontweight="bold",
        )
    axis.set(xticks=list(classes), ylabel="label noise (%)")
    axis.grid(visible=False, axis="x")
    axis.tick_params(length=0)


def strips(digits: Digits, theme: Theme) -> bytes:
    """The digits with the least noise, and those with the most."""
    png = BytesIO()
    with sheet(theme, 1.75, png) as figure:
        axes = figure.subplots(2, SHOWN)
        for row, chosen, name in zip(
            axes, digits.extremes(SHOWN), ("clearest", "most\nambiguous"), strict=True
        ):
            for axis, at in zip(row, chosen, strict=False):
                _picture(axis, digits.pictures[at], theme)
                axis.set_title(
                    f"{100 * float(digits.size[at]):.0f} %", fontsize=7, color=theme.colour("IVON")
                )
            row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return png.getvalue()


def _picture(axis: Any, pixels: Tensor, theme: Theme) -> None:
    axis.imshow(pixels.numpy(), cmap=theme.digits, interpolation="bicubic", vmin=0, vmax=1)
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
    with sheet(theme, 2.4, png) as figure:
        axes = figure.subplots(1, len(PANELS))
        for axis, (key, name) in zip(axes, PANELS.items(), strict=True):
            for method, own in runs.items():
                line = "--" if method.endswith("tuned") else "-"
                axis.plot(
                    *means(own, key),
                    line,
                    color=theme.colour(METHODS[method].colour),
                    label=title(method, own[0]),
                )
            axis.set_title(name, loc="left")
            axis.set_xlabel("epoch")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return png.getvalue()


def means(runs: Sequence[Run], key: str) -> tuple[list[int], list[float]]:
    """Epochs, and a figure's mean over the seeds in per cent."""
    histories = zip(*(run.metrics() for run in runs), strict=True)
    points = [
        (records[0]["epoch"], 100 * mean(record[key] for record in records))
        for records in histories
    ]
    return [epoch for epoch, _ in points], [value for _, value in points]
