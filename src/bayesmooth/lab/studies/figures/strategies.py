"""Not in the paper: the losses that people compare under noisy labels, each with several optimizers.

At most scales it is every loss of the paper at its authors' setting, under SGD and IVON, on one noisy set. Where the
scale names kinds of noise (`compared`), it is the table of the methods for noisy labels: each with SGD, SAM and IVON,
settings chosen by noisy validation labels with one seed.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from bayesmooth.lab.studies.methods import (
    NOISES,
    Cell,
    Section,
    ivon,
    kappa_noise,
    recipe,
    sam,
    sgd,
)
from bayesmooth.lab.studies.rows import (
    Table,
    best,
    column,
    distinct,
    format_mean,
    format_percent,
    spread,
    where,
)
from bayesmooth.lab.studies.scale import Scale, Task
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import COLOURS, MARKERS, PAGE, data_name, figure, legend_below
from bayesmooth.lab.studies.verdict import Claim, ahead, holds

NOISE = "symmetric 40 %"
LOSSES: dict[str, Section] = {
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

CHOICES: dict[str, list[Section]] = {
    "cross-entropy": [{"name": "ce"}],
    "label smoothing": [{"name": "ls", "alpha": 0.1}, {"name": "ls", "alpha": 0.5}],
    "GCE": [{"name": "gce", "q": 0.7}, {"name": "gce", "q": 0.9}],
    "SCE": [{"name": "sce"}, {"name": "sce", "alpha": 6.0, "beta": 0.1}],
    "bootstrapping": [
        {"name": "bootstrapping", "form": "hard"},
        {"name": "bootstrapping", "form": "soft"},
    ],
    "ELR": [{"name": "elr"}, {"name": "elr", "weight": 7.0, "beta": 0.9}],
    "SOP": [{"name": "sop"}, {"name": "sop", "u_lr": 1.0}],
    "mixup": [{"name": "ce", "mixup": 0.4}, {"name": "ce", "mixup": 1.0}],
}
"""Their authors' settings for CIFAR-10 first. SAM takes these, and ρ is what is chosen for it."""
RHOS = (0.2, 0.3)
CLEAN, NATURAL = "clean", "natural noise"

Pair = tuple[str, str]
"""A loss and an optimizer."""

PANELS = {
    "accuracy": "accuracy (%) ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "memorised": "memorised (%) ↓",
}
PER_CENT = ("accuracy", "memorised")
NLLS = (2, 5, 10, 50)


def cells(scale: Scale) -> list[Cell]:
    """Whole figure with the first setting, then with the next; or the losses of the paper at one setting."""
    if scale.compared:
        found = [cell for seed in scale.seeds for cell in _compared(scale, seed)]
        return sorted(found, key=lambda cell: (cell.labels["seed"], cell.labels["strength"]))
    # Self-knowledge needs a validation split, so all of them hold one back.
    task = scale.task("cifar10", NOISE)
    task = replace(task, data={**task.data, "validation": task.data.get("validation") or 0.1})
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


def more(scale: Scale, table: Table) -> list[Cell]:
    """Further seeds of the settings that noisy validation labels chose."""
    chosen = {
        (n, loss, method, best(_rows(table, n, loss, method), "validation")[0])
        for n in (distinct(table, "noise") if scale.compared else [])
        for loss in distinct(table, "loss")
        for method in distinct(table, "method")
    }
    keys = ("noise", "loss", "method", "strength")
    found = [cell for seed in scale.more_seeds for cell in _compared(scale, seed)]
    return [cell for cell in found if tuple(cell.labels[key] for key in keys) in chosen]


def _compared(scale: Scale, seed: int) -> Iterator[Cell]:
    for called in scale.compared:
        task = scale.task("natural" if called == NATURAL else "cifar10", called)
        noise = NOISES.get("none" if called in (CLEAN, NATURAL) else called)
        if noise is None:
            _, noise = kappa_noise(float(called.removeprefix("κ = ")))
        for loss, choices in CHOICES.items():
            for method, rank, settings, optimizer in _pairs(task, choices):
                labels = {"noise": called, "loss": loss, "method": method, "strength": rank}
                options = {key: value for key, value in settings.items() if key != "mixup"}
                mixed = {key: settings[key] for key in settings if key == "mixup"}
                made = replace(task, data={**task.data, **mixed})
                yield Cell(
                    {**labels, "seed": seed}, recipe(scale, made, noise, options, optimizer, seed)
                )


def _pairs(task: Task, choices: list[Section]) -> Iterator[tuple[str, float, Section, Section]]:
    """(optimizer, rank of the setting, loss, settings of the optimizer)."""
    for rank, settings in enumerate(choices):
        yield "SGD", float(rank), settings, sgd(task.ls_lr)
        yield "IVON", float(rank), settings, ivon(task)
    for rank, rho in enumerate(RHOS):
        yield "SAM", float(rank), choices[0], sam(task, rho)


def _options(settings: Section, task: Task) -> Section:
    return {**settings, "stages": list(task.stages)} if settings["name"] == "alasca" else settings


def _rows(table: Table, noise: str, loss: str, method: str) -> Table:
    return where(table, noise=noise, loss=loss, method=method)


def measured(
    table: Table, noise: str, loss: str, method: str, key: str = "accuracy"
) -> list[float]:
    """A measure of a pair under a noise, one number per seed, at the setting that noisy validation labels chose."""
    rows = _rows(table, noise, loss, method)
    if distinct(rows, "strength"):
        rows = where(rows, strength=best(rows, "validation")[0])
    return column(rows, key)


def mean_accuracies(table: Table) -> dict[str, dict[Pair, float]]:
    """By noise, that of every pair which has been measured."""
    pairs = list(product(distinct(table, "loss"), distinct(table, "method")))
    return {
        noise: {pair: mean(found) for pair in pairs if (found := measured(table, noise, *pair))}
        for noise in distinct(table, "noise")
    }


def regrets(table: Table) -> dict[Pair, float]:
    """Mean distance of a pair to the most accurate pair of each noise, least first; of pairs that every noise has."""
    accuracies = list(mean_accuracies(table).values())
    common = [pair for pair in accuracies[0] if all(pair in each for each in accuracies)]
    found = {pair: mean(max(each.values()) - each[pair] for each in accuracies) for pair in common}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def summarise(table: Table) -> list[list[str]]:
    """One row per loss and optimizer, least regret first: accuracy by noise, then the means of the other measures."""
    noises = distinct(table, "noise")
    rows = [["loss", "optimizer", "mean regret", *noises, "NLL", "ECE", "memorised"]]
    for (loss, method), regret in regrets(table).items():
        values = [measured(table, noise, loss, method) for noise in noises]
        others = {
            key: [v for noise in noises for v in measured(table, noise, loss, method, key)]
            for key in ("nll", "ece", "memorised")
        }
        rows.append(
            [loss, method, f"{100 * regret:.1f}", *(format_mean(each, 100) for each in values)]
            + [f"{mean(others[key]):.2f}" for key in ("nll", "ece")]
            + [f"{100 * mean(others['memorised']):.0f} %" if others["memorised"] else "–"]
        )
    return rows


def draw(table: Table, out: Path) -> None:
    """One line per loss, one mark per optimizer; one panel per noise, or per measure where there is one noise."""
    losses, noises = distinct(table, "loss"), distinct(table, "noise")
    if len(noises) > 1:
        panels = [(noise, "accuracy", noise) for noise in noises]
    else:
        panels = [(noise, key, title) for noise in noises for key, title in PANELS.items()]
    with figure(out, 1, len(panels), width=PAGE, height=3.0, sharey=True) as (axes,):
        for axis, (noise, key, title) in zip(axes, panels, strict=True):
            methods = [m for m in ("SGD", "SAM", "IVON") if where(table, noise=noise, method=m)]
            for place, method in enumerate(methods):
                shift = 0.24 * (place - (len(methods) - 1) / 2)
                _marks(axis, table, losses, (noise, method, key), shift)
            axis.set_xlabel(title)
            if key == "nll":  # the corrections can be far off
                axis.set_xscale("log")
                axis.set_xlim(left=0.8 * min(column(table, key)))
                axis.set_xticks(NLLS, [f"{tick:g}" for tick in NLLS], minor=False)
                axis.set_xticks([], minor=True)
            if key == "ece":
                axis.set_xlim(left=0)
            if len(noises) > 1:
                _mark_winner(axis, mean_accuracies(table)[noise])
        axes[0].set_yticks(range(len(losses)), losses)
        axes[0].invert_yaxis()
        kind = f"{noises[0]} noise" if len(noises) == 1 else "test accuracy in %, line: the best"
        axes[0].figure.suptitle(f"{data_name(table)}, {kind}", fontsize=8)
        legend_below(axes[0])


def _marks(
    axis: Any, table: Table, losses: list[str], what: tuple[str, str, str], shift: float
) -> None:
    noise, method, key = what
    unit = 100 if key in PER_CENT else 1
    found = [measured(table, noise, loss, method, key) for loss in losses]
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


def _mark_winner(axis: Any, accuracies: dict[Pair, float]) -> None:
    """A line at the best accuracy, in the colour of the optimizer that has it."""
    winner = max(accuracies, key=lambda pair: accuracies[pair])
    axis.axvline(100 * accuracies[winner], color=COLOURS[winner[1]], linewidth=0.8, alpha=0.6)


def claims(table: Table) -> list[Claim]:
    """IVON helps each loss; and of a table with several noises, one with IVON has the least regret."""
    pairs = {
        (noise, loss): (measured(table, noise, loss, "IVON"), measured(table, noise, loss, "SGD"))
        for noise in distinct(table, "noise")
        for loss in distinct(table, "loss")
    }
    several = len(distinct(table, "noise")) > 1
    words = [
        f"{f'{noise}, ' if several else ''}{loss}: SGD {format_percent(sgd)}, IVON {format_percent(ours)}"
        for (noise, loss), (ours, sgd) in pairs.items()
    ]
    found = [
        Claim(
            "(not in the paper) IVON is more accurate than SGD whatever the loss",
            "; ".join(words) or "nothing",
            ahead(list(pairs.values())),
        )
    ]
    if several and (order := regrets(table)):
        least = [
            f"{loss} with {method}: {100 * value:.1f} points"
            for (loss, method), value in list(order.items())[:5]
        ]
        found.append(
            Claim(
                "(not in the paper) IVON, alone or with one of these losses, has the smallest mean regret",
                "; ".join(least),
                holds([next(iter(order))[1] == "IVON"]),
            )
        )
    return found


STUDY = Study(
    "strategies",
    "",
    "Losses × optimizers",
    "losses × {SGD, SAM, IVON} on noisy labels: accuracy, NLL, ECE, memorised errors",
    cells,
    draw,
    claims,
    more=more,
    summarise=summarise,
)
