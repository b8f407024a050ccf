"""The audit's table: known errors found by us, cleanlab, neighbours, in-sample loss and AUM, on the same embeddings.

    python -m benchmarks audit                                     digits and tables that scikit-learn ships
    BAYESMOOTH_DATA=… python -m benchmarks audit                   also MNIST and Fashion-MNIST, as pixels
    BAYESMOOTH_DATA=… BAYESMOOTH_EMBEDDINGS=cifar10.npz BAYESMOOTH_TABLES=a.npz:b.npz python -m benchmarks audit

The third adds CIFAR-10N under a .npz whose `embeddings` are those of the first N training images of CIFAR-10, and any
table: as it is where it has `clean_labels`, else with 20 % of its labels moved, anywhere and to the next class.

What the other methods scored according to a file that BAYESMOOTH_KNOWN names (results/audit.txt, what this printed
before) is not measured again.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmooth.audit.api import audit
from bayesmooth.audit.evidence import audit_embeddings
from bayesmooth.audit.scores import SCORES
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.sources import open_source
from bayesmooth.data import Examples, corrupt, load
from bayesmooth.data.reading import read_npz
from bayesmooth.errors import InputError
from bayesmooth.lab import Run
from bayesmooth.metrics import auroc, average_precision, precision_at_k
from bayesmooth.optional import require
from benchmarks.competitors import COMPETITORS

NOISE: dict[str, dict[str, Any]] = {
    "symmetric": {"rate": 0.2},
    "pairflip": {"rate": 0.2},
    "data_dependent": {"kappa": 0.1},
}
OURS = ("bayesmooth", "bayesmooth, one IVON run")
PIXEL_ROWS = 2_500
Job = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """How one method did; `precision` is among as many as there are true errors."""

    method: str
    ap: float
    auroc: float
    precision: float
    cpu_seconds: float


def benchmark(
    source: Examples | Run,
    *,
    known: Mapping[str, Row] | None = None,
    data_dir: str | Path | None = None,
    quiet: bool = False,
) -> Iterator[Row]:
    """A row for each method, ours first, as they finish; `known` are rows that need not be measured.

    A run is compared with its own in-sample loss; cleanlab would have to train it five times more.
    """
    jobs: dict[str, Job]
    if isinstance(source, Run):
        examples = source.examples("train", data_dir)
        jobs = {
            "bayesmooth": lambda: source.audit(data_dir, quiet=quiet).disagreement,
            "in-sample loss": lambda: _loss_at_mean(source, data_dir, quiet),
        }
    else:
        examples = source
        for module in ("cleanlab.filter", "sklearn.linear_model"):
            require(module, extra="cleanlab")  # loading them is not their methods' time
        jobs = {"bayesmooth": lambda: audit(examples, quiet=quiet).disagreement}
        jobs |= {name: _call(method, examples) for name, method in COMPETITORS.items()}
    wrong = known_errors(examples)
    for name, job in jobs.items():
        yield (known or {}).get(name) or measure(name, job, wrong)


def measure(name: str, job: Job, wrong: Tensor) -> Row:
    """Time a method and hold its scores against the errors."""
    cpu = time.process_time()
    scores = torch.as_tensor(job())
    cpu = time.process_time() - cpu
    found = precision_at_k(scores, wrong, int(wrong.sum()))
    return Row(name, average_precision(scores, wrong), auroc(scores, wrong), found, cpu)


def known_errors(examples: Examples) -> Tensor:
    """Which labels are wrong, or an error where that is not known."""
    if examples.clean_labels is None:
        raise InputError(
            f"{examples.name}: needs the true labels; add clean_labels (.npz) or a column clean_label, or corrupt "
            "a clean set first"
        )
    wrong = examples.labels != examples.clean_labels
    if not bool(wrong.any()):
        raise InputError(f"{examples.name}: no label differs from its clean label; nothing to find")
    return wrong


def read_known() -> dict[str, dict[str, Row]]:
    """The rows of the other methods in the file that BAYESMOOTH_KNOWN names, by the line above each table."""
    path = os.environ.get("BAYESMOOTH_KNOWN")
    known: dict[str, dict[str, Row]] = {}
    rows: dict[str, Row] = {}
    above = ""
    for line in Path(path).read_text().splitlines() if path else ():
        if line.startswith("method "):
            rows = known[above] = {}
        elif not line:  # the table is over
            rows = {}
        elif found := re.fullmatch(r"(.+?)  +([\d.]+(?: +[\d.]+){3,})", line):
            ap, area, precision, *_, seconds = map(float, found[2].split())
            rows[found[1]] = Row(found[1], ap, area, precision, seconds)
        above = line
    return {line: {n: r for n, r in rows.items() if n not in OURS} for line, rows in known.items()}


def print_rows(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come, and return them."""
    print(f"{'method':24} {'AP':>6} {'AUROC':>6} {'P@errors':>8} {'CPU s':>7}")
    kept = []
    for row in rows:
        numbers = f"{row.ap:6.3f} {row.auroc:6.3f} {row.precision:8.3f} {row.cpu_seconds:7.1f}"
        print(f"{row.method:24} {numbers}", flush=True)
        kept.append(row)
    return kept


def print_summary(table: dict[str, list[Row]]) -> None:
    """One line per data set: everybody's average precision, and how far ours is from the best."""
    methods = [row.method for row in next(iter(table.values()))]
    print("\naverage precision\n" + " | ".join(["data", *methods, "behind the best"]))
    for name, rows in table.items():
        behind = max(row.ap for row in rows) - rows[0].ap
        print(" | ".join([name, *(f"{row.ap:.3f}" for row in rows), f"{behind:.3f}"]))
    means = [sum(rows[i].ap for rows in table.values()) / len(table) for i in range(len(methods))]
    print(" | ".join(["mean", *(f"{mean:.3f}" for mean in means)]), flush=True)


def data_sets(quick: bool) -> Iterator[Examples]:
    """Whatever is at hand."""
    yield from corrupted(load("digits", "train"), *NOISE)
    yield from tables()
    if quick:
        return
    if "BAYESMOOTH_DATA" in os.environ:
        for name in ("mnist", "fashion_mnist"):
            yield from corrupted(load(name, "train").subset(torch.arange(PIXEL_ROWS)), *NOISE)
    if path := os.environ.get("BAYESMOOTH_EMBEDDINGS"):
        yield from human(path)
    for examples in embedded():
        if examples.clean_labels is not None:
            yield examples
        else:
            yield from corrupted(examples, "symmetric", "pairflip")


def embedded() -> Iterator[Examples]:
    """The tables that BAYESMOOTH_TABLES names."""
    for path in filter(None, os.environ.get("BAYESMOOTH_TABLES", "").split(os.pathsep)):
        yield load("embeddings", "train", path=os.path.abspath(path))


def corrupted(examples: Examples, *kinds: str) -> Iterator[Examples]:
    """The examples under each kind of noise."""
    for kind in kinds:
        noisy, _ = corrupt(examples, kind, seed=0, **NOISE[kind])
        yield replace(noisy, name=f"{examples.name}, {kind}")


def tables() -> Iterator[Examples]:
    """Tables of scikit-learn with 10 % of the labels moved, standardised as the audit does with a file's columns."""
    datasets = require("sklearn.datasets", extra="data")
    for name in ("breast_cancer", "wine"):
        raw = getattr(datasets, f"load_{name}")()
        x = torch.from_numpy(raw.data).float()
        clean = Examples(
            (x - x.mean(0)) / x.std(0),
            torch.from_numpy(raw.target).long(),
            tuple(map(str, raw.target_names)),
            name=name,
        )
        noisy, _ = corrupt(clean, "symmetric", seed=0, rate=0.1)
        yield replace(noisy, name=f"{name}, 10 % symmetric")


def human(path: str) -> Iterator[Examples]:
    """CIFAR-10N under the embeddings of a file."""
    rows = torch.from_numpy(read_npz(Path(path))["embeddings"])
    for labels in ("aggre", "random1"):
        noisy = load("cifar10n", "train", labels=labels)
        if len(rows) > len(noisy):
            raise InputError(f"{path}: {len(rows)} rows for {len(noisy)} images")
        first = noisy.subset(torch.arange(len(rows)))
        yield replace(first, inputs=rows, mean=None, std=None, name=f"CIFAR-10N {labels}")


def print_scores(examples: Examples) -> None:
    """Average precision of every disagreement score, in-sample and left out."""
    wrong = known_errors(examples)
    for way in ("none", "loo"):
        evidence = audit_embeddings(examples, Settings(out_of_sample=way, quiet=True))
        found = {name: average_precision(score(evidence), wrong) for name, score in SCORES.items()}
        print(f"{way:5}", "  ".join(f"{name} {ap:.3f}" for name, ap in found.items()), flush=True)


def main(quick: bool = False) -> None:
    """All of it."""
    torch.set_num_threads(1)
    known, table = read_known(), {}
    for examples in data_sets(quick):
        print(f"\n{examples}")
        rows = benchmark(examples, known=known.get(str(examples)), quiet=True)
        table[examples.name] = print_rows(rows)
        print_scores(examples)
    print_summary(table)


def _call(method: Callable[[Examples], Tensor], examples: Examples) -> Job:
    return lambda: method(examples)


def _loss_at_mean(run: Run, data_dir: str | Path | None, quiet: bool) -> Tensor:
    """1 − p_y of the mean of the posterior, which ranks as −log p_y does."""
    subject = open_source(run.model(), run.posterior(), run.examples("train", data_dir))
    evidence = subject.evidence(Settings(quiet=quiet))
    at_mean = evidence.probabilities + evidence.signed_noise()
    return 1 - at_mean.gather(1, evidence.labels[:, None]).squeeze(1)
