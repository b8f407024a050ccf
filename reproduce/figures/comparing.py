"""IVON against LS over α and SAM over ρ, under four kinds of noise.

fig:cifar10_inc_acc (noise that differs by class), fig:cifar10_all and fig:cifar100_all (flipped labels), and
fig: clothing1m_all (labels that people or web pages got wrong).

Noisy validation labels choose IVON's h₀ and whether it predicts at the mean or averages; at the scales without a
validation split, h₀ is the paper's and predictions are averaged. The paper chooses α and ρ on the test set, so its
sentences are judged that way; our own claims choose them as IVON's h₀.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from reproduce.scale import NATURAL, Scale
from reproduce.study import FIXED_IVON, GRIDS, KAPPA, NOISES, TUNED_IVON, Cell, Study, compare_methods
from reproduce.style import PAGE, count_seeds, figure, legend_below, level, line, name_data
from reproduce.table import EARLY, Choice, Claim, Pair, Table, Verdict, ahead, choose, comparable, format_mean, holds

BASELINES = {"LS": "smoothing rate α", "SAM": "radius ρ"}
SYMBOLS = {"LS": "α", "SAM": "ρ", "IVON": "h₀"}
PREDICTIONS = {"accuracy": "averaged", "at_mean": "at its mean"}
SENSITIVE = 0.05  # accuracy that a wrong ρ costs, to call SAM sensitive
COLLAPSED = 0.2  # "around 10 %": the paper's own figure has up to 18 % there
PAIRFLIP, HARD, HARDEST = "pairflip 20 %", KAPPA.format(0.4), KAPPA.format(0.5)
OVER_KAPPA = {"IVON": "IVON", "LS": "LS (best α)", "SAM": "SAM (best ρ)", EARLY: EARLY}
Judge = Callable[[Sequence[Pair]], Verdict]


def pick(table: Table, noise: str, method: str, by: str = "accuracy") -> Choice:
    """A method under a noise: LS and SAM at the strength that is best by the column `by`, IVON by validation."""
    rows = table[table["noise"] == noise]
    if method == "IVON":
        tuned = rows[rows["method"] == TUNED_IVON]
        rows = tuned if len(tuned) else rows[rows["method"] == FIXED_IVON]
        chosen = choose(rows)
        return chosen if chosen.values else choose(rows, "accuracy")
    return choose(rows[rows["method"] == method], by)


def describe(method: str, chosen: Choice) -> str:
    """`IVON 62.1 ± 0.6 % (3 seeds) at h₀ = 0.1, averaged`."""
    if not chosen.values:
        return f"{method} not measured"
    words = f"{method} {format_mean(chosen.values, '%', seeds=True)}"
    if chosen.strength == chosen.strength:
        words += f" at {SYMBOLS[method]} = {chosen.strength:g}{' (end of the grid)' * chosen.edge}"
    return words + (f", {PREDICTIONS[chosen.prediction]}" if method == "IVON" else "")


def judge(
    table: Table, says: str, method: str, verdict: Judge = ahead, *, by: str = "accuracy", own: bool = False
) -> Claim:
    """What is said of IVON and another method, beside both accuracies under every noise."""
    pairs, words = [], []
    for noise in table["noise"].dropna().unique():
        ours, others = pick(table, noise, "IVON"), pick(table, noise, method, by)
        pairs.append((ours.values, others.values))
        words.append(f"{noise}: {describe('IVON', ours)}, {describe(method, others)}")
    return Claim(says, "; ".join(words) or "nothing", verdict(pairs), own)


def judge_best(table: Table, methods: Sequence[str], where: str = "") -> list[Claim]:
    """IVON beats these methods at their best on test, as the paper says."""
    return [judge(table, f"IVON outperforms {m} at its best {SYMBOLS[m]} on every noise{where}", m) for m in methods]


def judge_own(table: Table) -> list[Claim]:
    """The same where noisy validation labels choose for all methods, as a user would."""
    found = []
    if table["validation"].notna().any():
        for method, symbol in (("LS", ", α"), ("SAM", ", ρ"), ("SGD", " stopped")):
            says = f"IVON outperforms {method}{symbol} by noisy validation"
            other = EARLY if method == "SGD" else method
            if other in table["method"].values:
                found.append(judge(table, says, other, by="validation", own=True))
    return found


def judge_like_sam(table: Table, where: str = "") -> list[Claim]:
    """IVON is comparable with SAM at its peak, and SAM depends on ρ."""
    level = f"IVON is comparable with SAM at its best ρ{where} (we allow: 1 point behind)"
    costs = find_costs(table[table["method"] == "SAM"])
    return [
        judge(table, level, "SAM", comparable),
        Claim(
            f"SAM is sensitive to ρ{where} (we ask: the worst costs 5 points)",
            f"from the best to the worst ρ: {describe_costs(costs)}",
            holds([mean(cost) >= SENSITIVE for cost in costs.values()]),
        ),
    ]


def find_costs(table: Table) -> dict[str, list[float]]:
    """By noise: what the worst strength costs against the best, one number per seed."""
    found = {}
    for noise, rows in table.groupby("noise", sort=False):
        grid = rows.pivot(index="seed", columns="strength", values="accuracy")
        means = grid.mean().round(9)
        costs = (grid[means.idxmax()] - grid[means.idxmin()]).dropna().tolist()
        if len(means) > 1 and costs:
            found[noise] = costs
    return found


def describe_costs(costs: dict[str, list[float]]) -> str:
    """One noise after another."""
    parts = [f"{n}: {format_mean(cost, 'points', seeds=True)}" for n, cost in costs.items()]
    return "; ".join(parts) or "nothing"


def draw_panels(table: Table, out: Path) -> None:
    """LS above, SAM below, one column per noise; IVON is the line across, its gain over the best in the title."""
    noises = table["noise"].dropna().unique()
    size = {"width": max(PAGE * len(noises) / 3, 3.35), "height": 4.4}
    with figure(out, 2, len(noises), sharey="col", **size) as axes:
        for row, (method, name) in zip(axes, BASELINES.items(), strict=True):
            for axis, noise in zip(row, noises, strict=True):
                gain = _panel(axis, table, noise, method)
                head = f"{name_data(table)}, {noise}\n" if method == "LS" else ""
                axis.set_title(f"{head}{gain}")
                axis.set_xlabel(name)
            row[0].set_ylabel("test accuracy (%)")
        places = table.groupby(["noise", "method", "strength"], dropna=False)["accuracy"]
        seeds = count_seeds(*(values for _, values in places))
        legend_below(axes[0][0], axes[1][0], title=seeds)


def _panel(axis: Any, table: Table, noise: str, method: str) -> str:
    """The strengths are spaced evenly, each with its tick: the interesting ones lie close together."""
    ours, others = pick(table, noise, "IVON").values, pick(table, noise, method).values
    rows = table[(table["noise"] == noise) & (table["method"] == method)]
    grid = list(rows.groupby("strength")["accuracy"])
    level(axis, "IVON", ours)
    level(axis, EARLY, pick(table, noise, EARLY).values)
    line(axis, method, list(enumerate(values for _, values in grid)))
    axis.set_xticks(range(len(grid)), [f"{strength:g}" for strength, _ in grid])
    if not ours or not others:
        return ""
    return f"IVON − best {method}: {100 * (mean(ours) - mean(others)):+.1f}".replace("-", "−")


def draw_over_kappa(table: Table, out: Path) -> None:
    """Accuracy over κ."""
    kappas = {noise: NOISES[noise]["kappa"] for noise in table["noise"].dropna().unique()}
    with figure(out, height=2.9) as ((axis,),):
        shown = []
        for place, (method, name) in enumerate(OVER_KAPPA.items()):
            aside = 0.004 * (place - 1.5)  # so that marks do not hide each other
            points = [(at + aside, pick(table, n, method).values) for n, at in kappas.items()]
            shown += [values for _, values in points]
            line(axis, method, points, name)
        axis.set(xlabel="noise κ (class $i$: κ + .05 $i$)", ylabel="test accuracy (%)")
        axis.set_title(f"{name_data(table)}, data-dependent noise")
        axis.set_xticks(list(kappas.values()))
        legend_below(axis, title=count_seeds(*shown))


def summarise(table: Table) -> list[list[str]]:
    """One row per noise: every method, LS and SAM at their best on test and as validation chose."""
    head = ["data", "noise", "SGD", EARLY, "LS, best α", "LS, α by validation", "SAM, best ρ"]
    rows = [[*head, "SAM, ρ by validation", "IVON", "h₀, prediction", "IVON, h₀ of the recipe"]]
    for noise in table["noise"].dropna().unique():
        own = table[table["noise"] == noise]
        plain = own[(own["method"] == "LS") & (own["strength"] == 0)]["accuracy"]
        ours, early = pick(table, noise, "IVON"), pick(table, noise, EARLY)
        others = [pick(table, noise, m, by) for m in BASELINES for by in ("accuracy", "validation")]
        fixed = choose(own[own["method"] == FIXED_IVON], "accuracy")
        values = [plain.tolist(), *(each.values for each in (early, *others, ours, fixed))]
        *cells, last = (format_mean(each, "%").removesuffix(" %") for each in values)
        strength = "the recipe's" if ours.strength != ours.strength else f"{ours.strength:g}"
        what = f"{strength}, {PREDICTIONS[ours.prediction]}"
        rows.append([name_data(table), noise, *cells, what, last])
    return rows


def make_comparison(
    name: str,
    figure: str,
    title: str,
    *,
    task: str,
    noises: Callable[[Scale], Sequence[str]],
    claims: Callable[[Table], list[Claim]],
    draw: Callable[[Table, Path], None] = draw_panels,
    shows: str = "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
) -> Study:
    """A study of all methods: whole grids, then more seeds at each strength that the grids chose."""

    def cells(scale: Scale) -> list[Cell]:
        grids = compare_methods(scale, task, noises(scale), scale.seeds)
        single = compare_methods(scale, task, noises(scale), scale.more_seeds)
        return [*grids, *(cell for cell in single if cell.method not in GRIDS)]

    def more(scale: Scale, table: Table) -> list[Cell]:
        # SGD always: early stopping has trained these runs already.
        chosen = {(noise, m, 0.0) for noise in table["noise"].unique() for m in BASELINES}
        for (noise, method), rows in table.groupby(["noise", "method"]):
            chosen |= {(noise, method, choose(rows, by).strength) for by in ("accuracy", "validation")}
        again = compare_methods(scale, task, noises(scale), scale.more_seeds)
        return [cell for cell in again if (cell.noise, cell.method, cell.strength) in chosen]

    return Study(name, figure, title, shows, cells, draw, claims, more=more, summarise=summarise)


def judge_kappas(table: Table) -> list[Claim]:
    """All noise levels; the extreme ones, which only IVON can learn."""
    points = "κ = .4: IVON is about 50 points above the best LS (we ask: half of it)"
    extreme = [noise for noise in (HARD, HARDEST) if noise in table["noise"].values]
    found = {(noise, m): pick(table, noise, m) for noise in extreme for m in BASELINES}
    return [
        *judge_best(table, ("LS", "SAM")),
        judge(table[table["noise"] == HARD], points, "LS", partial(ahead, gain=0.5)),
        Claim(
            "κ = .4 and .5: LS and SAM only reach around 10 % (we ask: at most 20 %)",
            "; ".join(f"{noise}: {describe(m, best)}" for (noise, m), best in found.items()) or "–",
            holds([mean(each.values) <= COLLAPSED for each in found.values() if each.values]),
        ),
        *judge_own(table),
    ]


def judge_flips(table: Table) -> list[Claim]:
    """IVON beats both, is comparable with SAM at its peak, and SAM depends on ρ."""
    return [*judge_best(table, ("LS", "SAM")), *judge_like_sam(table), *judge_own(table)]


def judge_cifar100(table: Table) -> list[Claim]:
    """Those of CIFAR-10, and two numbers."""
    found, pairs = judge_flips(table), table[table["noise"] == PAIRFLIP]
    for method, gain in {"LS": 0.091, "SAM": 0.133}.items():
        points = f"{100 * gain:.1f} points above the best {method} (we ask: half of it)"
        says = f"{PAIRFLIP}: IVON is {points}"
        found.append(judge(pairs, says, method, partial(ahead, gain=gain)))
    return found


def judge_natural(table: Table) -> list[Claim]:
    """On Clothing1M the paper says no more than comparable to SAM."""
    stands_in = not table["data"].str.contains("clothing1m").any()
    where = "; CIFAR-10N stands in for Clothing1M" if stands_in else ""
    return [*judge_best(table, ("LS",), where), *judge_like_sam(table, where), *judge_own(table)]


DATA_DEPENDENT = make_comparison(
    "data-dependent",
    "fig:cifar10_inc_acc",
    "Noise that differs by class",
    shows="accuracy of IVON, the best LS and the best SAM over κ = .1 … .5",
    task="cifar10",
    noises=lambda scale: [KAPPA.format(kappa) for kappa in scale.kappas],
    draw=draw_over_kappa,
    claims=judge_kappas,
)
CIFAR10_NOISY = make_comparison(
    "cifar10-noisy",
    "fig:cifar10_all",
    "Flipped labels on CIFAR-10",
    task="cifar10",
    noises=lambda scale: scale.flips,
    claims=judge_flips,
)
CIFAR100_NOISY = make_comparison(
    "cifar100-noisy",
    "fig:cifar100_all",
    "Flipped labels on CIFAR-100",
    task="cifar100",
    noises=lambda scale: scale.flips,
    claims=judge_cifar100,
)
NATURAL_NOISE = make_comparison(
    "natural-noise",
    "fig: clothing1m_all",
    "Natural label noise",
    shows="the same on Clothing1M (full scale) or one annotator's labels of CIFAR-10N (elsewhere)",
    task="natural",
    noises=lambda scale: [NATURAL],
    claims=judge_natural,
)
