"""Not in the paper: every loss that it discusses, under SGD and under IVON, on one noisy set."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.lab.studies.methods import NOISES, Cell, ivon, recipe, sgd
from bayesmooth.lab.studies.rows import Table, column, distinct, format_percent, spread, where
from bayesmooth.lab.studies.scale import Scale, Task
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import COLOURS, MARKERS, PAGE, data_name, figure, legend_below
from bayesmooth.lab.studies.verdict import Claim, ahead

NOISE = "symmetric 40 %"
LOSSES: dict[str, Mapping[str, Any]] = {
    "cross-entropy": {"name": "ce"},
    "label smoothing, α = .1": {"name": "ls", "alpha": 0.1},
    "online (OLS)": {"name": "ols"},
    "ACLS": {"name": "acls"},
    "self-knowledge": {"name": "self_knowledge"},
    "ALASCA": {"name": "alasca"},
    "low-rank (LORAS)": {"name": "loras"},
    "for OOD (ALS), λ = .1": {"name": "als", "weight": 0.1},
    "confidence penalty": {"name": "confidence_penalty"},
    "forward correction*": {"name": "forward_correction"},
    "backward correction*": {"name": "backward_correction"},
}
"""At their authors' settings. * is told the true noise matrix."""
PANELS = {
    "accuracy": "accuracy (%) ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "memorised": "memorised (%) ↓",
}
PER_CENT = ("accuracy", "memorised")
NLLS = (2, 5, 10, 50)


def cells(scale: Scale) -> list[Cell]:
    """Losses × optimizers × seeds; self-knowledge needs a validation split, so all of them hold one back."""
    task = scale.task("cifar10", NOISE)
    held = {**task.data, "validation": task.data.get("validation") or 0.1}
    task = Task(**{**task.__dict__, "data": held})
    optimizers = {"SGD": sgd(task.ls_lr), "IVON": ivon(task)}
    return [
        Cell(
            {"noise": NOISE, "loss": loss, "method": method, "seed": seed},
            recipe(scale, task, NOISES[NOISE], _options(settings, task), optimizer, seed),
        )
        for seed in scale.seeds
        for loss, settings in LOSSES.items()
        for method, optimizer in optimizers.items()
    ]


def _options(settings: Mapping[str, Any], task: Task) -> Mapping[str, Any]:
    return {**settings, "stages": list(task.stages)} if settings["name"] == "alasca" else settings


def draw(table: Table, out: Path) -> None:
    """One panel per measure, one line per loss, SGD and IVON as two marks."""
    losses = distinct(table, "loss")
    with figure(out, 1, len(PANELS), width=PAGE, height=3.0, sharey=True) as (axes,):
        for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
            for method, shift in (("SGD", -0.12), ("IVON", 0.12)):
                _marks(axis, table, losses, method, key, shift)
            axis.set_xlabel(title)
            if key == "nll":  # the corrections can be far off
                axis.set_xscale("log")
                axis.set_xlim(left=0.8 * min(column(table, key)))
                axis.set_xticks(NLLS, [f"{tick:g}" for tick in NLLS], minor=False)
                axis.set_xticks([], minor=True)
            if key == "ece":
                axis.set_xlim(left=0)
        axes[0].set_yticks(range(len(losses)), losses)
        axes[0].invert_yaxis()
        axes[0].figure.suptitle(f"{data_name(table)}, {NOISE} noise", fontsize=8)
        legend_below(axes[0])


def _marks(axis: Any, table: Table, losses: list[str], method: str, key: str, shift: float) -> None:
    unit = 100 if key in PER_CENT else 1
    found = [column(where(table, loss=loss, method=method), key) for loss in losses]
    points = [(row + shift, values) for row, values in enumerate(found) if values]
    axis.errorbar(
        [unit * mean(values) for _, values in points],
        [row for row, _ in points],
        xerr=[unit * spread(values) for _, values in points],
        color=COLOURS[method],
        marker=MARKERS[method],
        linestyle="none",
        label=method,
    )


def claims(table: Table) -> list[Claim]:
    """IVON helps each loss."""
    pairs = {
        loss: (
            column(where(table, loss=loss, method="IVON")),
            column(where(table, loss=loss, method="SGD")),
        )
        for loss in distinct(table, "loss")
    }
    words = [
        f"{loss}: SGD {format_percent(sgd)}, IVON {format_percent(ours)}"
        for loss, (ours, sgd) in pairs.items()
    ]
    return [
        Claim(
            "(not in the paper) IVON is more accurate than SGD whatever the loss",
            "; ".join(words) or "nothing",
            ahead(list(pairs.values())),
        )
    ]


STUDY = Study(
    "strategies",
    "",
    "Losses × optimizers",
    "every loss of the paper × {SGD, IVON} on one noisy set: accuracy, NLL, ECE, memorised errors",
    cells,
    draw,
    claims,
)
