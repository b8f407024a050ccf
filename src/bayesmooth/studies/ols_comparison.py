"""fig: ols_comparison: the mean smoothed label of a class, by IVON, LS and OLS."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.labelnoise import label_noise
from bayesmooth.losses import OnlineLabelSmoothing
from bayesmooth.studies.methods import NOISES, Cell, recipe, sgd
from bayesmooth.studies.noise_of import ivon_cell, smoothing_noise
from bayesmooth.studies.scale import Scale
from bayesmooth.studies.study import Study
from bayesmooth.studies.style import COLOURS, DATA, MARKERS, PAGE, figure, legend_below
from bayesmooth.studies.table import Row, Table, column, distinct, where
from bayesmooth.studies.verdict import Claim, holds
from bayesmooth.training import Run

SETS = ("cifar10", "cifar100")
CLASSES = 10  # of CIFAR-100 so many are drawn, as in the paper
PANELS = 3
METHODS = ("LS", "OLS", "IVON")


def cells(scale: Scale) -> list[Cell]:
    """IVON and OLS on clean labels; LS needs no run, its smoothed labels are known."""
    return [cell for name in SETS for cell in (ivon_cell(scale, name), _ols_cell(scale, name))]


def _ols_cell(scale: Scale, name: str) -> Cell:
    task, seed = scale.task(name), scale.seeds[0]
    labels = {"data": name, "method": "OLS", "seed": seed}
    loss = {"name": "ols", "alpha": 0.5}
    return Cell(labels, recipe(scale, task, NOISES["none"], loss, sgd(task.ls_lr), seed))


def measure(cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None) -> Table:
    """Off-class mass by (given class, other class): what each method adds to the labels."""
    rows: Table = []
    for ours, ols in zip(cells[::2], cells[1::2], strict=True):
        if ours.recipe.hash not in runs or ols.recipe.hash not in runs:
            continue
        run, data = runs[ours.recipe.hash], ols.labels["data"]
        examples = run.examples("train", data_dir)
        masses = {
            "IVON": _variational(run, examples, ours.labels["samples"]),
            "OLS": _online(runs[ols.recipe.hash], examples.num_classes),
            "LS": torch.stack(
                [smoothing_noise(examples.num_classes, c) for c in range(examples.num_classes)]
            ),
        }
        for method, mass in masses.items():
            rows += _rows(data, method, mass, examples.class_names)
    return rows


def _variational(run: Run, examples: Examples, samples: int) -> Tensor:
    """The mean of |ε| over the examples of a class."""
    noise = label_noise(run.model(), run.posterior(), examples, samples=samples, quiet=True)
    sums = torch.zeros(examples.num_classes, examples.num_classes)
    sums.index_add_(0, examples.labels, noise.expected.abs())
    return sums / examples.labels.bincount(minlength=examples.num_classes).clamp_min(1)[:, None]


def _online(run: Run, classes: int) -> Tensor:
    """α S_c, from the soft labels of the last epoch  (equ: ols noise)."""
    loss = OnlineLabelSmoothing(classes, **run.recipe.loss.options)
    loss.load_state_dict(run.checkpoint()["loss"])
    return loss.alpha * loss.soft


def _rows(data: str, method: str, mass: Tensor, names: tuple[str, ...]) -> list[Row]:
    chosen = (
        torch.randperm(len(names), generator=torch.Generator().manual_seed(0))[:CLASSES]
        .sort()
        .values.tolist()
    )
    return [
        {
            "data": data,
            "method": method,
            "class": names[c],
            "other": names[j],
            "mass": float(mass[c, j]),
        }
        for c in chosen
        for j in chosen
        if c != j
    ]


def draw(table: Table, out: Path) -> None:
    """A row a data set, a panel for each of three given classes, on a log scale."""
    sets = distinct(table, "data")
    with figure(
        out, len(sets), PANELS, width=PAGE, height=1.9 * len(sets) + 0.3, sharey="row"
    ) as axes:
        for row, data in zip(axes, sets, strict=True):
            rows = where(table, data=data)
            for axis, name in zip(row, distinct(rows, "class")[3 : 3 + PANELS], strict=True):
                _panel(axis, where(rows, **{"class": name}))
                axis.set_title(f"{DATA.get(data, data)}, given label: {name}")
            row[0].set_ylabel("mass on other class")
        legend_below(axes[0][0])


def _panel(axis: Any, rows: Table) -> None:
    others = distinct(rows, "other")
    for method in METHODS:
        values = [max(value, 1e-8) for value in column(where(rows, method=method), "mass")]
        axis.semilogy(values, color=COLOURS[method], marker=MARKERS[method], label=method)
    axis.set_xticks(range(len(others)), others, rotation=60, ha="right")


def claims(table: Table) -> list[Claim]:
    """The pattern is that of OLS, the noise stronger."""
    sets = distinct(table, "data")
    masses = {(d, m): column(where(table, data=d, method=m), "mass") for d in sets for m in METHODS}
    ranks = [rank_correlation(masses[d, "IVON"], masses[d, "OLS"]) for d in sets]
    means = {key: mean(values) for key, values in masses.items()}
    return [
        Claim(
            "IVON's smoothed labels are distributed as those of OLS",
            "; ".join(f"{d}: rank correlation {r:.2f}" for d, r in zip(sets, ranks, strict=True)),
            holds([r > 0.5 for r in ranks]),
        ),
        Claim(
            "IVON tends to induce stronger noise than OLS",
            "; ".join(
                f"{d}: mean mass " + ", ".join(f"{m} {means[d, m]:.2g}" for m in METHODS)
                for d in sets
            ),
            holds([means[d, "IVON"] > means[d, "OLS"] for d in sets]),
        ),
    ]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks.

    >>> rank_correlation([1, 2, 3, 4], [10, 20, 30, 35]), rank_correlation([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    ranks = torch.tensor([a, b], dtype=torch.float64).argsort(1).argsort(1).double()
    return round(float(torch.corrcoef(ranks)[0, 1]), 6)


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
