"""Not in the paper: the losses that people compare under noisy labels, each with several optimizers.

At most scales it is every loss of the paper at its authors' setting, under SGD and IVON, on one noisy set. Where the
scale names kinds of noise (`compared`), it is the table of the methods for noisy labels: each with SGD, SAM and IVON,
settings chosen by noisy validation labels with one seed, and two more seeds for the chosen ones.
"""

from collections.abc import Iterator
from pathlib import Path

from reproduce.methods import NATURAL, PLAIN, Cell, Condition, Section
from reproduce.rows import (
    Table,
    find_best,
    format_mean,
    format_shares,
    list_noises,
    list_values,
    select,
)
from reproduce.scale import Changes, Scale
from reproduce.study import Study
from reproduce.style import COLOURS, PAGE, figure, legend_below, look, name_data
from reproduce.verdict import Claim, ahead, holds

NOISE = "symmetric 40 %"
PAPER_LOSSES: dict[str, Section] = {
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

SETTINGS: dict[str, list[Changes]] = {
    "cross-entropy": [{"loss": PLAIN}],
    "label smoothing": [{"loss": {"name": "ls", "alpha": alpha}} for alpha in (0.1, 0.5)],
    "GCE": [{"loss": {"name": "gce", "q": q}} for q in (0.7, 0.9)],
    "SCE": [{"loss": {"name": "sce"}}, {"loss": {"name": "sce", "alpha": 6.0, "beta": 0.1}}],
    "bootstrapping": [{"loss": {"name": "bootstrapping", "form": f}} for f in ("hard", "soft")],
    "ELR": [{"loss": {"name": "elr"}}, {"loss": {"name": "elr", "weight": 7.0, "beta": 0.9}}],
    "SOP": [{"loss": {"name": "sop"}}, {"loss": {"name": "sop", "u_lr": 1.0}}],
    "mixup": [{"data": {"mixup": alpha}} for alpha in (0.4, 1.0)],
}
"""Their authors' settings for CIFAR-10 first. SAM takes these, and ρ is what is chosen for it."""
RHOS = (0.2, 0.3, 0.5)

PANELS = {
    "accuracy": "accuracy (%) ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "memorised": "memorised (%) ↓",
}
PER_CENT = ("accuracy", "memorised")
NLLS = (2, 5, 10, 50)
PLACE = ["noise", "loss", "method"]


def cells(scale: Scale) -> list[Cell]:
    """The whole figure with the first setting, then with the next; or the losses of the paper at one setting."""
    found = [cell for seed in scale.seeds for cell in _list_compared(scale, seed)]
    if found:
        return sorted(found, key=_order)
    for seed in scale.seeds:
        condition = Condition(scale, "cifar10", NOISE, seed)
        # Self-knowledge needs a validation split, so all of them hold one back.
        held = condition.sgd()["data"].get("validation") or 0.1
        for name, loss in PAPER_LOSSES.items():
            own = {**loss, "stages": scale.stages} if name == "ALASCA" else loss
            for method, base in (("SGD", "ls"), ("IVON", "ivon")):
                tree = condition.load(base, loss=own, data={"validation": held})
                found.append(Cell(tree, method, seed, NOISE, name))
    return found


def _order(cell: Cell) -> tuple[float, ...]:
    """One seed and one setting after the other; SAM takes twice the time, and most of it comes last."""
    late = cell.method == "SAM" and cell.loss != "cross-entropy"
    return cell.seed, cell.strength or 0.0, late


def more(scale: Scale, table: Table) -> list[Cell]:
    """Further seeds of every pair, at the settings that noisy validation labels chose with the first ones."""
    if not scale.compared:
        return []
    keys = [*PLACE, "strength"]
    rows = keep_chosen(table[table["seed"].isin(scale.seeds)])
    chosen = set(rows[keys].itertuples(index=False, name=None))
    found = [cell for seed in scale.more_seeds for cell in _list_compared(scale, seed)]
    return [cell for cell in found if tuple(cell.labels[key] for key in keys) in chosen]


def _list_compared(scale: Scale, seed: int) -> Iterator[Cell]:
    """Every noise, loss, optimizer and setting; the strength of a cell is the rank of its setting."""
    for noise in scale.compared:
        task = "natural" if noise == NATURAL else "cifar10"
        condition = Condition(scale, task, noise, seed)
        for loss, choices in SETTINGS.items():
            first, radii = choices[0], [{"optimizer": {"rho": rho}} for rho in RHOS]
            trees = {
                "SGD": [condition.load("ls", **{"loss": PLAIN, **setting}) for setting in choices],
                "IVON": [condition.load("ivon", **setting) for setting in choices],
                "SAM": [condition.load("sam", **first, **radius) for radius in radii],
            }
            for method, ranked in trees.items():
                for rank, tree in enumerate(ranked):
                    yield Cell(tree, method, seed, noise, loss, float(rank))


def keep_chosen(table: Table) -> Table:
    """Of each loss and optimizer under a noise, the rows at the setting that noisy validation labels chose."""
    if "strength" not in table:
        return table
    kept = []
    for _, rows in table.groupby(PLACE, sort=False):
        strength, _ = find_best(rows, "validation")
        kept += list(rows.index[rows["strength"].isna() | (rows["strength"] == strength)])
    return table.loc[kept]


def find_means(table: Table) -> Table:
    """Mean accuracy, one row per loss and optimizer, one column per noise."""
    return keep_chosen(table).pivot_table(
        index=["loss", "method"], columns="noise", values="accuracy", sort=False
    )


def find_regrets(table: Table) -> Table:
    """Mean distance to the most accurate pair of each noise, least first; of pairs that every noise has."""
    means = find_means(table)
    return (means.max() - means).dropna().mean(axis=1).sort_values(kind="stable")


def summarise(table: Table) -> list[list[str]]:
    """One row per loss and optimizer, least regret first: accuracy by noise, then the means of the other measures."""
    chosen, noises = keep_chosen(table), list_noises(table)
    rows = [["loss", "optimizer", "mean regret", *noises, "NLL", "ECE", "memorised"]]
    for (loss, method), regret in find_regrets(table).items():
        own = select(chosen, loss=loss, method=method)
        values = [list_values(own, noise=noise) for noise in noises]
        memorised = own["memorised"].mean()
        rows.append(
            [loss, method, f"{100 * regret:.1f}", *(format_mean(each, 100) for each in values)]
            + [f"{own[key].mean():.2f}" for key in ("nll", "ece")]
            + [f"{100 * memorised:.0f} %" if memorised == memorised else "–"]
        )
    return rows


def draw(table: Table, out: Path) -> None:
    """One line per loss, one mark per optimizer; one panel per noise, or per measure where there is one noise."""
    table, means = keep_chosen(table), find_means(table)
    losses, noises = table["loss"].unique().tolist(), list_noises(table)
    if len(noises) > 1:
        panels = [(noise, "accuracy", noise) for noise in noises]
    else:
        panels = [(noise, key, title) for noise in noises for key, title in PANELS.items()]
    with figure(out, 1, len(panels), width=PAGE, height=3.0, sharey=True) as (axes,):
        for axis, (noise, key, title) in zip(axes, panels, strict=True):
            rows = select(table, noise=noise)
            methods = [m for m in ("SGD", "SAM", "IVON") if m in rows["method"].values]
            for place, method in enumerate(methods):
                shift = 0.24 * (place - (len(methods) - 1) / 2)
                own = select(rows, method=method).dropna(subset=[key])
                values, unit = own.groupby("loss", sort=False)[key], 100 if key in PER_CENT else 1
                centres, bars = unit * values.mean(), unit * values.std().fillna(0)
                spots = [losses.index(loss) + shift for loss in centres.index]
                axis.errorbar(centres, spots, xerr=bars, linestyle="none", **look(method))
            axis.set_xlabel(title)
            if key == "nll":  # the corrections can be far off
                axis.set_xscale("log")
                axis.set_xlim(left=0.8 * table[key].min())
                axis.set_xticks(NLLS, [f"{tick:g}" for tick in NLLS], minor=False)
                axis.set_xticks([], minor=True)
            if key == "ece":
                axis.set_xlim(left=0)
            if len(noises) > 1:  # a line at the best accuracy, in the colour of its optimizer
                _, winner = means[noise].idxmax()
                how = {"color": COLOURS[winner], "linewidth": 0.8, "alpha": 0.6}
                axis.axvline(100 * means[noise].max(), **how)
        axes[0].set_yticks(range(len(losses)), losses)
        axes[0].invert_yaxis()
        kind = f"{noises[0]} noise" if len(noises) == 1 else "test accuracy in %, line: the best"
        axes[0].figure.suptitle(f"{name_data(table)}, {kind}", fontsize=8)
        legend_below(axes[0])


def claims(table: Table) -> list[Claim]:
    """IVON helps each loss; and of a table with several noises, one with IVON has the least regret."""
    several = len(list_noises(table)) > 1
    pairs, words = [], []
    for (noise, loss), rows in keep_chosen(table).groupby(["noise", "loss"], sort=False):
        ivon, sgd = (list_values(rows, method=method) for method in ("IVON", "SGD"))
        pairs.append((ivon, sgd))
        where = f"{noise}, {loss}" if several else loss
        words.append(f"{where}: SGD {format_shares(sgd)}, IVON {format_shares(ivon)}")
    says = "(not in the paper) IVON is more accurate than SGD whatever the loss"
    found = [Claim(says, "; ".join(words) or "nothing", ahead(pairs))]
    if several and len(order := find_regrets(table)):
        least = [
            f"{loss} with {method}: {100 * value:.1f} points"
            for (loss, method), value in order.head(5).items()
        ]
        says = "(not in the paper) IVON, alone or with one of these losses, has the smallest mean regret"
        found.append(Claim(says, "; ".join(least), holds([order.index[0][1] == "IVON"])))
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
