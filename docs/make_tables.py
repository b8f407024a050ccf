"""Fill the tables of README and docs/ from results/: `python docs/make_tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `TABLES` says which function makes it. `--check`
writes nothing and fails if a page differs from the results. Benchmarks print theirs by the same functions.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
Lines = list[list[str]]  # the cells of a table; the first line is its head

NAMES = {
    "news_annotators": "news, labelled by people",
    "hate_one_rater": "tweets, one rater's label",
    "hausa_distant": "Hausa news, labelled by rules",
    "yoruba_distant": "Yoruba news, labelled by rules",
    "cifar10n": "CIFAR-10N, one person",
    "cifar10n worse": "CIFAR-10N, the worst of three people",
    "cifar10n random2": "CIFAR-10N, a second person",
    "cifar10n random3": "CIFAR-10N, a third person",
    "cifar100n": "CIFAR-100N, single people",
    "cifar10h": "CIFAR-10H, one of fifty people",
    "banking_similar": "banking intents, moved to the most similar",
    "ap": "average precision",
    "at_errors": "precision among the first N, N errors",
    "at_100": "precision among the first 100",
    "recall": "recall of what is reported",
    "precision": "precision of what is reported",
}
REAL, MADE, CLEAN, OURS = "real errors", "made errors", "nothing wrong", "bayesmooth"


# --- reading and writing ---------------------------------------------------------------------------------------------


def read_records(name: str) -> pd.DataFrame:
    """The lines of a JSONL file."""
    return pd.read_json(RESULTS / name, lines=True, precise_float=True)


def read_markdown(name: str, number: int = 0) -> Lines:
    """One of the tables of a text file, its head first."""
    tables = [part for part in (RESULTS / name).read_text("utf-8").split("\n\n") if part.startswith("|")]
    head, _, *rows = [re.split(r" *\| *", line)[1:-1] for line in tables[number].splitlines()]
    return [head, *([NAMES.get(row[0], row[0]), *row[1:]] for row in rows)]


def format_table(lines: Lines) -> str:
    """A table in Markdown."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_score(value: float) -> str:
    """Three digits, as `.829`."""
    return f"{value:.3f}".removeprefix("0")


def embolden(cells: Iterable[str], best: Callable[[Iterable[float]], float] = max) -> list[str]:
    """The cells with the best number in bold; a number ends at its first blank."""
    cells = list(cells)
    numbers = {cell: float(found[0]) for cell in cells if (found := re.match(r"[\d.]+", cell))}
    top = best(numbers.values())
    return [f"**{cell}**" if numbers.get(cell) == top else cell for cell in cells]


def embolden_rows(lines: Lines, first: int = 1, best: Callable[[Iterable[float]], float] = max) -> Lines:
    """The best cell of every row in bold, from a column on."""
    return [lines[0], *([*row[:first], *embolden(row[first:], best)] for row in lines[1:])]


def list_lines(table: pd.DataFrame) -> Lines:
    """The head and the rows of a table of words."""
    return [list(table), *table.to_numpy().tolist()]


# --- the audit -------------------------------------------------------------------------------------------------------


def compare_methods(records: pd.DataFrame, kind: str, figure: str = "ap") -> Lines:
    """One line per data set with the figure of every method, and the mean at the end."""
    records = records.query("kind == @kind")
    methods = list(records["method"].unique())
    table = records.pivot(index="data", columns="method", values=figure)[methods]
    lines = [["data", "wrong", *methods]]
    for fact in records.drop_duplicates("data").itertuples():
        title = f"{NAMES.get(fact.data, fact.data)} ({fact.examples:,})"
        lines.append([title, f"{100 * fact.wrong:.0f} %", *map(format_score, table.loc[fact.data])])
    lines.append([f"mean of {len(table)}", "", *map(format_score, table.mean())])
    return embolden_rows(lines, 2, min if figure == "flagged" else max)


def show_readers() -> Lines:
    """The rows and columns of the README."""
    head, *rows = compare_methods(read_records("audit.jsonl"), REAL)
    table = pd.DataFrame(rows, columns=head)[["data", "wrong", OURS, "cleanlab, tuned", "AUM"]]
    first = ("news", "tweets", "CIFAR-10N, a second", "Hausa", "mean")
    return list_lines(table[table["data"].str.startswith(first)])


def average_figures(records: pd.DataFrame) -> Lines:
    """The mean of every figure over the data sets of a kind."""
    lines: Lines = []
    for kind in records["kind"][records["kind"] != CLEAN].unique():
        for figure in ("at_errors", "at_100", "recall", "precision"):
            *_, means = table = compare_methods(records, kind, figure)
            lines = lines or [["errors", "mean of", *table[0][2:]]]
            lines.append([kind.removesuffix(" errors"), NAMES[figure], *means[2:]])
    return lines


def compare_rates() -> Lines:
    """How many labels are wrong, and how many the audit says, in %, where nobody made them wrong on purpose."""
    lines = [["data", "wrong", "at least", "contradicted"]]
    records = read_records("audit.jsonl").query("method == @OURS and kind != @MADE").set_index("data")
    for data, shares in records[["wrong", "at_least", "flagged"]].iterrows():
        lines.append([NAMES.get(data, data), *(f"{100 * share:.1f}" for share in shares)])
    return lines


def show_reviews(records: pd.DataFrame) -> Lines:
    """What a review of so many labels tells and teaches, on average over the data sets."""
    head = "reviewed, interval covers (least), its width, plain sample, AP before, taught"
    lines = [[*head.split(", "), "better, worse"]]
    for budget, rows in records.groupby("budget"):
        gains = rows["ap_taught"] - rows["ap_before"]
        sides = f"{(gains > 0.002).sum()}, {(gains < -0.002).sum()} of {len(rows)}"
        scores = rows[["width", "plain_width", "ap_before", "ap_taught"]].mean()
        covered = rows["covered"]
        share = f"{format_score(covered.mean())} ({format_score(covered.min())})"
        lines.append([str(budget), share, *map(format_score, scores), sides])
    return lines


def show_found(records: pd.DataFrame) -> Lines:
    """How many wrong labels each way of looking at so many finds, on average over the data sets."""
    lines = [["looked at", "cleanlab's ranking", "ours", "ours, learned anew", "the queue"]]
    keys = ["found_cleanlab", "found_today", "found_taught", "in_queue"]
    for budget, rows in records.groupby("budget"):
        lines.append([str(budget), *(f"{count:.1f}" for count in rows[keys].mean())])
    return lines


def show_reliability() -> Lines:
    """Of the labels with this chance to be wrong, how many are: before a review, and after 100 decisions."""
    lines = [["chance", "told before", "wrong", "told after", "wrong"]]
    rows = read_records("review.jsonl").query("budget == 100")
    for k, title in enumerate((".0 to .2", ".2 to .4", ".4 to .6", ".6 to .8", ".8 to 1")):
        cells: list[str] = []
        for key in ("reliability_before", "reliability"):
            bins = pd.DataFrame([row[k] for row in rows[key]], columns=["count", "told", "wrong"])
            cells += map(format_score, bins.query("count > 0")[["told", "wrong"]].mean())
        lines.append([title, *cells])
    return lines


# --- training --------------------------------------------------------------------------------------------------------


def compare_training(records: pd.DataFrame) -> Lines:
    """Each method: means, and the distance to the peer that held-out labels choose, where all peers have run."""
    # what chose: accuracy less a tenth of NLL, on held-out labels
    score = records["validation"] - 0.1 * records["validation_nll"]
    figures = records.assign(score=score).pivot(index=["cell", "seed"], columns="method")
    head = ("", "wrong labels", "clean labels", "NLL", "to the best peer", "clean", "behind by over 2", "worst cell")
    lines, peers = [list(head)], ["AdamW", "SGD", "LS", "SAM"]
    for method in records["method"].unique() if set(peers) <= set(records["method"]) else ():
        own = figures.dropna(subset=[("accuracy", name) for name in (method, *peers)])
        best = own["score"][peers].idxmax(axis=1)
        accuracy = own["accuracy"]
        ahead = accuracy[method] - [accuracy.loc[cell, peer] for cell, peer in best.items()]
        cells = pd.DataFrame({"accuracy": accuracy[method], "ahead": ahead}).groupby("cell").mean()
        clean = cells.index.str.contains("· clean ·")
        means = [f"{cells['accuracy'][kind].mean():.1f}" for kind in (~clean, clean)]
        leads = [cells["ahead"][kind] for kind in (~clean, clean)]
        ahead_by = [f"{lead.mean():+.1f} ± {lead.sem():.1f}" for lead in leads]
        behind = f"{(cells['ahead'] < -2).sum()} of {len(cells)}"
        nll = f"{mean(own['nll'][method]):.2f}"
        lines.append([method, *means, nll, *ahead_by, behind, f"{cells['ahead'].min():+.1f}"])
    return lines


def compare_linear(records: pd.DataFrame) -> Lines:
    """Linear models on the rows of numbers of the test pool: accuracy and NLL."""
    means = records.groupby(["cell", "method"], sort=False)[["accuracy", "nll"]].mean().unstack()
    lines = [["", "bayesmooth", "logistic regression, C by cross-validation"]]
    for name, row in [*means.iterrows(), ("mean", means.mean())]:
        each = [(row["accuracy"][method], row["nll"][method]) for method in ("bayesmooth", "logistic regression")]
        lines.append([str(name), *(f"{accuracy:.1f} / {nll:.2f}" for accuracy, nll in each)])
    return lines


def compare_costs() -> Lines:
    """A step of the optimizers alone, from `benchmarks optim`: time and memory."""
    times, memory = read_ratios("sample + update, 21"), read_ratios("peak memory")
    head = ["", "sample and update, over fused AdamW", "memory, in sizes of the weights"]
    return [head, *([name, times[name], size] for name, size in memory.items())]


def compare_training_steps() -> Lines:
    """A whole training step of a ResNet-18, from `benchmarks optim`."""
    ratios = read_ratios("training step")
    return [["", *ratios], ["ResNet-18, batch 50", *ratios.values()]]


def read_ratios(title: str) -> dict[str, str]:
    """The rows of a table of `benchmarks optim`, by their names."""
    text = (RESULTS / "optim.txt").read_text("utf-8")
    rows = text[text.index(f"\n{title}") + 1 :].split("\n\n")[0]
    return dict(re.findall(r"^(\w[\w ()+]*?) +([\d.]+)×?(?: |$)", rows, re.M))


# --- the paper -------------------------------------------------------------------------------------------------------

SCALES = ("overnight", "features", "laptop")  # the most images first
LARGEST = "the largest that has the study"
SHORT = {"reproduced": "yes", "direction only": "direction", "not reproduced": "no"}


def read_study(scale: str, name: str) -> Any:
    """The JSON file of a study."""
    return json.loads((RESULTS / scale / f"{name}.json").read_text("utf-8"))


def read_verdicts(own: bool) -> pd.DataFrame:
    """One row per sentence of the paper, or of our own, with its verdict by scale; first the largest that has one."""
    claims = [
        {"scale": scale, "study": path.stem, **claim}
        for scale in SCALES
        for path in (RESULTS / scale).glob("*.json")
        for claim in read_study(scale, path.stem)["claims"]
        if claim["own"] == own and claim["verdict"] in SHORT
    ]
    table = pd.DataFrame(claims).pivot(index=["study", "says"], columns="scale", values="verdict")
    table = table.reindex(columns=list(SCALES)).sort_index()
    table.insert(0, LARGEST, table.bfill(axis=1).iloc[:, 0])
    return table


def count_verdicts(own: bool) -> Lines:
    """How many sentences have which verdict, by scale, the largest first."""
    lines = [["scale", "sentences", *SHORT]]
    for scale, verdicts in read_verdicts(own).items():
        counts = (verdicts.eq(verdict).sum() for verdict in SHORT)
        lines.append([str(scale), *map(str, (verdicts.count(), *counts))])
    return lines


def list_verdicts() -> Lines:
    """Every sentence of the paper with its verdict at each scale."""
    table = read_verdicts(own=False).drop(columns=LARGEST)
    return list_lines(table.replace(SHORT).fillna("–").reset_index().rename(columns={"says": "the paper says"}))


def compare_accuracies() -> Lines:
    """Test accuracy by noise, with α, ρ, h₀ and the prediction chosen by noisy validation labels."""
    shown = ["data", "noise", "SGD, stopped early", "LS, α by validation", "SAM, ρ by validation", "IVON"]
    beside = ["h₀, prediction", "IVON, h₀ of the recipe"]
    lines = [["scale", *shown, *beside]]
    for scale in SCALES:
        for path in sorted((RESULTS / scale).glob("*.json")):
            head, *rows = read_study(scale, path.stem).get("table") or [[]]
            if set(shown) <= set(head):
                rows = list_lines(pd.DataFrame(rows, columns=head)[shown + beside])[1:]
                lines += [[scale, *row[:2], *embolden(row[2:-2]), *row[-2:]] for row in rows]
    return lines


TABLES: dict[str, Callable[[], Lines]] = {
    "audit": show_readers,
    "audit real errors": lambda: compare_methods(read_records("audit.jsonl"), REAL),
    "audit made errors": lambda: compare_methods(read_records("audit.jsonl"), MADE),
    "audit means": lambda: average_figures(read_records("audit.jsonl")),
    "audit clean": lambda: compare_methods(read_records("audit.jsonl"), CLEAN, "flagged"),
    "audit rates": compare_rates,
    "reviews": lambda: show_reviews(read_records("review.jsonl")),
    "review found": lambda: show_found(read_records("review.jsonl")),
    "review reliability": show_reliability,
    "audit speed": lambda: [row[:4] for row in read_markdown("audit_speed.txt") if row[3]],
    "annotators": lambda: embolden_rows([row[:-2] for row in read_markdown("choices/annotators.txt")]),  # no seconds
    "ambiguity": lambda: embolden_rows(read_markdown("choices/annotators.txt", 1)),
    "another model": lambda: embolden_rows(read_markdown("choices/predicted.txt"), first=3),
    "targets": lambda: read_markdown("choices/targets.txt"),
    "training": lambda: compare_training(read_records("training-test.jsonl")),
    "training means": lambda: [row[:5] for row in compare_training(read_records("training-test.jsonl"))],
    "linear": lambda: compare_linear(read_records("linear.jsonl")),
    "prediction": lambda: read_markdown("choices/prediction.txt"),
    "costs": compare_costs,
    "training steps": compare_training_steps,
    "verdict counts": lambda: count_verdicts(own=False),
    "verdicts": list_verdicts,
    "our verdict counts": lambda: count_verdicts(own=True),
    "accuracies": compare_accuracies,
}


def fill(text: str) -> str:
    """The text with all of its tables made anew."""

    def make(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{format_table(TABLES[found[1]]())}\n<!-- end -->"

    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", make, text, flags=re.DOTALL)


def main() -> None:
    """Fill every page, or compare."""
    for page in PAGES:
        text = page.read_text("utf-8")
        if fill(text) != text:
            if "--check" in sys.argv:
                raise SystemExit(f"{page}: its tables are not those of results/; run {__file__}")
            page.write_text(fill(text), "utf-8")


if __name__ == "__main__":
    main()
