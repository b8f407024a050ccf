"""fig: ols_comparison: the mean smoothed label of a class, by IVON, LS and OLS."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesmooth.labelnoise import smoothed_labels_by_class
from bayesmooth.losses import OnlineLabelSmoothing
from reproduce.figures.noisy_examples import ALPHA, list_ivon, measure_noises
from reproduce.scale import Scale
from reproduce.study import Cell, Condition, Finished, Study
from reproduce.style import DATA_NAMES, PAGE, count_seeds, figure, legend_below, look
from reproduce.table import Claim, Table, format_mean, holds, make_table

TASKS = ("cifar10", "cifar100")
CLASSES = 10  # so many are drawn, as in the paper; all of them are judged
PANELS = 3
ALIKE = 0.5  # rank correlation


def cells(scale: Scale) -> list[Cell]:
    """IVON and OLS on clean labels, in turn; LS needs no run, its smoothed labels are known."""
    found = {}
    for task in TASKS:
        for ours in list_ivon(scale, task):
            loss = {"name": "ols", "alpha": 0.5}
            tree = Condition(scale, task, seed=ours.seed).load("ls", loss=loss)
            # both tasks, if they differ
            found[ours.recipe.hash] = ours, Cell(tree, "OLS", ours.seed)
    return [cell for pair in found.values() for cell in pair]


def measure_classes(finished: Finished) -> Table:
    """The mean smoothed label of each class: its mass on each other class, by all methods in the same way."""
    rows = []
    for ours, ols in zip(finished.cells[::2], finished.cells[1::2], strict=True):
        for facts, examples, noise in measure_noises(replace(finished, cells=[ours])):
            if (online := finished.runs.get(ols.recipe.hash)) is None:
                continue
            names, labels = examples.class_names, examples.labels.numbers
            ivon = smoothed_labels_by_class({"IVON": noise}, noise.logits, labels)["IVON"]
            loss = OnlineLabelSmoothing(len(names), **online.recipe.loss.options)
            loss.load_state_dict(online.checkpoint()["loss"])
            soft = loss.alpha * loss.soft  # α S_c, from the last epoch  (equ: ols noise)
            rows += [
                {**facts, "class": own, "other": other} | {"IVON": float(ivon[c, j]), "OLS": float(soft[c, j])}
                for c, own in enumerate(names)
                for j, other in enumerate(names)
                if c != j
            ]
    return make_table(rows)


def draw(table: Table, out: Path) -> None:
    """One row per data set, one panel for each of three given classes, on a log scale."""
    sets = list(table.groupby("data", sort=False))
    size = {"width": PAGE, "height": 1.9 * len(sets) + 0.3}
    with figure(out, len(sets), PANELS, sharey="row", **size) as axes:
        for row, (data, rows) in zip(axes, sets, strict=True):
            names = rows["class"].unique()
            draw_from = torch.Generator().manual_seed(0)
            order = torch.randperm(len(names), generator=draw_from, device="cpu")
            drawn = [names[i] for i in sorted(order[:CLASSES].tolist())]
            for axis, name in zip(row, drawn[3 : 3 + PANELS], strict=True):
                others = [other for other in drawn if other != name]
                _panel(axis, rows[rows["class"] == name], others, ALPHA / len(names))
                axis.set_title(f"{DATA_NAMES.get(data, data)}, given label: {name}")
            row[0].set_ylabel("smoothed label")
        legend_below(*axes.flatten(), title=count_seeds(table["seed"].unique()))


def _panel(axis: Any, rows: Table, others: list[str], same: float) -> None:
    axis.set_yscale("log")
    axis.errorbar(range(len(others)), [same] * len(others), **look("LS", f"LS, α = {ALPHA}"))
    for method in ("OLS", "IVON"):
        masses = rows.groupby("other")[method]
        means, bars = masses.mean().reindex(others), masses.std().fillna(0).reindex(others)
        there = (means > 0).to_numpy()
        axis.errorbar(
            there.nonzero()[0], means[there], [bars[there].clip(upper=0.9 * means[there]), bars[there]], **look(method)
        )
        if not there.all():  # a log scale has no place for them: open marks at the foot
            foot = axis.get_xaxis_transform()
            style = {**look(method, f"{method} ≤ 0"), "fillstyle": "none", "linestyle": "none"}
            axis.plot((~there).nonzero()[0], [0.03] * int((~there).sum()), transform=foot, **style)
    axis.set_xticks(range(len(others)), others, rotation=60, ha="right")


def claims(table: Table) -> list[Claim]:
    """The pattern is that of OLS, the noise stronger."""
    alike, stronger, ranks, masses = [], [], [], []
    for data, rows in table.groupby("data", sort=False):
        seeds = rows.groupby("seed", sort=False)[["IVON", "OLS"]]
        rank = seeds.apply(lambda one: one["IVON"].rank().corr(one["OLS"].rank())).tolist()
        mean = seeds.mean()
        alike += [value > ALIKE for value in rank]
        stronger += (mean["IVON"] > mean["OLS"]).tolist()
        many = f"{data}: rank correlation over {rows['class'].nunique()} classes"
        ranks.append(f"{many} {format_mean(rank, seeds=True)}")
        each = [f"{m} {format_mean(mean[m].tolist(), seeds=True)}" for m in ("IVON", "OLS")]
        masses.append(f"{data}: mean mass {', '.join(each)}")
    same = f"IVON's smoothed labels are distributed as those of OLS (we ask: rank correlation > {ALIKE})"
    return [
        Claim(says, "; ".join(words) or "nothing", holds(parts))
        for says, words, parts in (
            (same, ranks, alike),
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
    measures_noise=True,
)
