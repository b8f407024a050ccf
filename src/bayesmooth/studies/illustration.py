"""fig:illustration: a regular and an atypical 6, and the label noise that LS and variational learning give them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmooth.studies.methods import Cell
from bayesmooth.studies.noise_of import (
    ALPHA,
    ivon_cell,
    picture_from,
    picture_text,
    smoothing_noise,
    training_noise,
)
from bayesmooth.studies.study import Study
from bayesmooth.studies.style import COLOURS, figure, picture
from bayesmooth.studies.table import Table, column, distinct, where
from bayesmooth.studies.verdict import Claim, holds
from bayesmooth.training import Run

DIGIT = 6
KINDS = ("regular", "atypical")


def measure(cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None) -> Table:
    """The 6 with the least noise and the one with the most: |ε| by class, for both methods."""
    found = training_noise(cells, runs, data_dir)
    if found is None:
        return []
    examples, noise = found
    sixes = (examples.labels == DIGIT).nonzero().flatten()
    order = sixes[noise.magnitude[sixes].argsort()]
    rows: Table = []
    for kind, at in zip(KINDS, (int(order[0]), int(order[-1])), strict=True):
        same = smoothing_noise(examples.num_classes, DIGIT)
        for method, noises in (("LS", same), ("IVON", noise.expected[at])):
            pixels = picture_text(examples.inputs[at : at + 1][0, 0])  # type: ignore[index]
            for label, value in enumerate(noises.tolist()):
                row = {
                    "kind": kind,
                    "id": at,
                    "method": method,
                    "label": label,
                    "noise_size": abs(value),
                }
                rows.append({**row, "pixels": pixels if label == 0 else ""})
    return rows


def draw(table: Table, out: Path) -> None:
    """The picture, then its noise by class as bars."""
    with figure(out, 2, 2, height=2.6, gridspec_kw={"width_ratios": [1, 3]}) as axes:
        for (image, bars), kind in zip(axes, KINDS, strict=True):
            rows = where(table, kind=kind)
            picture(image, picture_from(rows[0]["pixels"]))
            image.set_ylabel(f"{kind} 6")
            for method, shift in (("LS", -0.2), ("IVON", 0.2)):
                _bars(bars, where(rows, method=method), method, shift)
            bars.set(ylabel="label noise |ε|", ylim=(0, 1.1 * max(column(table, "noise_size"))))
        axes[1][1].set_xlabel("class")
        axes[0][1].legend(loc="upper left")


def _bars(axis: Any, rows: Table, method: str, shift: float) -> None:
    labels = column(rows, "label")
    name = f"LS, α = {ALPHA}" if method == "LS" else "variational (IVON)"
    axis.bar(
        [label + shift for label in labels],
        column(rows, "noise_size"),
        0.4,
        color=COLOURS[method],
        label=name,
    )
    axis.set_xticks(labels)


def claims(table: Table) -> list[Claim]:
    """LS the same, variational more for the atypical one."""
    sums = {
        (method, kind): sum(column(where(table, method=method, kind=kind), "noise_size")) / 2
        for method in distinct(table, "method")
        for kind in KINDS
    }
    if not sums:
        return [Claim(SAYS, "nothing", "not run")]
    words = [f"{method}, {kind}: {value:.4f}" for (method, kind), value in sums.items()]
    parts = [
        abs(sums["LS", "regular"] - sums["LS", "atypical"]) < 1e-6,
        sums["IVON", "atypical"] > 2 * sums["IVON", "regular"],
    ]
    return [Claim(SAYS, f"½‖ε‖₁ {'; '.join(words)}", holds(parts))]


SAYS = "LS gives a regular and an atypical 6 the same noise, variational learning gives the atypical one more"

STUDY = Study(
    "illustration",
    "fig:illustration",
    "Two sixes",
    "a regular and an atypical 6: label noise of LS (the same) and of variational learning (different)",
    lambda scale: [ivon_cell(scale, "mnist")],
    draw,
    claims,
    measure,
)
