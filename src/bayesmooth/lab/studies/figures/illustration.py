"""fig:illustration: a regular and an atypical 6, and the label noise that LS and variational learning give them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from bayesmooth.lab.studies.style import COLOURS, figure, picture
from bayesmooth.lab.studies.verdict import Claim, holds

DIGIT = 6
KINDS = ("regular", "atypical")


def measure(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None, quiet: bool
) -> Table:
    """The 6 that is nearest to its own kind and the one that is farthest: |ε| by class, for both methods."""
    rows: Table = []
    for facts, examples, noise in training_noises(cells, runs, data_dir, quiet):
        sixes = (examples.labels == DIGIT).nonzero().flatten()
        pixels = examples.inputs[sixes].float().flatten(1)
        distance = own_kind_distance(pixels, examples.labels[sixes])
        same = smoothing_noise(examples.num_classes, DIGIT)
        for kind, place in zip(KINDS, (distance.argmin(), distance.argmax()), strict=True):
            at = int(sixes[place])
            text = picture_text(examples.inputs[at : at + 1][0, 0])  # type: ignore[index]
            for method, noises in (("LS", same), ("IVON", noise.expected[at])):
                own = {**facts, "kind": kind, "id": at, "method": method}
                rows += [
                    {
                        **own,
                        "label": label,
                        "noise_size": abs(value),
                        "pixels": "" if label else text,
                    }
                    for label, value in enumerate(noises.tolist())
                ]
    return rows


def draw(table: Table, out: Path) -> None:
    """The picture, then its noise by class as bars."""
    table = first_seed(table)
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
    """LS the same, variational more for the atypical one, whatever the seed."""
    sums = {
        (method, kind): [
            sum(column(where(table, method=method, kind=kind, seed=seed), "noise_size")) / 2
            for seed in distinct(table, "seed")
        ]
        for method in distinct(table, "method")
        for kind in KINDS
    }
    if not sums:
        return [Claim(SAYS, "nothing", "not run")]
    words = [
        f"{method}, {kind}: {format_values(values, '.4f')}"
        for (method, kind), values in sums.items()
    ]
    same = sums["LS", "regular"] == sums["LS", "atypical"]
    pairs = zip(sums["IVON", "atypical"], sums["IVON", "regular"], strict=True)
    parts = [same, *(atypical > regular for atypical, regular in pairs)]
    return [Claim(SAYS, f"½‖ε‖₁ {'; '.join(words)}", holds(parts))]


SAYS = "LS gives a regular and an atypical 6 the same noise, variational learning gives the atypical one more"

STUDY = Study(
    "illustration",
    "fig:illustration",
    "Two sixes",
    "a regular and an atypical 6: label noise of LS (the same) and of variational learning (different)",
    lambda scale: ivon_cells(scale, "mnist"),
    draw,
    claims,
    measure,
)
