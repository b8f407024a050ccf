"""Fill the tables of README and docs/ from results/: `python docs/make_tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `TABLES` says which function makes it. `--check`
writes nothing and fails if a page differs from the results.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

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


def read_records(name: str) -> list[dict[str, Any]]:
    """The lines of a JSONL file."""
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def read_columns(name: str, head: str) -> Lines:
    """The table of a text file whose head contains a word; its columns are two or more spaces apart."""
    lines = (RESULTS / name).read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if head in line and not line.startswith("#"))
    rows = []
    for line in lines[first:]:
        if not line.strip():
            break
        rows.append([cell.strip() for cell in re.split(r"\s{2,}", line.strip())])
    if len(rows[0]) < len(rows[1]):
        rows[0].insert(0, "")
    return [[NAMES.get(row[0], row[0]), *row[1:]] for row in rows]


def read_markdown(name: str, columns: int) -> Lines:
    """The first columns of a file that is a table in Markdown, the best number of each row in bold."""
    rows = [line.strip("| \n").split(" | ") for line in (RESULTS / name).open(encoding="utf-8")]
    head, _, *rows = [row[:columns] for row in rows]
    return [head, *([row[0], *embolden(row[1:])] for row in rows)]


def format_table(lines: Lines) -> str:
    """A table in Markdown."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_score(value: float) -> str:
    """Three digits, as `.829`."""
    return f"{value:.3f}".removeprefix("0")


def embolden(cells: Iterable[str], best: Callable[[Sequence[float]], float] = max) -> list[str]:
    """The cells with the best number in bold; a number ends at its first blank."""
    cells = list(cells)
    numbers = {cell: float(found[0]) for cell in cells if (found := re.match(r"[\d.]+", cell))}
    top = best(list(numbers.values()))
    return [f"**{cell}**" if numbers.get(cell) == top else cell for cell in cells]


# --- the audit -------------------------------------------------------------------------------------------------------


def by_method(records: list[dict[str, Any]], figure: str) -> dict[str, dict[str, float]]:
    """data set → method → figure."""
    table: dict[str, dict[str, float]] = {}
    for record in records:
        table.setdefault(record["data"], {})[record["method"]] = record[figure]
    return table


def compare_methods(name: str, kind: str, figure: str = "ap") -> Lines:
    """One line per data set with the figure of every method, and the mean at the end."""
    records = [record for record in read_records(name) if record["kind"] == kind]
    table = by_method(records, figure)
    methods = list(next(iter(table.values())))
    facts = {record["data"]: record for record in records}
    best = min if figure == "flagged" else max
    lines = [["data", "wrong", *methods]]
    for data, row in table.items():
        title = f"{NAMES.get(data, data)} ({facts[data]['examples']:,})"
        scores = embolden((format_score(row[method]) for method in methods), best)
        lines.append([title, f"{facts[data]['wrong']:.0%}".replace("%", " %"), *scores])
    means = (format_score(mean(row[method] for row in table.values())) for method in methods)
    return [*lines, [f"mean of {len(table)}", "", *embolden(means, best)]]


def show_readers() -> Lines:
    """The rows and columns of the README."""
    lines = compare_methods("audit.jsonl", REAL)
    columns = [lines[0].index(name) for name in ("data", "wrong", OURS, "cleanlab, tuned", "AUM")]
    first = ("data", "news", "tweets", "CIFAR-10N, a second", "Hausa", "mean")
    return [[line[i] for i in columns] for line in lines if line[0].startswith(first)]


def average_figures() -> Lines:
    """The mean of every figure over the data sets of a kind."""
    lines: Lines = []
    for kind in (REAL, MADE):
        for figure in ("at_errors", "at_100", "recall", "precision"):
            *_, means = table = compare_methods("audit.jsonl", kind, figure)
            lines = lines or [["errors", "mean of", *table[0][2:]]]
            lines.append([kind.removesuffix(" errors"), NAMES[figure], *means[2:]])
    return lines


def compare_rates() -> Lines:
    """How many labels are wrong, and how many the audit says."""
    lines = [["data", "wrong", "at least", "contradicted", "called mislabelled"]]
    for record in read_records("audit.jsonl"):
        if record["method"] == OURS:
            shares = (record[key] for key in ("wrong", "at_least", "flagged", "mislabelled"))
            name = NAMES.get(record["data"], record["data"])
            lines.append([name, *(f"{100 * share:.1f} %" for share in shares)])
    return lines


def show_reviews() -> Lines:
    """What a review of so many labels tells and teaches, on average over the data sets."""
    lines = [
        [
            "reviewed",
            "interval covers (least)",
            "its width",
            "plain sample",
            "AP before",
            "taught",
            "better, worse",
        ]
    ]
    for budget, rows in group_reviews().items():
        gains = [row["ap_taught"] - row["ap_before"] for row in rows]
        least, mean = min(row["covered"] for row in rows), average(rows)
        sides = f"{sum(g > 0.002 for g in gains)}, {sum(g < -0.002 for g in gains)} of {len(rows)}"
        scores = (mean(key) for key in ("width", "plain_width", "ap_before", "ap_taught"))
        share = f"{format_score(mean('covered'))} ({format_score(least)})"
        lines.append([str(budget), share, *map(format_score, scores), sides])
    return lines


def show_found() -> Lines:
    """How many wrong labels each way of looking at so many finds, on average over the data sets."""
    lines = [["looked at", "cleanlab's ranking", "ours", "ours, learned anew", "the queue"]]
    keys = ("found_cleanlab", "found_today", "found_taught", "in_queue")
    for budget, rows in group_reviews().items():
        lines.append([str(budget), *(f"{average(rows)(key):.1f}" for key in keys)])
    return lines


def show_reliability() -> Lines:
    """Of the labels with this chance to be wrong, how many are: before a review, and after 100 decisions."""
    lines = [["chance", "told before", "wrong", "told after", "wrong"]]
    rows = group_reviews()[100]
    for k in range(5):
        cells = []
        for key in ("reliability_before", "reliability"):
            some = [row[key][k] for row in rows if row[key][k][0]]
            cells += [format_score(sum(bin[at] for bin in some) / len(some)) for at in (1, 2)]
        lines.append([f".{2 * k} to {('.' + str(2 * k + 2)) if k < 4 else '1'}", *cells])
    return lines


def group_reviews() -> dict[int, list[dict[str, Any]]]:
    """The rows of results/review.jsonl by the number of labels reviewed."""
    made: dict[int, list[dict[str, Any]]] = {}
    for row in read_records("review.jsonl"):
        made.setdefault(row["budget"], []).append(row)
    return made


def average(rows: list[dict[str, Any]]) -> Callable[[str], float]:
    """The mean of a figure over these rows."""
    return lambda key: sum(row[key] for row in rows) / len(rows)


# --- training --------------------------------------------------------------------------------------------------------


def compare_training() -> Lines:
    """Each method on the test pool: means, and the distance to the peer that held-out labels choose."""
    records = read_records("training-test.jsonl")
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        cells.setdefault((record["cell"], record["seed"]), {})[record["method"]] = record
    lines = [["", "wrong labels", "clean labels", "NLL", "to the best peer", "clean", "worst cell"]]
    peers = ("AdamW", "SGD", "LS", "SAM")
    for method in ("fit", "fit-IVON", *peers, "ivon-opt"):
        own = {key: row for key, row in cells.items() if {method, *peers} <= row.keys()}
        kinds = {key: "clean" if "· clean ·" in key[0] else "wrong" for key in own}
        ahead = {
            key: row[method]["accuracy"] - max((row[p] for p in peers), key=rate)["accuracy"]
            for key, row in own.items()
        }

        def over(kind: str, values: Mapping[Any, float], kinds: Any = kinds) -> float:
            return mean(value for key, value in values.items() if kinds[key] == kind)

        accuracy = {key: row[method]["accuracy"] for key, row in own.items()}
        nll = mean(row[method]["nll"] for row in own.values())
        lines.append(
            [
                method,
                *(f"{over(kind, accuracy):.1f}" for kind in ("wrong", "clean")),
                f"{nll:.2f}",
                *(f"{over(kind, ahead):+.1f}" for kind in ("wrong", "clean")),
                f"{min(ahead.values()):+.1f}",
            ]
        )
    return lines


def rate(record: Mapping[str, Any]) -> float:
    """What chose: accuracy less a tenth of NLL, on held-out labels."""
    return float(record["validation"] - 0.1 * record["validation_nll"])


def show_demo() -> Lines:
    """Accuracy, memorised labels and likelihood of the demo, without the untuned rows."""
    head, *rows = read_study("demo", "demo")["table"]
    columns = [head.index(name) for name in ("method", "accuracy", "memorised", "NLL")]
    shown = [row for row in rows if "α = 0.1" not in row[0] and "averaged" not in row[0]]
    return [[row[i] for i in columns] for row in [head, *shown]]


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


def compare_predictions() -> Lines:
    """The three ways to predict; the other lines of the file vary the loop."""
    head, *rows = read_columns("choices/prediction.txt", "accuracy")
    shown = [row[:4] for row in rows if "README: " in row[0]]
    return [head, *([row[0].replace("README: ", ""), *row[1:]] for row in shown)]


# --- the paper -------------------------------------------------------------------------------------------------------

SCALES = ("overnight", "features", "laptop")  # the most images first
LARGEST = "the largest that has the study"
SHORT = {"reproduced": "yes", "direction only": "direction", "not reproduced": "no"}


def read_study(scale: str, name: str) -> Any:
    """The JSON file of a study."""
    return json.loads((RESULTS / scale / f"{name}.json").read_text("utf-8"))


def read_studies(scale: str) -> list[dict[str, Any]]:
    """All studies of a scale."""
    return [read_study(scale, path.stem) for path in sorted((RESULTS / scale).glob("*.json"))]


def read_verdicts(own: bool) -> dict[tuple[str, str], dict[str, str]]:
    """(study, sentence) → scale → verdict, of the paper's sentences or of our own."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for scale in SCALES:
        for study in read_studies(scale):
            for claim in study["claims"]:
                if claim["own"] == own and claim["verdict"] in SHORT:
                    row = found.setdefault((study["study"], claim["says"]), {})
                    row.setdefault(LARGEST, claim["verdict"])
                    row[scale] = claim["verdict"]
    return found


def count_verdicts(own: bool) -> Lines:
    """How many sentences have which verdict, by scale, the largest first."""
    rows = read_verdicts(own).values()
    lines = [["scale", "sentences", *SHORT]]
    for scale in (LARGEST, *SCALES):
        verdicts = [row[scale] for row in rows if scale in row]
        counts = (str(verdicts.count(verdict)) for verdict in SHORT)
        lines.append([scale, str(len(verdicts)), *counts])
    return lines


def list_verdicts() -> Lines:
    """Every sentence of the paper with its verdict at each scale."""
    rows = [
        [*claim, *(SHORT[row[scale]] if scale in row else "–" for scale in SCALES)]
        for claim, row in read_verdicts(own=False).items()
    ]
    return [["study", "the paper says", *SCALES], *sorted(rows)]


def compare_accuracies() -> Lines:
    """Test accuracy by noise, with α, ρ, h₀ and the prediction chosen by noisy validation labels."""
    shown = ["data", "noise", "SGD, stopped early", "LS, α by validation", "SAM, ρ by validation"]
    beside = ["h₀, prediction", "IVON, h₀ of the recipe"]
    lines = [["scale", *shown, "IVON", *beside]]
    for scale in SCALES:
        for study in read_studies(scale):
            head, *rows = study.get("table") or [[]]
            if set(shown) <= set(head):
                for row in rows:
                    first, second, *cells = (row[head.index(name)] for name in [*shown, "IVON"])
                    more = [row[head.index(name)] for name in beside]
                    lines.append([scale, first, second, *embolden(cells), *more])
    return lines


def compare_other_model() -> Lines:
    """What another model that learned from 400 clean labels adds, the best of the three rankings in bold."""
    lines = (RESULTS / "predicted.md").read_text("utf-8").splitlines()
    head, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    some = [row for row in rows if row[2] == "400"]
    made = ([NAMES.get(row[0], row[0]), row[1], row[3], *embolden(row[4:])] for row in some)
    return [[*head[:2], *head[3:]], *made]


TABLES: dict[str, Callable[[], Lines]] = {
    "audit": show_readers,
    "audit real errors": lambda: compare_methods("audit.jsonl", REAL),
    "audit made errors": lambda: compare_methods("audit.jsonl", MADE),
    "audit means": average_figures,
    "audit clean": lambda: compare_methods("audit.jsonl", CLEAN, "flagged"),
    "audit rates": compare_rates,
    "reviews": show_reviews,
    "review found": show_found,
    "review reliability": show_reliability,
    "audit speed": lambda: [row[:4] for row in read_columns("audit_speed.txt", "ratio") if row[4:]],
    "annotators": lambda: read_markdown("annotators.txt", 6),
    "another model": compare_other_model,
    "targets": lambda: read_columns("choices/targets.txt", "dropped"),
    "training": compare_training,
    "demo": show_demo,
    "prediction": compare_predictions,
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
