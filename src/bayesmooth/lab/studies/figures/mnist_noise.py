"""fig: mnist_noise_distribution: the label noise of every training digit, sorted, with the extremes as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.noise_of import (
    ALPHA,
    first_seed,
    ivon_cells,
    own_kind_distance,
    picture_from,
    picture_text,
    smoothing_noise,
    training_noises,
)
from bayesmooth.lab.studies.methods import Cell
from bayesmooth.lab.studies.rows import Table, column, distinct, format_values, where
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import COLOURS, PAGE, data_name, figure, picture
from bayesmooth.lab.studies.verdict import Claim, holds
from bayesmooth.metrics import rank_correlation

SHOWN = 8  # pictures of each extreme


def measure(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None, quiet: bool
) -> Table:
    """½‖ε‖₁ of every example in rising order, beside LS's, and how far it is from its own kind in pixels.

    The distance knows neither network nor noise, so it can testify to what is atypical.
    """
    rows: Table = []
    for facts, examples, noise in training_noises(cells, runs, data_dir, quiet):
        order = noise.magnitude.argsort().tolist()
        same = float(smoothing_noise(examples.num_classes, 0).abs().sum() / 2)
        extremes = {*order[:SHOWN], *order[-SHOWN:]}
        pixels = examples.batch(torch.arange(len(examples))).flatten(1)
        distance = own_kind_distance(pixels, examples.labels)
        rows += [
            {
                **facts,
                "id": i,
                "label": int(examples.labels[i]),
                "ivon_noise": float(noise.magnitude[i]),
                "ls_noise": same,
                "distance": float(distance[i]),
                "pixels": picture_text(examples.inputs[i : i + 1][0, 0]) if i in extremes else "",  # type: ignore[index]
            }
            for i in order
        ]
    return rows


def draw(table: Table, out: Path) -> None:
    """The sorted noise on the left, pictures on the right: highest above, lowest below."""
    table = first_seed(table)
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
    """IVON's noise differs between examples, and is high for those far from their own kind, whatever the seed."""
    found = [_facts(where(table, seed=seed)) for seed in distinct(table, "seed")]
    if not found:
        return [Claim(SAYS, "nothing", "not run")]
    words = {key: format_values([each[key] for each in found], ".2g") for key in found[0]}
    measured = (
        f"½‖ε‖₁ from {words['least']} to {words['most']}; distance to the own kind {words['high']} in the tenth with "
        f"most noise, {words['low']} in that with least; rank correlation of both {words['correlation']}"
    )
    parts = [
        part
        for each in found
        for part in (
            each["most"] > 10 * each["least"],
            each["high"] > each["low"],
            each["correlation"] > 0.2,
        )
    ]
    return [Claim(SAYS, measured, holds(parts))]


def _facts(rows: Table) -> dict[str, float]:
    """Of one seed: the extremes, and the distance in the tenths of the examples with the least noise and the most."""
    tenth = max(len(rows) // 10, 1)
    values, distances = column(rows, "ivon_noise"), column(rows, "distance")
    return {
        "least": values[0],
        "most": values[-1],
        "low": mean(distances[:tenth]),
        "high": mean(distances[-tenth:]),
        "correlation": rank_correlation(torch.tensor(values), torch.tensor(distances)),
    }


SAYS = "IVON's noise differs by example; it is high for atypical or unclear examples and low for regular ones"

STUDY = Study(
    "mnist-noise",
    "fig: mnist_noise_distribution",
    "Label noise of every digit",
    "sorted noise of IVON and LS, the highest and lowest examples as pictures",
    lambda scale: ivon_cells(scale, "mnist"),
    draw,
    claims,
    measure,
)
