"""IVON against LS over α and SAM over ρ, under four kinds of noise.

fig:cifar10_inc_acc (noise that differs by class), fig:cifar10_all and fig:cifar100_all (flipped labels), and
fig: clothing1m_all (labels that people or web pages got wrong).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from reproduce.methods import (
    EARLY,
    GRIDS,
    IVON_GRID,
    KAPPA,
    NATURAL,
    NOISES,
    Cell,
    compare_methods,
)
from reproduce.rows import (
    Table,
    find_best,
    format_mean,
    format_shares,
    list_noises,
    list_values,
    select,
)
from reproduce.scale import Scale
from reproduce.study import Study
from reproduce.style import PAGE, figure, legend_below, level, line, name_data
from reproduce.verdict import Claim, Pair, Verdict, ahead, comparable, gain, holds

BASELINES = {"LS": ("α", "smoothing rate α"), "SAM": ("ρ", "radius ρ")}
WAYS = {"accuracy": "best on test", "validation": "chosen on noisy validation"}
SENSITIVE = 0.05  # accuracy that a wrong ρ costs, to call SAM sensitive
PAIRFLIP, HARD = "pairflip 20 %", KAPPA.format(0.4)
FLIPS = ("symmetric 20 %", "symmetric 40 %", PAIRFLIP)
OVER_KAPPA = {"IVON": "IVON", "LS": "LS (best α)", "SAM": "SAM (best ρ)", EARLY: EARLY}


def draw_panels(table: Table, out: Path) -> None:
    """LS above, SAM below, one column per noise; IVON is the line across, its gain over the best written below."""
    noises = list_noises(table)
    size = {"width": max(PAGE * len(noises) / 3, 3.35), "height": 4.2}
    with figure(out, 2, len(noises), sharey="col", **size) as axes:
        for row, (method, (_, name)) in zip(axes, BASELINES.items(), strict=True):
            for axis, noise in zip(row, noises, strict=True):
                _panel(axis, table, noise, method)
                axis.set_xlabel(name)
            row[0].set_ylabel("test accuracy (%)")
        for axis, noise in zip(axes[0], noises, strict=True):
            axis.set_title(f"{name_data(table)}, {noise}")
        legend_below(axes[0][0], axes[1][0])


def _panel(axis: Any, table: Table, noise: str, method: str) -> None:
    """The strengths are spaced evenly, each with its tick: the interesting ones lie close together."""
    ours, others = accuracies(table, noise, "IVON"), accuracies(table, noise, method)
    grid = list(select(table, noise=noise, method=method).groupby("strength")["accuracy"])
    level(axis, "IVON", ours)
    level(axis, EARLY, accuracies(table, noise, EARLY))
    line(axis, method, list(enumerate(values for _, values in grid)))
    axis.set_xticks(range(len(grid)), [f"{strength:g}" for strength, _ in grid])
    axis.margins(y=0.2)  # room for the words
    if ours and others:
        points = 100 * (mean(ours) - mean(others))
        words = f"IVON − best {method}: {points:+.1f}".replace("-", "−")
        axis.annotate(words, (0.03, 0.04), xycoords="axes fraction", fontsize=7)


def summarise(table: Table) -> list[list[str]]:
    """One row per noise: every method, LS and SAM at their best on test and as validation chose."""
    head = ["data", "noise", "SGD", EARLY]
    for method, (symbol, _) in BASELINES.items():
        head += [f"{method}, best {symbol}", f"{method}, {symbol} by validation"]
    rows = [[*head, "IVON", "IVON at its mean", "IVON, h₀ by validation"]]
    for noise in list_noises(table):
        values = [list_values(table, noise=noise, method="LS", strength=0)]
        values += [accuracies(table, noise, EARLY)]
        values += [accuracies(table, noise, method, by) for method in BASELINES for by in WAYS]
        values += [
            list_values(table, key, noise=noise, method="IVON") for key in ("accuracy", "at_mean")
        ]
        values += [accuracies(table, noise, IVON_GRID, "validation")]
        rows.append([name_data(table), noise, *(format_mean(each, 100) for each in values)])
    return rows


def accuracies(table: Table, noise: str, method: str, by: str = "accuracy") -> list[float]:
    """The accuracies of a method under a noise, at the strength that is best by the column `by` if it has one."""
    rows = select(table, noise=noise, method=method)
    return find_best(rows, by)[1] if method in GRIDS else list_values(rows)


def judge_ahead(table: Table) -> list[Claim]:
    """IVON beats LS and SAM at their best on every noise; best on test as in the paper, then by noisy validation."""
    found = []
    for by, how in WAYS.items():
        for method, (symbol, _) in BASELINES.items():
            says = f"IVON outperforms {method} on every noise ({symbol} {how})"
            found.append(judge_pairs(table, method, says, by=by))
    if EARLY in table["method"].values:
        says = "(not in the paper) IVON outperforms SGD stopped early by noisy validation"
        found.append(judge_pairs(table, EARLY, says))
    return found


def judge_pairs(
    table: Table,
    method: str,
    says: str,
    judge: Callable[[Sequence[Pair]], Verdict] = ahead,
    by: str = "accuracy",
) -> Claim:
    """What is said of IVON and another method, beside both accuracies under every noise."""
    pairs, words = pair_with_ivon(table, method, by), []
    for noise, (ours, others) in zip(list_noises(table), pairs, strict=True):
        measured = format_shares(others) if others else "not measured"
        if method in BASELINES and others:
            strength, _ = find_best(select(table, noise=noise, method=method), by)
            measured += f" at {BASELINES[method][0]} = {strength:g}"
        words.append(f"{noise}: IVON {format_shares(ours)}, {method} {measured}")
    return Claim(says, "; ".join(words), judge(pairs))


def pair_with_ivon(table: Table, method: str, by: str = "accuracy") -> list[Pair]:
    """The accuracies of IVON and of another method, noise by noise."""
    return [
        (accuracies(table, noise, "IVON"), accuracies(table, noise, method, by))
        for noise in list_noises(table)
    ]


def judge_ahead_or_level(table: Table) -> list[Claim]:
    """IVON beats LS, is comparable to SAM at its peak, and SAM depends on ρ."""
    peak = judge_pairs(table, "SAM", "IVON is comparable with SAM at its best ρ", comparable)
    costs = find_costs(select(table, method="SAM"))
    sensitive = Claim(
        "SAM is sensitive to ρ",
        f"from the best to the worst ρ: {describe_costs(costs)}",
        holds([mean(cost) >= SENSITIVE for cost in costs.values()]),
    )
    return [*judge_ahead(table), peak, sensitive]


def find_costs(table: Table) -> dict[str, list[float]]:
    """By noise: what the worst strength costs against the best, one number per seed."""
    found = {}
    for noise, rows in table.groupby("noise", sort=False):
        grid = rows.pivot(index="seed", columns="strength", values="accuracy")
        order = [at for _, at in sorted((x, at) for at, x in grid.mean().round(9).items())]
        costs = (grid[order[-1]] - grid[order[0]]).dropna().tolist()
        if len(order) > 1 and costs:
            found[noise] = costs
    return found


def describe_costs(costs: dict[str, list[float]]) -> str:
    """One noise after another."""
    parts = [f"{noise}: {format_shares(cost, 'points')}" for noise, cost in costs.items()]
    return "; ".join(parts) or "nothing"


def make_comparison(
    name: str,
    figure: str,
    title: str,
    shows: str = "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
    *,
    task: str,
    noises: Callable[[Scale], Sequence[str]],
    draw: Callable[[Table, Path], None] = draw_panels,
    claims: Callable[[Table], list[Claim]] = judge_ahead_or_level,
) -> Study:
    """A study of all methods: whole grids, then more seeds at each strength that the grids chose."""

    def cells(scale: Scale) -> list[Cell]:
        grids = compare_methods(scale, task, noises(scale), scale.seeds)
        single = compare_methods(scale, task, noises(scale), scale.more_seeds)
        return [*grids, *(cell for cell in single if cell.method not in GRIDS)]

    def more(scale: Scale, table: Table) -> list[Cell]:
        # SGD always: early stopping has trained these runs already.
        chosen = {(noise, "LS", 0.0) for noise in list_noises(table)}
        for (noise, method), rows in table.groupby(["noise", "method"]):
            if method in GRIDS:
                chosen |= {(noise, method, find_best(rows, by)[0]) for by in WAYS}
        again = compare_methods(scale, task, noises(scale), scale.more_seeds)
        return [cell for cell in again if (cell.noise, cell.method, cell.strength) in chosen]

    return Study(name, figure, title, shows, cells, draw, claims, more=more, summarise=summarise)


def draw_over_kappa(table: Table, out: Path) -> None:
    """Accuracy over κ."""
    kappas = {noise: NOISES[noise]["kappa"] for noise in list_noises(table)}
    with figure(out, height=2.9) as ((axis,),):
        for method, name in OVER_KAPPA.items():
            points = [(at, accuracies(table, noise, method)) for noise, at in kappas.items()]
            line(axis, method, points, name)
        axis.set(xlabel="noise κ (class $i$: κ + .05 $i$)", ylabel="test accuracy (%)")
        axis.set_title(f"{name_data(table)}, data-dependent noise")
        axis.set_xticks(list(kappas.values()))
        legend_below(axis)


def judge_gain(table: Table, noise: str, method: str, claimed: float, says: str = "") -> Claim:
    """A gain over the best of a method that the paper gives as a number."""
    says = says or f"{noise}: IVON is {100 * claimed:.1f} points above the best {method}"
    ours, others = accuracies(table, noise, "IVON"), accuracies(table, noise, method)
    measured = f"IVON {format_shares(ours)}, {method} {format_shares(others)}"
    return Claim(says, measured, gain((ours, others), claimed))


def judge_over_kappa(table: Table) -> list[Claim]:
    """All noise levels, and the extreme one."""
    says = "κ = .4: IVON is about 50 points above the best LS"
    return [*judge_ahead(table), judge_gain(table, HARD, "LS", 0.5, says)]


def judge_cifar100(table: Table) -> list[Claim]:
    """Those of CIFAR-10, and two numbers."""
    gains = {"LS": 0.091, "SAM": 0.133}
    return [
        *judge_ahead_or_level(table),
        *(judge_gain(table, PAIRFLIP, method, claimed) for method, claimed in gains.items()),
    ]


DATA_DEPENDENT = make_comparison(
    "data-dependent",
    "fig:cifar10_inc_acc",
    "Noise that differs by class",
    "accuracy of IVON, the best LS and the best SAM over κ = .1 … .5",
    task="cifar10",
    noises=lambda scale: [KAPPA.format(kappa) for kappa in scale.kappas],
    draw=draw_over_kappa,
    claims=judge_over_kappa,
)
CIFAR10_NOISY = make_comparison(
    "cifar10-noisy",
    "fig:cifar10_all",
    "Flipped labels on CIFAR-10",
    task="cifar10",
    noises=lambda scale: FLIPS,
)
CIFAR100_NOISY = make_comparison(
    "cifar100-noisy",
    "fig:cifar100_all",
    "Flipped labels on CIFAR-100",
    task="cifar100",
    noises=lambda scale: FLIPS,
    claims=judge_cifar100,
)
NATURAL_NOISE = make_comparison(
    "natural-noise",
    "fig: clothing1m_all",
    "Natural label noise",
    "the same on Clothing1M (full scale) or one annotator's labels of CIFAR-10N (laptop)",
    task="natural",
    noises=lambda scale: [NATURAL],
)
