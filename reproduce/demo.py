"""Not in the paper: its comparison in a minute, on the digits that scikit-learn carries, with 30 % wrong labels."""

from pathlib import Path

from bayesmooth.train import Recipe
from reproduce.study import Cell, Finished, Scale, Study
from reproduce.style import COLOURS, PAGE, figure, legend_below
from reproduce.table import EARLY, Claim, Row, Table, ahead, format_mean, make_table, read_final

RECIPES = {
    "SGD": ["digits-ce"],
    EARLY: ["digits-ce"],
    "label smoothing, α = 0.1": ["digits-ls", "loss.alpha=0.1"],
    "LS": ["digits-ls"],
    "SAM": ["digits-sam"],
    "IVON": ["digits-ivon"],
}
"""Method → the shipped recipe, and what is changed in it. LS, SAM and IVON were tuned on noisy validation labels."""
AT_MEAN = "IVON, at its mean"
NAMES = {"SGD": "SGD, to the end", "LS": "label smoothing, tuned α", "SAM": "SAM, tuned ρ", "IVON": "IVON, averaged"}
"""What a reader calls the methods that are drawn by epoch."""
EPOCHS = {"accuracy": "accuracy on clean test digits (%)", "memorised": "wrong labels learned by heart (%)"}
BETTER = {"accuracy": ("is more accurate", 1, "%"), "nll": ("has a lower NLL", -1, "")}
"""How a claim says that a figure is better, its sign (−1: less is better) and its unit."""


def list_demo(scale: Scale) -> list[Cell]:
    """All methods have their first seed before any has its second; the smoke scale trains two epochs."""
    short = ["train.epochs=2"] if scale.name == "smoke" else []
    return [
        Cell(recipe=Recipe.load(name, [*changes, *short, f"train.seed={seed}"]), method=method, seed=seed)
        for seed in scale.seeds
        for method, (name, *changes) in RECIPES.items()
    ]


def measure_demo(finished: Finished) -> Table:
    """The final figures of every method, then those of every epoch."""
    rows, at_mean, epochs = list[Row](), list[Row](), list[Row]()
    for cell, run in finished.runs:
        method, hash = cell.method, cell.recipe.hash
        loss, optimizer = cell.recipe.loss.options, cell.recipe.optimizer.options
        strength = loss.get("alpha", optimizer.get("rho"))
        facts = {"strength": strength, "data": cell.recipe.data.name, **cell.labels}
        rows.append({**facts, **read_final(run, early=method == EARLY), "hash": hash})
        if method == "IVON":
            at_mean.append({**rows[-1], "method": AT_MEAN, **read_final(run, averaged=False)})
        if method in NAMES:
            epochs += [
                {**cell.labels, "epoch": record["epoch"]}
                | {"accuracy": record["test.accuracy"], "memorised": record["memorised"]}
                for record in run.metrics()
                if "test.accuracy" in record
            ]
    return make_table([*rows, *at_mean, *epochs])


def draw_demo(table: Table, out: Path) -> None:
    """Accuracy and memorised labels by epoch, the mean over seeds."""
    epochs = table.dropna(subset=["epoch"])
    with figure(out, 1, 2, width=PAGE, height=2.6) as (axes,):
        for axis, (key, title) in zip(axes, EPOCHS.items(), strict=True):
            for method, rows in epochs.groupby("method", sort=False):
                shares = 100 * rows.groupby("epoch")[key].mean()
                name = AT_MEAN if method == "IVON" else name_method(table, method)
                axis.plot(shares.index, shares, color=COLOURS[method], label=name)
            axis.set(xlabel="epoch", title=title)
            axis.margins(x=0)
        legend_below(axes[:1], [epochs["seed"].unique()], bars=False)


def name_method(table: Table, method: str) -> str:
    """As a reader knows it, with its strength."""
    strengths = table[table["method"] == method]["strength"].dropna()
    return NAMES.get(method, method) + "".join(f" = {at:g}" for at in strengths[:1] if method in NAMES)


def summarise_demo(table: Table) -> list[list[str]]:
    """One row per method: mean ± standard deviation over seeds; IVON averaged and at its mean."""
    rows = [["method", "accuracy", "memorised", "NLL", "ECE"]]
    for method, own in table[table["epoch"].isna()].groupby("method", sort=False):
        shares = [format_mean(own[key].dropna(), "%") for key in ("accuracy", "memorised")]
        losses = [format_mean(own[key].dropna()) for key in ("nll", "ece")]
        rows.append([name_method(table, method), *shares, *losses])
    return rows


def judge_demo(table: Table) -> list[Claim]:
    """IVON, averaged or at its mean as noisy validation chose, against the others in accuracy and likelihood."""
    final, found = table[table["epoch"].isna()], []
    values = dict(list(final.groupby("method")))
    empty, validation = final[:0], {m: rows["validation"].sum() for m, rows in values.items()}
    chosen = max(("IVON", AT_MEAN), key=lambda method: validation.get(method, 0.0))
    for other in (EARLY, "LS", "SAM"):
        names = [name_method(table, method) for method in (chosen, other)]
        for key, (is_better, sign, unit) in BETTER.items():
            ours, theirs = (values.get(m, empty)[key].dropna().tolist() for m in (chosen, other))
            says = f"{names[0]}, {is_better} than {names[1]}"
            measured = [format_mean(each, unit, seeds=True) for each in (ours, theirs)]
            verdict = ahead([(ours, theirs)], sign=sign)
            found.append(Claim(says, " against ".join(measured), verdict, own=True))
    return found


DEMO = Study("demo", list_demo, draw_demo, judge_demo, measure_demo, summarise=summarise_demo)
