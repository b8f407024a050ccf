"""fig: ols_comparison: the mean smoothed label of a class, by IVON, LS and OLS."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmooth.labelnoise import smoothed_labels_by_class
from bayesmooth.losses import OnlineLabelSmoothing
from bayesmooth.train import Run
from reproduce.figures.noisy_examples import ALPHA, list_ivon, measure_noises
from reproduce.methods import Cell, Condition
from reproduce.rows import Row, Table, format_values, make_table, select
from reproduce.scale import Scale
from reproduce.study import Finished, Study
from reproduce.style import DATA_NAMES, PAGE, figure, legend_below, look
from reproduce.verdict import Claim, holds

TASKS = ("cifar10", "cifar100")
CLASSES = 10  # of CIFAR-100 so many are drawn, as in the paper
PANELS = 3
METHODS = ("LS", "OLS", "IVON")


def cells(scale: Scale) -> list[Cell]:
    """IVON and OLS on clean labels, in turn; LS needs no run, its smoothed labels are known."""
    found = {}
    for task in TASKS:
        for ours in list_ivon(scale, task):
            condition = Condition(scale, task, seed=ours.seed)
            loss = {"name": "ols", "alpha": 0.5}
            ols = Cell(condition.load("ls", loss=loss), "OLS", ours.seed)
            found[ours.recipe.hash] = (ours, ols)  # at smoke scale both tasks are the same
    return [cell for pair in found.values() for cell in pair]


def measure_classes(finished: Finished) -> Table:
    """The mean smoothed label of each class: its mass on each other class, by all methods in the same way."""
    rows: list[Row] = []
    for ours, ols in zip(finished.cells[::2], finished.cells[1::2], strict=True):
        for facts, examples, noise in measure_noises(replace(finished, cells=[ours])):
            if (online := finished.runs.get(ols.recipe.hash)) is None:
                continue
            known = smoothed_labels_by_class({"IVON": noise}, noise.logits, examples.labels.numbers)
            known["OLS"] = _read_soft_labels(online, examples.num_classes)
            known["LS"] = torch.full_like(known["IVON"], ALPHA / examples.num_classes)
            for method, mass in known.items():
                rows += _list_masses({**facts, "method": method}, mass, examples.class_names)
    return make_table(rows)


def _read_soft_labels(run: Run, classes: int) -> Tensor:
    """α S_c, from the soft labels of the last epoch  (equ: ols noise)."""
    loss = OnlineLabelSmoothing(classes, **run.recipe.loss.options)
    loss.load_state_dict(run.checkpoint()["loss"])
    return loss.alpha * loss.soft


def _list_masses(facts: Row, mass: Tensor, names: tuple[str, ...]) -> list[Row]:
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0), device="cpu")
    chosen = sorted(order[:CLASSES].tolist())
    return [
        {**facts, "class": names[c], "other": names[j], "mass": float(mass[c, j])}
        for c in chosen
        for j in chosen
        if c != j
    ]


def draw(table: Table, out: Path) -> None:
    """One row per data set, one panel for each of three given classes, on a log scale."""
    sets = list(table.groupby("data", sort=False))
    size = {"width": PAGE, "height": 1.9 * len(sets) + 0.3}
    with figure(out, len(sets), PANELS, sharey="row", **size) as axes:
        for row, (data, rows) in zip(axes, sets, strict=True):
            shown = rows["class"].unique()[3 : 3 + PANELS]
            for axis, name in zip(row, shown, strict=True):
                _panel(axis, rows[rows["class"] == name])
                axis.set_title(f"{DATA_NAMES.get(data, data)}, given label: {name}")
            row[0].set_ylabel("smoothed label")
        legend_below(axes[0][0])


def _panel(axis: Any, rows: Table) -> None:
    others = rows["other"].unique()
    axis.set_yscale("log")
    for method in METHODS:
        masses = select(rows, method=method).groupby("other")["mass"]
        means, bars = masses.mean().reindex(others), masses.std().fillna(0).reindex(others)
        there = (means > 0).to_numpy()
        axis.errorbar(
            there.nonzero()[0],
            means[there],
            [bars[there].clip(upper=0.9 * means[there]), bars[there]],
            **look(method, f"{method}, α = {ALPHA}" if method == "LS" else method),
        )
    axis.set_xticks(range(len(others)), others, rotation=60, ha="right")


def claims(table: Table) -> list[Claim]:
    """The pattern is that of OLS, the noise stronger."""
    alike, stronger = [], []
    ranks, masses = [], []
    for data, rows in table.groupby("data", sort=False):
        wide = rows.pivot(index=["seed", "class", "other"], columns="method", values="mass")
        seeds = wide.groupby(level="seed", sort=False)
        rank = seeds.apply(lambda one: one["IVON"].rank().corr(one["OLS"].rank())).tolist()
        mean = seeds.mean()
        alike += [value > 0.5 for value in rank]
        stronger += (mean["IVON"] > mean["OLS"]).tolist()
        ranks.append(f"{data}: rank correlation over {CLASSES} classes {format_values(rank)}")
        each = [f"{m} {format_values(mean[m].tolist(), '.2g')}" for m in METHODS]
        masses.append(f"{data}: mean mass {', '.join(each)}")
    return [
        Claim(says, "; ".join(words) or "nothing", holds(parts))
        for says, words, parts in (
            ("IVON's smoothed labels are distributed as those of OLS", ranks, alike),
            ("IVON tends to induce stronger noise than OLS", masses, stronger),
        )
    ]


STUDY = Study(
    "ols-comparison",
    "fig: ols_comparison",
    "Beside online label smoothing",
    "smoothed labels by class of IVON, LS and OLS, on a log scale, CIFAR-10 and CIFAR-100",
    cells,
    draw,
    claims,
    measure_classes,
)
