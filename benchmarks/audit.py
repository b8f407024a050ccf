"""How well the audit finds wrong labels, beside its peers at their best, all on the same embeddings in one run.

    python -m benchmarks audit                                                digits, noise made here
    BAYESMOOTH_DATA=… BAYESMOOTH_AUDIT_DATA=… python -m benchmarks audit      also MNIST, and files with real errors

The second names a folder of .npz files with `embeddings`, `clean_labels` and the given `labels` (or several columns of
given labels under names of their own). One JSON line per data set and method goes to results/audit.jsonl
(BAYESMOOTH_OUT names another file); what it holds already is not measured again. Remove it to begin anew. From it the
tables in README.md and docs/evidence-audit.md are filled.

Cleanlab's classifier is the one with the least cross-validated log loss on the given labels (`competitors.candidates`).
No method sees a clean label.
"""

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bayesmooth.audit.api import audit
from bayesmooth.audit.scores import MISLABELLED
from bayesmooth.data import Examples, corrupt, load
from bayesmooth.data.reading import read_npz
from bayesmooth.metrics import average_precision, precision_at_k
from bayesmooth.progress import bar
from benchmarks.competitors import METHODS, Found, choose_classifier, confident_learning, rows_of

RESULTS = Path("results/audit.jsonl")
REAL, MADE, CLEAN = "real errors", "made errors", "nothing wrong"
OURS, TUNED, LENT = "bayesmooth", "cleanlab, tuned", "cleanlab on our probabilities"
MADE_FILES = {"banking_similar"}  # whose errors nobody made by mistake
NAMES = {
    "news_annotators": "news, labelled by people",
    "hate_one_rater": "tweets, one rater's label",
    "hausa_distant": "Hausa news, labelled by rules",
    "yoruba_distant": "Yoruba news, labelled by rules",
    "cifar10n worse": "CIFAR-10N, the worst of three people",
    "cifar10n random2": "CIFAR-10N, a second person",
    "cifar10n random3": "CIFAR-10N, a third person",
    "cifar100n": "CIFAR-100N, single people",
    "cifar10h": "CIFAR-10H, one of fifty people",
    "banking_similar": "banking intents, moved to the most similar",
}
PAGES = (Path("README.md"), Path("docs/evidence-audit.md"))
NOT_LABELS = {"embeddings", "clean_labels", "votes", "test_embeddings", "test_labels"}
MOST_ROWS, PIXEL_ROWS = 5_000, 2_500  # the first of every file
FIGURES = ("ap", "at_errors", "at_100", "recall", "precision")
Record = dict[str, Any]
Job = Callable[[], Found]


@dataclass(frozen=True)
class Case:
    """A data set of the benchmark, and where its errors come from."""

    kind: str
    examples: Examples

    @property
    def name(self) -> str:
        return self.examples.name


def cases(quick: bool) -> Iterator[Case]:
    """Real errors first, then made ones, then sets without any; whatever is at hand."""
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    files = [] if quick or not folder else sorted(Path(folder).glob("*.npz"))
    files.sort(key=lambda path: path.stem in MADE_FILES)
    for path in files:
        yield from _labelled(path)
    digits = load("digits", "train")
    for noise, settings in (("pairflip", {"rate": 0.2}), ("symmetric", {"rate": 0.2})):
        yield made(digits, noise, **settings)
    yield Case(CLEAN, replace(digits, clean_labels=digits.labels, name="digits, clean"))
    if quick:
        return
    yield boundary_noise(digits, "digits")
    if "BAYESMOOTH_DATA" in os.environ:
        mnist = load("mnist", "train")
        some = mnist.subset(torch.arange(PIXEL_ROWS))
        yield made(some, "pairflip", rate=0.2)
        yield made(some, "symmetric", rate=0.2)
        yield made(some, "data_dependent", kappa=0.1)
        yield imbalanced(mnist, 3, 8)
    for path in files:
        if path.stem == "cifar10n":
            pictures = _clean(path, "embeddings", "clean_labels", "CIFAR-10 embeddings")
            yield long_tail(pictures)
            yield boundary_noise(pictures, "CIFAR-10 embeddings")
            yield Case(CLEAN, replace(pictures, name="CIFAR-10 embeddings, clean"))
        if path.stem == "news_annotators":
            yield Case(CLEAN, _clean(path, "test_embeddings", "test_labels", "news, clean"))


def made(examples: Examples, noise: str, **settings: float) -> Case:
    """The examples with labels moved."""
    noisy, _ = corrupt(examples, noise, seed=0, **settings)
    return Case(MADE, replace(noisy, name=f"{examples.name.split('/')[0]}, {noise}"))


def imbalanced(examples: Examples, many: int, few: int) -> Case:
    """5,000 of one class and 100 of another, a tenth of the labels moved."""
    chosen = [(examples.labels == k).nonzero().flatten()[:n] for k, n in ((many, 5000), (few, 100))]
    both = examples.subset(torch.cat(chosen))
    labels = (both.labels == few).long()
    names = (examples.class_names[many], examples.class_names[few])
    two = Examples(rows_of(both), labels, names, name=f"{examples.name.split('/')[0]} 1:50")
    return made(two, "symmetric", rate=0.1)


def long_tail(examples: Examples, least: int = 20) -> Case:
    """Class sizes that fall evenly on a logarithmic scale to 20, a fifth of the labels moved."""
    most = int(torch.bincount(examples.labels).min())
    sizes = torch.logspace(0, 1, examples.num_classes, base=least / most).mul(most).long().tolist()
    chosen = [(examples.labels == k).nonzero().flatten()[:n] for k, n in enumerate(sizes)]
    few = replace(examples.subset(torch.cat(chosen)), name=f"{examples.name}, long tail")
    return made(few, "symmetric", rate=0.2)


def boundary_noise(examples: Examples, name: str, rate: float = 0.2) -> Case:
    """Noise that depends on the example: those nearest to another class, as a model of the clean labels has it, have
    that class's label."""
    kept = replace(examples, clean_labels=examples.labels)
    left_out = torch.from_numpy(audit(kept, out_of_sample="loo", quiet=True).probabilities)
    own = left_out.gather(1, kept.labels[:, None]).squeeze(1)
    rival = left_out.scatter(1, kept.labels[:, None], -1.0).max(1)
    moved = (rival.values - own).topk(int(rate * len(kept))).indices
    labels = kept.labels.clone()
    labels[moved] = rival.indices[moved]
    return Case(MADE, replace(kept, labels=labels, name=f"{name}, near the boundary"))


def jobs_for(examples: Examples) -> dict[str, Job]:
    """Every method, ours first."""
    ours: dict[str, Job] = {OURS: partial(_ours, examples), LENT: partial(_lent, examples)}
    others: dict[str, Job] = {name: partial(method, examples) for name, method in METHODS.items()}
    return ours | {TUNED: partial(_tuned, examples)} | others


def _ours(examples: Examples) -> Found:
    found = audit(examples, quiet=True)
    facts = {
        "rate": found.summary["noise_rate"],
        "at_least": found.summary["noise_rate_at_least"],
        "mislabelled": float((found.quadrant == MISLABELLED).mean()),
    }
    return Found(torch.from_numpy(found.disagreement), torch.from_numpy(found.contradicted), facts)


def _lent(examples: Examples) -> Found:
    probabilities = audit(examples, out_of_sample="loo", quiet=True).probabilities
    return confident_learning(examples, probabilities)


def _tuned(examples: Examples) -> Found:
    probabilities, facts = choose_classifier(examples)
    return replace(confident_learning(examples, probabilities), facts=facts)


def errors(examples: Examples) -> Any:
    """Which labels are wrong."""
    assert examples.clean_labels is not None
    return examples.labels != examples.clean_labels


def measure(job: Job, examples: Examples) -> Record:
    """Time a method and hold what it found against the errors."""
    cpu = time.process_time()
    found = job()
    cpu = time.process_time() - cpu
    wrong, count = errors(examples), int(errors(examples).sum())
    flagged = int(found.flagged.sum())
    record: Record = {"flagged": flagged / len(wrong), "cpu": cpu, **found.facts}
    if count:
        hits = int((found.flagged & wrong).sum())
        record |= {
            "ap": average_precision(found.scores, wrong),
            "at_errors": precision_at_k(found.scores, wrong, count),
            "at_100": precision_at_k(found.scores, wrong, min(100, len(wrong))),
            "recall": hits / count,
            "precision": hits / max(flagged, 1),
        }
    return {k: _rounded(v) for k, v in record.items()}


def run(chosen: Iterable[Case], path: Path, jobs: Callable[[Examples], Mapping[str, Job]]) -> None:
    """Measure what the file has not yet, a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(record["data"], record["method"]) for record in read(path)}
    every = list(chosen)
    with bar(len(every), description="data sets") as shown:
        for position, case in enumerate(every):
            about = {
                "data": case.name,
                "kind": case.kind,
                "examples": len(case.examples),
                "classes": case.examples.num_classes,
                "wrong": _rounded(float(errors(case.examples).double().mean())),
            }
            for name, job in jobs(case.examples).items():
                if (case.name, name) in done:
                    continue
                record = about | {"method": name} | measure(job, case.examples)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            shown.update(position + 1, case.name)


def read(path: Path) -> list[Record]:
    """The lines of a file of results, none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def table(records: list[Record], kind: str, figure: str = "ap") -> list[list[str]]:
    """A head and a line per data set with everybody's figure, the best in bold; the mean at the end."""
    rows: dict[str, dict[str, float]] = {}
    shares: dict[str, str] = {}
    for record in records:
        if record["kind"] == kind:
            name = f"{NAMES.get(record['data'], record['data'])} ({record['examples']:,})"
            rows.setdefault(name, {})[record["method"]] = record[figure]
            shares[name] = f"{100 * record['wrong']:.0f} %"
    if not rows:
        return []
    methods = list(dict.fromkeys(method for row in rows.values() for method in row))
    means = {m: sum(row[m] for row in rows.values()) / len(rows) for m in methods}
    lines = [["data", "wrong", *methods]]
    for name, row in [*rows.items(), (f"mean of {len(rows)}", means)]:
        best = max(row.values()) if figure != "flagged" else min(row.values())
        cells = [f"{row[m]:.3f}".removeprefix("0") for m in methods]
        bold = [
            f"**{cell}**" if row[m] == best else cell
            for m, cell in zip(methods, cells, strict=True)
        ]
        lines.append([name, shares.get(name, ""), *bold])
    return lines


def shorten(
    lines: list[list[str]], columns: Sequence[str], first: Sequence[str]
) -> list[list[str]]:
    """Some columns of a table, and its lines that begin so."""
    chosen = [lines[0].index(name) for name in columns]
    kept = [line for line in lines if line[0].startswith(("data", *first))]
    return [[line[column] for column in chosen] for line in kept]


def fill(page: Path, tables: Mapping[str, str]) -> None:
    """Put every table between its marks, <!-- name --> and <!-- end -->, where the page has them."""
    text = page.read_text("utf-8")
    for name, lines in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda found, lines=lines: f"{found[1]}{lines}\n{found[2]}", text)  # type: ignore[misc]
    page.write_text(text, "utf-8")


def tables_of(records: list[Record]) -> dict[str, str]:
    """Every table of the pages, by the name of its mark."""
    every = {
        f"audit {kind} {figure}": table(records, kind, figure)
        for kind in (REAL, MADE)
        for figure in FIGURES
    }
    every[f"audit {CLEAN}"] = table(records, CLEAN, "flagged")
    every["audit rates"] = rates(records)
    columns = ("data", "wrong", OURS, TUNED, "AUM", "SimiFeat")
    rows = ("news", "tweets", "CIFAR-10N, a second", "Hausa", "mean")
    every["audit"] = shorten(every[f"audit {REAL} ap"], columns, rows)
    return {name: markdown(lines) for name, lines in every.items() if len(lines) > 2}


def rates(records: list[Record]) -> list[list[str]]:
    """What the audit said of how many labels are wrong, and how many are."""
    lines = [["data", "wrong", "at least", "about", "contradicted", "called mislabelled"]]
    for record in records:
        if record["method"] == OURS:
            said = (record[key] for key in ("wrong", "at_least", "rate", "flagged", "mislabelled"))
            name = str(NAMES.get(record["data"], record["data"]))
            lines.append([name, *(f"{100 * share:.1f} %" for share in said)])
    return lines


def markdown(lines: list[list[str]]) -> str:
    """The lines as a Markdown table."""
    head, *rows = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main(quick: bool = False) -> None:
    """Measure what is missing and print the tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the peers, about iterations and small classes
    path = Path(os.environ.get("BAYESMOOTH_OUT", RESULTS))
    run(cases(quick), path, jobs_for)
    tables = tables_of(read(path))
    for name, lines in tables.items():
        print(f"\n{name}\n{lines}")
    if path == RESULTS:
        for page in filter(Path.exists, PAGES):
            fill(page, tables)


def _labelled(path: Path) -> Iterator[Case]:
    """A case for each column of given labels."""
    arrays = {name: values[:MOST_ROWS] for name, values in read_npz(path).items()}
    if "embeddings" not in arrays:
        return
    clean = torch.from_numpy(arrays["clean_labels"]).long()
    rows = torch.from_numpy(arrays["embeddings"]).float()
    for column in sorted(set(arrays) - NOT_LABELS):
        given = torch.from_numpy(arrays[column]).long()
        names = tuple(map(str, range(int(max(given.max(), clean.max())) + 1)))
        name = path.stem if column == "labels" else f"{path.stem} {column}"
        yield Case(
            MADE if path.stem in MADE_FILES else REAL,
            Examples(rows, given, names, clean, name=name),
        )


def _clean(path: Path, rows: str, labels: str, name: str) -> Examples:
    arrays = {name: values[:MOST_ROWS] for name, values in read_npz(path).items()}
    given = torch.from_numpy(arrays[labels]).long()
    names = tuple(map(str, range(int(given.max()) + 1)))
    return Examples(torch.from_numpy(arrays[rows]).float(), given, names, given, name=name)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
