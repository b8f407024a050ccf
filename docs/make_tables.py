"""Fill the tables of README and docs/ from results/: `python docs/make_tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `TABLES` says which function makes it. `--check`
writes nothing and fails if a page differs from the results.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
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


def compare_cleaning() -> Lines:
    """Accuracy of scikit-learn's classifiers, averaged over seeds and then over data sets."""
    groups = {
        "made noise": ("wine", "breast cancer", "digits"),
        "people": ("news", "cifar10n", "hate"),
        "not used in choosing": ("cifar10h", "hausa", "yoruba"),
    }
    records = read_records("cleaning.jsonl")
    methods = ["as given", "CleanLearning", "drop", "weight", "relabel"]
    lines = [["labels wrong by", "estimator", *methods]]
    for group, data in groups.items():
        rows = [record for record in records if record["data"].startswith(data)]
        for estimator in dict.fromkeys(record["estimator"] for record in records):
            cells = []
            for method in methods:
                runs = [r for r in rows if (r["estimator"], r["method"]) == (estimator, method)]
                cells.append(f"{100 * mean(r['accuracy'] for r in runs):.1f}" if runs else "–")
            lines.append([group, estimator, *embolden(cells)])
    return lines


# --- training --------------------------------------------------------------------------------------------------------


def show_demo() -> Lines:
    """Accuracy, memorised labels and likelihood of the demo, without the untuned rows."""
    head, *rows = read_study("demo", "demo")["table"]
    columns = [head.index(name) for name in ("method", "accuracy", "memorised", "NLL")]
    shown = [row for row in rows if "α = 0.1" not in row[0] and "averaged" not in row[0]]
    return [[row[i] for i in columns] for row in [head, *shown]]


def compare_costs() -> Lines:
    """What a training step costs, from the two tables of `benchmarks structured`."""
    text = (RESULTS / "structured.txt").read_text("utf-8")
    parts = re.findall(
        r"^training step, (.*?)\n(.*?)state in sizes of the weights: (.*?)$", text, re.M | re.S
    )
    lines: Lines = [["", "AdamW", "IVON", "EVON", "SOAP"]]
    for title, ratios, state in parts:
        times = dict(re.findall(r"^(\w[\w ]*?) +([\d.]+)×", ratios, re.M))
        sizes = dict(re.findall(r"'([^']+)': ([\d.]+)", state))
        lines.append([f"{title}: training step", *(times[name] for name in lines[0][1:])])
        lines.append(["state, in sizes of the weights", *(sizes[name] for name in lines[0][1:])])
    return lines


def compare_predictions() -> Lines:
    """The three ways to predict; the other lines of the file vary the loop."""
    head, *rows = read_columns("choices/prediction.txt", "accuracy")
    shown = [row[:4] for row in rows if "README: " in row[0]]
    return [head, *([row[0].replace("README: ", ""), *row[1:]] for row in shown)]


def compare_posteriors() -> Lines:
    """EVON's and IVON's Gaussian against the exact one, from the first three claims of the study."""
    claims = read_study("demo", "structured")["claims"][:3]
    lines = [["logistic regression on", "‖Σ − Σ*‖/‖Σ*‖: EVON, IVON"]]
    lines[0] += ["rank correlation of φᵀΣφ", "rank correlation of the label noise"]
    figures = [re.findall(r"(\w+): ([\d.]+) against ([\d.]+)", c["measured"]) for c in claims]
    pairs = [
        [parts[0][0], *map(", ".join, (p[1:] for p in parts))]
        for parts in zip(*figures, strict=True)
    ]
    return lines + pairs


# --- the paper -------------------------------------------------------------------------------------------------------

SCALES = ("showcase", "features", "overnight", "laptop")  # the most images first
SHORT = {"reproduced": "yes", "direction only": "direction", "not reproduced": "no"}


def is_ours(claim: dict[str, str]) -> bool:
    """Whether a claim is ours: the paper chooses α and ρ on the test set."""
    return claim["paper"].startswith("(not in the paper)") or "noisy validation" in claim["paper"]


def read_study(scale: str, name: str) -> Any:
    """The JSON file of a study."""
    return json.loads((RESULTS / scale / f"{name}.json").read_text("utf-8"))


def read_studies(scale: str) -> list[dict[str, Any]]:
    """All studies of a scale."""
    return [read_study(scale, path.stem) for path in sorted((RESULTS / scale).glob("*.json"))]


def count_verdicts() -> Lines:
    """How many sentences of the paper have which verdict, by scale; our own claims apart."""
    lines = [["scale", "runs", *SHORT, "our own claims, reproduced"]]
    for scale in SCALES:
        studies = read_studies(scale)
        claims = [claim for study in studies for claim in study["claims"]]
        theirs = [claim["verdict"] for claim in claims if not is_ours(claim)]
        ours = [claim["verdict"] for claim in claims if is_ours(claim)]
        counts = [str(theirs.count(verdict)) for verdict in SHORT]
        runs = sum(study["runs"] for study in studies)
        held = f"{ours.count('reproduced')} of {len(ours)}"
        lines.append([scale, f"{runs:,}", *counts, held])
    return lines


def list_verdicts() -> Lines:
    """Every sentence of the paper with its verdict at each scale."""
    verdicts: dict[tuple[str, str], dict[str, str]] = {}
    for scale in SCALES:
        for study in read_studies(scale):
            for claim in study["claims"]:
                if not is_ours(claim):
                    row = verdicts.setdefault((study["study"], claim["paper"]), {})
                    row[scale] = SHORT[claim["verdict"]]
    rows = [[*claim, *(row.get(scale, "–") for scale in SCALES)] for claim, row in verdicts.items()]
    return [["study", "the paper says", *SCALES], *sorted(rows)]


def compare_accuracies() -> Lines:
    """Test accuracy by noise, with α and ρ chosen by noisy validation labels."""
    shown = [
        "data",
        "noise",
        "SGD, stopped early",
        "LS, α by validation",
        "SAM, ρ by validation",
        "IVON",
    ]
    shown.append("IVON at its mean")
    lines = [["scale", *shown]]
    for scale in SCALES:
        for study in read_studies(scale):
            head, *rows = study.get("table") or [[]]
            if set(shown) <= set(head):
                cells = ([row[head.index(name)] for name in shown] for row in rows)
                lines += [[scale, *row[:2], *embolden(row[2:])] for row in cells]
    return lines


TABLES: dict[str, Callable[[], Lines]] = {
    "audit": show_readers,
    "audit real errors": lambda: compare_methods("audit.jsonl", REAL),
    "audit made errors": lambda: compare_methods("audit.jsonl", MADE),
    "audit means": average_figures,
    "audit clean": lambda: compare_methods("audit.jsonl", CLEAN, "flagged"),
    "audit rates": compare_rates,
    "audit of a network": lambda: compare_methods("audit_training.jsonl", MADE),
    "audit rounds": lambda: read_columns("choices/audit_rounds.txt", "one ranking"),
    "audit speed": lambda: [row[:4] for row in read_columns("audit_speed.txt", "ratio") if row[4:]],
    "annotators": lambda: read_markdown("annotators.txt", 6),
    "targets": lambda: read_columns("choices/targets.txt", "dropped"),
    "cleaning": compare_cleaning,
    "demo": show_demo,
    "prediction": compare_predictions,
    "evon exact": compare_posteriors,
    "evon accuracy": lambda: [row[:6] for row in read_study("features", "structured")["table"]],
    "verdict counts": count_verdicts,
    "verdicts": list_verdicts,
    "accuracies": compare_accuracies,
    "costs": compare_costs,
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
