"""The wrong labels that the audit finds, beside those of its peers at their best, on the same embeddings in one run.

    python -m benchmarks audit                                                digits, noise made here
    BAYESMOOTH_DATA=… BAYESMOOTH_AUDIT_DATA=… python -m benchmarks audit      also MNIST, and files with real errors

BAYESMOOTH_AUDIT_DATA names a folder of .npz files with `embeddings`, `clean_labels` and the given `labels` (or several
columns of given labels under names of their own). One JSON line per data set and method goes to results/audit.jsonl
(BAYESMOOTH_OUT names another folder). Rows that the file holds are not measured again: remove it to begin anew.
docs/make_tables.py makes the tables of the pages from it.

Cleanlab's classifier is the one with the least cross-validated log loss on the given labels (`competitors.candidates`).
No method sees a clean label.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from bayesmooth.audit import audit
from bayesmooth.audit.table import MISLABELLED
from bayesmooth.data import Labels, Source, corrupt, load
from bayesmooth.data.arrays import read_npz
from benchmarks.competitors import PEERS, Found, choose_classifier, confident_learning, rows_of
from benchmarks.harness import Row, real_data, results_path, run_missing, time_cpu
from docs.make_tables import CLEAN, MADE, OURS, REAL, average_figures, compare_methods, format_table

MADE_FILES = {"banking_similar"}  # their errors are made on purpose
NOT_LABELS = {"embeddings", "clean_labels", "votes", "test_embeddings", "test_labels"}
MOST_ROWS, PIXEL_ROWS = 5_000, 2_500  # the first of every file
Method = Callable[[Source], Found]


class Case(NamedTuple):
    """A data set of the benchmark, and the origin of its errors."""

    kind: str
    examples: Source


def cases(quick: bool) -> Iterator[Case]:
    """The cases whose data are at hand: real errors first, then made ones, then sets without any."""
    files = [] if quick else sorted(real_data(), key=lambda path: path.stem in MADE_FILES)
    for path in files:
        yield from read_cases(path)
    digits = load("digits", "train")
    yield noisy_case(digits, "pairflip", rate=0.2)
    yield noisy_case(digits, "symmetric", rate=0.2)
    yield Case(CLEAN, replace(digits, clean=digits.labels.numbers, name="digits, clean"))
    if quick:
        return
    yield boundary_noise(digits, "digits")
    if "BAYESMOOTH_DATA" in os.environ:
        mnist = load("mnist", "train")
        some = mnist.subset(torch.arange(PIXEL_ROWS))
        yield noisy_case(some, "pairflip", rate=0.2)
        yield noisy_case(some, "symmetric", rate=0.2)
        yield noisy_case(some, "data_dependent", kappa=0.1)
        yield imbalanced(mnist, 3, 8)
    for path in files:
        if path.stem == "cifar10n":
            pictures = read_examples(path, "clean_labels", "CIFAR-10 embeddings")
            yield long_tail(pictures)
            yield boundary_noise(pictures, "CIFAR-10 embeddings")
            yield Case(CLEAN, replace(pictures, name="CIFAR-10 embeddings, clean"))
        if path.stem == "news_annotators":
            test = {"rows": "test_embeddings", "clean": "test_labels"}
            yield Case(CLEAN, read_examples(path, "test_labels", "news, clean", **test))


def read_cases(path: Path) -> Iterator[Case]:
    """A case for each column of given labels."""
    columns = set(read_npz(path))
    for column in sorted(columns - NOT_LABELS) if "embeddings" in columns else ():
        name = path.stem if column == "labels" else f"{path.stem} {column}"
        kind = MADE if path.stem in MADE_FILES else REAL
        yield Case(kind, read_examples(path, column, name))


def read_examples(path: Path, given: str, name: str, rows: str = "embeddings", clean: str = "clean_labels") -> Source:
    """The first rows of a file, with the labels that stand in these columns."""
    arrays = {key: torch.from_numpy(values[:MOST_ROWS]) for key, values in read_npz(path).items()}
    labels, true = arrays[given].long(), arrays[clean].long()
    names = tuple(map(str, range(int(max(labels.max(), true.max())) + 1)))
    return Source(arrays[rows].float(), Labels(labels, names), true, name=name)


def noisy_case(examples: Source, noise: str, **settings: float) -> Case:
    """The examples with labels moved."""
    noisy, _ = corrupt(examples, noise, seed=0, **settings)
    return Case(MADE, replace(noisy, name=f"{examples.name.split('/')[0]}, {noise}"))


def imbalanced(examples: Source, many: int, few: int) -> Case:
    """5,000 of one class and 100 of another, a tenth of the labels moved."""
    both = take_first(examples, {many: 5000, few: 100})
    names = (examples.class_names[many], examples.class_names[few])
    labels = Labels((both.labels.numbers == few).long(), names)
    return noisy_case(Source(rows_of(both), labels, name=f"{examples.name.split('/')[0]} 1:50"), "symmetric", rate=0.1)


def long_tail(examples: Source, least: int = 20) -> Case:
    """Class sizes that fall evenly on a logarithmic scale to 20, a fifth of the labels moved."""
    most = int(torch.bincount(examples.labels.numbers).min())
    sizes = torch.logspace(0, 1, examples.num_classes, base=least / most).mul(most).long().tolist()
    few = take_first(examples, dict(enumerate(sizes)))
    return noisy_case(replace(few, name=f"{examples.name}, long tail"), "symmetric", rate=0.2)


def take_first(examples: Source, counts: Mapping[int, int]) -> Source:
    """The first so many of each of these classes."""
    chosen = [(examples.labels.numbers == k).nonzero().flatten()[:n] for k, n in counts.items()]
    return examples.subset(torch.cat(chosen))


def boundary_noise(examples: Source, name: str, rate: float = 0.2) -> Case:
    """Examples nearest to another class, by a model of the clean labels, have the label of that class."""
    kept = replace(examples, clean=examples.labels.numbers)
    left_out = torch.from_numpy(audit(kept, leave_out=True, quiet=True).probabilities)
    own = left_out.gather(1, kept.labels[:, None]).squeeze(1)
    rival = left_out.scatter(1, kept.labels[:, None], -1.0).max(1)
    moved = (rival.values - own).topk(int(rate * len(kept))).indices
    labels = kept.labels.numbers.clone()
    labels[moved] = rival.indices[moved]
    return Case(MADE, replace(kept, labels=kept.labels.renumber(labels), name=f"{name}, near the boundary"))


def ours(examples: Source) -> Found:
    audited = audit(examples, quiet=True)
    facts = {
        "at_least": audited.summary["noise_rate_at_least"],
        "mislabelled": float((audited.quadrant == MISLABELLED).mean()),
    }
    return Found(torch.from_numpy(audited.disagreement), torch.from_numpy(audited.contradicted), facts)


def lent(examples: Source) -> Found:
    probabilities = audit(examples, leave_out=True, quiet=True).probabilities
    return confident_learning(examples, probabilities)


def tuned(examples: Source) -> Found:
    probabilities, facts = choose_classifier(examples)
    return replace(confident_learning(examples, probabilities), facts=facts)


METHODS: dict[str, Method] = {OURS: ours, "cleanlab, tuned": tuned, "cleanlab on our probabilities": lent, **PEERS}


def errors(examples: Source) -> Tensor:
    """True (N,) for the wrong labels."""
    assert examples.clean is not None
    return examples.labels.numbers != examples.clean


def measure(case: Case, name: str, method: Method) -> Iterator[Row]:
    """Time a method and compare its findings with the errors."""
    examples, wrong, count = case.examples, errors(case.examples), int(errors(case.examples).sum())
    ranking, cpu = time_cpu(partial(method, examples))
    row: Row = {
        "data": examples.name,
        "kind": case.kind,
        "examples": len(examples),
        "classes": examples.num_classes,
        "wrong": count / len(examples),
        "method": name,
        "flagged": float(ranking.flagged.double().mean()),
        "cpu": cpu,
        **ranking.facts,
    }
    if count:
        hits = int((ranking.flagged & wrong).sum())
        row |= {
            "ap": average_precision_score(wrong, ranking.scores),
            "at_errors": precision_at_k(ranking.scores, wrong, count),
            "at_100": precision_at_k(ranking.scores, wrong, min(100, len(wrong))),
            "recall": hits / count,
            "precision": hits / max(int(ranking.flagged.sum()), 1),
        }
    yield row


def precision_at_k(scores: Tensor, wrong: Tensor, k: int) -> float:
    """The share of wrong labels among the `k` highest scores, expected over the order of ties."""
    last = scores.topk(k).values[-1]
    above, tied = scores > last, scores == last
    return float((wrong[above].sum() + (k - above.sum()) * wrong[tied].double().mean()) / k)


def run(cases: Iterable[Case], path: Path, methods: Mapping[str, Method]) -> list[Row]:
    """All rows of the file, after measuring the missing ones: one row per data set and method."""
    todo = {
        (case.examples.name, name): partial(measure, case, name, method)
        for case in cases
        for name, method in methods.items()
    }
    return run_missing(path, ("data", "method"), todo, "data sets × methods")


def main(quick: bool = False) -> None:
    """Measure the missing rows and print the tables."""
    warnings.simplefilter("ignore")  # of the peers, about iterations and small classes
    records = pd.DataFrame(run(cases(quick), results_path("audit"), METHODS))
    for kind in records["kind"].unique():
        figure = "flagged" if kind == CLEAN else "ap"
        print(f"\n{kind}, {figure}\n\n{format_table(compare_methods(records, kind, figure))}")
    print(f"\n{format_table(average_figures(records))}")
