"""fig: mnist_noise_distribution: the label noise of every training digit, sorted, with the extremes as pictures."""

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
from bayesmooth.studies.style import COLOURS, PAGE, data_name, figure, picture
from bayesmooth.studies.table import Table, column
from bayesmooth.studies.verdict import Claim, holds
from bayesmooth.training import Run

SHOWN = 8  # pictures of each extreme


def measure(cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None) -> Table:
    """½‖ε‖₁ of every example in rising order, beside LS's, and whether the network is right about it."""
    found = training_noise(cells, runs, data_dir)
    if found is None:
        return []
    examples, noise = found
    order = noise.magnitude.argsort().tolist()
    same = float(smoothing_noise(examples.num_classes, 0).abs().sum() / 2)
    extremes = {*order[:SHOWN], *order[-SHOWN:]}
    right = noise.logits.argmax(1) == examples.labels
    margin = noise.probabilities.topk(2).values
    return [
        {
            "data": cells[0].labels["data"],
            "id": i,
            "label": int(examples.labels[i]),
            "ivon_noise": float(noise.magnitude[i]),
            "ls_noise": same,
            "margin": float(margin[i, 0] - margin[i, 1]),
            "right": int(right[i]),
            "pixels": picture_text(examples.inputs[i : i + 1][0, 0]) if i in extremes else "",  # type: ignore[index]
        }
        for i in order
    ]


def draw(table: Table, out: Path) -> None:
    """The sorted noise on the left, pictures on the right: highest above, lowest below."""
    size: dict[str, Any] = {
        "width": PAGE,
        "height": 2.6,
        "gridspec_kw": {"width_ratios": [4] + [1] * (SHOWN // 2)},
    }
    with figure(out, 4, 1 + SHOWN // 2, **size) as axes:
        wide = axes[0][0].get_gridspec()
        for axis in axes[:, 0]:
            axis.remove()
        _curve(axes[0][1].figure.add_subplot(wide[:, 0]), table)
        extremes = [*reversed(table[-SHOWN:]), *table[:SHOWN]]
        for axis, row in zip(axes[:, 1:].flatten(), extremes, strict=False):
            picture(axis, picture_from(row["pixels"]))
        axes[0][1].set_ylabel("highest", loc="bottom")
        axes[2][1].set_ylabel("lowest", loc="bottom")


def _curve(axis: Any, table: Table) -> None:
    axis.semilogy(column(table, "ivon_noise"), color=COLOURS["IVON"], label="IVON")
    axis.semilogy(column(table, "ls_noise"), color=COLOURS["LS"], label=f"LS, α = {ALPHA}")
    axis.set(xlabel="example, by IVON's noise", ylabel="label noise ½‖ε‖₁")
    axis.set_title(f"{data_name(table)}, training set")
    axis.legend()


def claims(table: Table) -> list[Claim]:
    """IVON's noise differs between examples, and is high where the network is unsure or wrong."""
    tenth = max(len(table) // 10, 1)
    low, high = table[:tenth], table[-tenth:]
    if not table:
        return [Claim(SAYS, "nothing", "not run")]
    values = column(table, "ivon_noise")
    unsure = {
        name: sum(column(rows, "margin")) / len(rows)
        for name, rows in (("low", low), ("high", high))
    }
    wrong = {
        name: 1 - sum(column(rows, "right")) / len(rows)
        for name, rows in (("low", low), ("high", high))
    }
    measured = (
        f"½‖ε‖₁ from {values[0]:.2g} to {values[-1]:.2g}; margin {unsure['high']:.2f} in the tenth with most noise, "
        f"{unsure['low']:.2f} in that with least; wrong {100 * wrong['high']:.1f} and {100 * wrong['low']:.1f} %"
    )
    parts = [
        values[-1] > 10 * values[0],
        unsure["high"] < unsure["low"],
        wrong["high"] >= wrong["low"],
    ]
    return [Claim(SAYS, measured, holds(parts))]


SAYS = "IVON's noise differs by example; it is high for atypical or unclear examples and low for regular ones"

STUDY = Study(
    "mnist-noise",
    "fig: mnist_noise_distribution",
    "Label noise on MNIST",
    "sorted noise of IVON and LS, the highest and lowest examples as pictures",
    lambda scale: [ivon_cell(scale, "mnist")],
    draw,
    claims,
    measure,
)
