"""fig: mnist_noise_distribution: the label noise of every training digit, sorted, with the extremes as pictures."""

from pathlib import Path
from typing import Any

import torch

from bayesmooth.lab.studies.figures.noisy_examples import (
    ALPHA,
    keep_first_seed,
    list_ivon,
    measure_noises,
    own_kind_distance,
    read_picture,
    smoothing_noise,
    write_picture,
)
from bayesmooth.lab.studies.rows import Table, format_values, make_table
from bayesmooth.lab.studies.study import Finished, Study
from bayesmooth.lab.studies.style import COLOURS, PAGE, figure, name_data, picture
from bayesmooth.lab.studies.verdict import Claim, holds
from bayesmooth.metrics import rank_correlation

SHOWN = 8  # pictures of each extreme


def measure_digits(finished: Finished) -> Table:
    """½‖ε‖₁ of every example in rising order, beside LS's, and how far it is from its own kind in pixels.

    The distance knows neither network nor noise, so it is an independent measure of what is atypical.
    """
    rows = []
    for facts, examples, noise in measure_noises(finished):
        order = noise.magnitude.argsort().tolist()
        same = float(smoothing_noise(examples.num_classes, 0).abs().sum() / 2)
        extremes = {*order[:SHOWN], *order[-SHOWN:]}
        pixels = examples.batch(torch.arange(len(examples), device="cpu")).flatten(1)
        distance = own_kind_distance(pixels, examples.labels)
        rows += [
            {
                **facts,
                "id": i,
                "label": int(examples.labels[i]),
                "ivon_noise": float(noise.magnitude[i]),
                "ls_noise": same,
                "distance": float(distance[i]),
                "pixels": write_picture(examples.inputs[i : i + 1][0, 0]) if i in extremes else "",  # type: ignore[index]
            }
            for i in order
        ]
    return make_table(rows)


def draw(table: Table, out: Path) -> None:
    """The sorted noise on the left, pictures on the right: highest above, lowest below."""
    table = keep_first_seed(table)
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
        pictures = table["pixels"].tolist()
        extremes = [*reversed(pictures[-SHOWN:]), *pictures[:SHOWN]]
        for axis, text in zip(axes[:, 1:].flatten(), extremes, strict=False):
            picture(axis, read_picture(text))
        axes[0][1].set_ylabel("highest", loc="bottom")
        axes[2][1].set_ylabel("lowest", loc="bottom")


def _curve(axis: Any, table: Table) -> None:
    axis.semilogy(table["ivon_noise"].tolist(), color=COLOURS["IVON"], label="IVON")
    axis.semilogy(table["ls_noise"].tolist(), color=COLOURS["LS"], label=f"LS, α = {ALPHA}")
    axis.set(xlabel="example, by IVON's noise", ylabel="label noise ½‖ε‖₁")
    axis.set_title(f"{name_data(table)}, training set")
    axis.legend()


def claims(table: Table) -> list[Claim]:
    """IVON's noise differs between examples, and is high for those far from their own kind, whatever the seed."""
    found = [_find_facts(rows) for _, rows in table.groupby("seed")]
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


def _find_facts(rows: Table) -> dict[str, float]:
    """Of one seed: the extremes, and the distance in the tenths of the examples with the least noise and the most."""
    tenth = max(len(rows) // 10, 1)
    values, distances = (
        torch.tensor(rows[key].tolist(), dtype=torch.float32, device="cpu")
        for key in ("ivon_noise", "distance")
    )
    return {
        "least": rows["ivon_noise"].iloc[0],
        "most": rows["ivon_noise"].iloc[-1],
        "low": rows["distance"][:tenth].mean(),
        "high": rows["distance"][-tenth:].mean(),
        "correlation": rank_correlation(values, distances),
    }


SAYS = "IVON's noise differs by example; it is high for atypical or unclear examples and low for regular ones"

STUDY = Study(
    "mnist-noise",
    "fig: mnist_noise_distribution",
    "Label noise of every digit",
    "sorted noise of IVON and LS, the highest and lowest examples as pictures",
    lambda scale: list_ivon(scale, "mnist"),
    draw,
    claims,
    measure_digits,
)
