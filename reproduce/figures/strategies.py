"""Not in the paper: every loss that it names, at its authors' setting, with SGD and with IVON on one noisy set."""

from pathlib import Path

from reproduce.methods import Cell, Condition, Section
from reproduce.rows import Table, format_mean
from reproduce.scale import Scale
from reproduce.study import Study
from reproduce.style import PAGE, count_seeds, figure, legend_below, look, name_data
from reproduce.verdict import Claim, ahead

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
"""* is told the true noise matrix."""
PANELS = {
    "accuracy": "accuracy (%) ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "memorised": "memorised (%) ↓",
}
SHIFTS = {"SGD": -0.12, "IVON": 0.12}


def cells(scale: Scale) -> list[Cell]:
    """All losses with one seed before the next."""
    found = []
    for seed in scale.seeds:
        condition = Condition(scale, "cifar10", NOISE, seed)
        # Self-knowledge needs a validation split, so all of them hold one back.
        held = condition.load("ls")["data"].get("validation") or 0.1
        for name, loss in LOSSES.items():
            own = {**loss, "stages": scale.stages} if name == "ALASCA" else loss
            for method, base in (("SGD", "ls"), ("IVON", "ivon")):
                tree = condition.load(base, loss=own, data={"validation": held})
                found.append(Cell(tree, method, seed, NOISE, name))
    return found


def draw(table: Table, out: Path) -> None:
    """One line per loss, one mark per optimizer, one panel per measure."""
    losses = table["loss"].unique().tolist()
    with figure(out, 1, len(PANELS), width=PAGE, height=3.0, sharey=True) as (axes,):
        for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
            unit = 100 if "%" in title else 1
            for method, shift in SHIFTS.items():
                values = unit * table[table["method"] == method].set_index("loss")[key].dropna()
                means, bars = (values.groupby("loss", sort=False).agg(f) for f in ("mean", "std"))
                spots = [losses.index(loss) + shift for loss in means.index]
                bars = bars if bars.notna().any() else None
                axis.errorbar(means, spots, xerr=bars, linestyle="none", **look(method))
            axis.set_xlabel(title)
            if key == "nll":  # the corrections can be far off
                ticks = [tick for tick in (2, 5, 10, 50) if tick < 1.5 * table[key].max()]
                axis.set_xscale("log")
                axis.set_xticks(ticks, map(str, ticks))
                axis.set_xticks([], minor=True)
        axes[0].set_yticks(range(len(losses)), losses)
        axes[0].invert_yaxis()
        axes[0].figure.suptitle(f"{name_data(table)}, {NOISE} noise", fontsize=8)
        legend_below(axes[0], title=count_seeds(table["seed"].unique()))


def claims(table: Table) -> list[Claim]:
    """IVON helps each loss."""
    pairs, words = [], []
    for loss, rows in table.groupby("loss", sort=False):
        ivon, sgd = (rows[rows["method"] == m]["accuracy"].tolist() for m in ("IVON", "SGD"))
        pairs.append((ivon, sgd))
        both = [format_mean(values, "%", seeds=True) for values in (sgd, ivon)]
        words.append(f"{loss}: SGD {both[0]}, IVON {both[1]}")
    says = "IVON is more accurate than SGD whatever the loss"
    return [Claim(says, "; ".join(words) or "nothing", ahead(pairs), own=True)]


STUDY = Study(
    "strategies",
    "",
    "Losses × optimizers",
    "losses × {SGD, IVON} on noisy labels: accuracy, NLL, ECE, memorised errors",
    cells,
    draw,
    claims,
)
