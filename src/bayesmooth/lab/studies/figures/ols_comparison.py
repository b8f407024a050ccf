"""fig: ols_comparison: the mean smoothed label of a class, by IVON, LS and OLS."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.noise_of import (
    ALPHA,
    ivon_cells,
    training_noises,
)
from bayesmooth.lab.studies.methods import NOISES, Cell, recipe, sgd
from bayesmooth.lab.studies.rows import Row, Table, column, distinct, format_values, spread, where
from bayesmooth.lab.studies.scale import Scale, Task
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import COLOURS, DATA, MARKERS, PAGE, figure, legend_below
from bayesmooth.lab.studies.verdict import Claim, holds
from bayesmooth.losses import OnlineLabelSmoothing
from bayesmooth.metrics import rank_correlation

SETS = ("cifar10", "cifar100")
CLASSES = 10  # of CIFAR-100 so many are drawn, as in the paper
PANELS = 3
METHODS = ("LS", "OLS", "IVON")


def cells(scale: Scale) -> list[Cell]:
    """IVON and OLS on clean labels, in turn; LS needs no run, its smoothed labels are known."""
    sets = {scale.task(name).data["name"]: name for name in SETS}
    return [
        cell
        for name in sets.values()
        for ours in ivon_cells(scale, name)
        for cell in (ours, _ols_cell(scale, scale.task(name), ours.labels))
    ]


def _ols_cell(scale: Scale, task: Task, labels: Mapping[str, Any]) -> Cell:
    loss, seed = {"name": "ols", "alpha": 0.5}, labels["seed"]
    made = recipe(scale, task, NOISES["none"], loss, sgd(task.ls_lr), seed)
    return Cell({"data": labels["data"], "method": "OLS", "seed": seed}, made)


def measure(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None, quiet: bool
) -> Table:
    """The mean smoothed label of each class: its mass on each other class, by all methods in the same way."""
    rows: Table = []
    for ours, ols in zip(cells[::2], cells[1::2], strict=True):
        for facts, examples, noise in training_noises([ours], runs, data_dir, quiet):
            if (online := runs.get(ols.recipe.hash)) is None:
                continue
            classes = range(examples.num_classes)
            masses = {
                "IVON": _class_means(noise.smoothed, examples),
                "OLS": _online(online, examples.num_classes),
                "LS": torch.full((len(classes),) * 2, ALPHA / len(classes)),
            }
            for method, mass in masses.items():
                rows += _rows({**facts, "method": method}, mass, examples.class_names)
    return rows


def _class_means(smoothed: Tensor, examples: Examples) -> Tensor:
    """The mean of y − ε over the examples of a class."""
    sums = torch.zeros(examples.num_classes, examples.num_classes)
    sums.index_add_(0, examples.labels, smoothed)
    return sums / examples.labels.bincount(minlength=examples.num_classes).clamp_min(1)[:, None]


def _online(run: Run, classes: int) -> Tensor:
    """α S_c, from the soft labels of the last epoch  (equ: ols noise)."""
    loss = OnlineLabelSmoothing(classes, **run.recipe.loss.options)
    loss.load_state_dict(run.checkpoint()["loss"])
    return loss.alpha * loss.soft


def _rows(facts: Row, mass: Tensor, names: tuple[str, ...]) -> list[Row]:
    chosen = (
        torch.randperm(len(names), generator=torch.Generator().manual_seed(0))[:CLASSES]
        .sort()
        .values.tolist()
    )
    return [
        {**facts, "class": names[c], "other": names[j], "mass": float(mass[c, j])}
        for c in chosen
        for j in chosen
        if c != j
    ]


def draw(table: Table, out: Path) -> None:
    """One row per data set, one panel for each of three given classes, on a log scale."""
    sets = distinct(table, "data")
    with figure(
        out, len(sets), PANELS, width=PAGE, height=1.9 * len(sets) + 0.3, sharey="row"
    ) as axes:
        for row, data in zip(axes, sets, strict=True):
            rows = where(table, data=data)
            for axis, name in zip(row, distinct(rows, "class")[3 : 3 + PANELS], strict=True):
                _panel(axis, where(rows, **{"class": name}))
                axis.set_title(f"{DATA.get(data, data)}, given label: {name}")
            row[0].set_ylabel("smoothed label")
        legend_below(axes[0][0])


def _panel(axis: Any, rows: Table) -> None:
    others = distinct(rows, "other")
    axis.set_yscale("log")
    for method in METHODS:
        masses = [column(where(rows, method=method, other=other), "mass") for other in others]
        points = [(i, mean(m), spread(m)) for i, m in enumerate(masses) if mean(m) > 0]
        axis.errorbar(
            [i for i, _, _ in points],
            [centre for _, centre, _ in points],
            [[min(bar, 0.9 * centre) for _, centre, bar in points], [bar for _, _, bar in points]],
            color=COLOURS[method],
            marker=MARKERS[method],
            label=f"{method}, α = {ALPHA}" if method == "LS" else method,
        )
    axis.set_xticks(range(len(others)), others, rotation=60, ha="right")


def claims(table: Table) -> list[Claim]:
    """The pattern is that of OLS, the noise stronger."""
    ranks: dict[str, list[float]] = {}
    means: dict[str, dict[str, list[float]]] = {}
    for data in distinct(table, "data"):
        for seed in distinct(where(table, data=data), "seed"):
            masses = {
                m: column(where(table, data=data, seed=seed, method=m), "mass") for m in METHODS
            }
            rank = rank_correlation(torch.tensor(masses["IVON"]), torch.tensor(masses["OLS"]))
            ranks.setdefault(data, []).append(rank)
            for method, values in masses.items():
                means.setdefault(data, {}).setdefault(method, []).append(mean(values))
    words = [
        f"{data}: mean mass " + ", ".join(f"{m} {format_values(v, '.2g')}" for m, v in of.items())
        for data, of in means.items()
    ]
    shown = f"over {CLASSES} classes"
    return [
        Claim(
            "IVON's smoothed labels are distributed as those of OLS",
            "; ".join(f"{d}: rank correlation {shown} {format_values(r)}" for d, r in ranks.items())
            or "nothing",
            holds([rank > 0.5 for each in ranks.values() for rank in each]),
        ),
        Claim(
            "IVON tends to induce stronger noise than OLS",
            "; ".join(words) or "nothing",
            holds(
                [i > o for of in means.values() for i, o in zip(of["IVON"], of["OLS"], strict=True)]
            ),
        ),
    ]


STUDY = Study(
    "ols-comparison",
    "fig: ols_comparison",
    "Beside online label smoothing",
    "smoothed labels by class of IVON, LS and OLS, on a log scale, CIFAR-10 and CIFAR-100",
    cells,
    draw,
    claims,
    measure,
)
