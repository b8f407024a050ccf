"""The audit's table: known errors found by us, cleanlab, in-sample loss and AUM, on the same embeddings.

    BAYESMOOTH_DATA=… python -m benchmarks audit
    BAYESMOOTH_DATA=… BAYESMOOTH_EMBEDDINGS=cifar10.npz BAYESMOOTH_TABLES=tweets.npz python -m benchmarks audit

The second adds CIFAR-10N from a .npz whose `embeddings` are those of the first N training images of CIFAR-10, and any
table that has `clean_labels`.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesmooth.audit.embeddings import audit_embeddings
from bayesmooth.audit.scores import SCORES
from bayesmooth.data import Examples, corrupt, load
from bayesmooth.data.reading import read_npz
from bayesmooth.errors import InputError
from bayesmooth.metrics import average_precision
from benchmarks.audit_rows import benchmark, known_errors, print_table

NOISE: dict[str, dict[str, Any]] = {
    "symmetric": {"rate": 0.2},
    "pairflip": {"rate": 0.2},
    "data_dependent": {"kappa": 0.1},
}
MNIST_ROWS = 10_000


def data_sets(quick: bool) -> Iterator[Examples]:
    """Whatever is at hand."""
    clean = [load("digits", "train")]
    if "BAYESMOOTH_DATA" in os.environ and not quick:
        clean.append(load("mnist", "train").subset(torch.arange(MNIST_ROWS)))
    for examples in clean:
        for kind, settings in NOISE.items():
            noisy, _ = corrupt(examples, kind, seed=0, **settings)
            yield replace(noisy, name=f"{examples.name}, {kind}")
    if path := os.environ.get("BAYESMOOTH_EMBEDDINGS"):
        yield from human(path)
    for path in filter(None, os.environ.get("BAYESMOOTH_TABLES", "").split(os.pathsep)):
        yield load("embeddings", "train", path=os.path.abspath(path))


def human(path: str) -> Iterator[Examples]:
    """CIFAR-10N under the embeddings of a file."""
    rows = torch.from_numpy(read_npz(Path(path))["embeddings"])
    for labels in ("aggre", "random1"):
        noisy = load("cifar10n", "train", labels=labels)
        if len(rows) > len(noisy):
            raise InputError(f"{path}: {len(rows)} rows for {len(noisy)} images")
        first = noisy.subset(torch.arange(len(rows)))
        yield replace(first, inputs=rows, mean=None, std=None, name=f"CIFAR-10N {labels}")


def scores(examples: Examples) -> None:
    """Average precision of every disagreement score, in-sample and left out."""
    wrong = known_errors(examples)
    for way in ("none", "loo"):
        evidence = audit_embeddings(examples, out_of_sample=way, quiet=True)
        found = {name: average_precision(score(evidence), wrong) for name, score in SCORES.items()}
        print(f"{way:5}", "  ".join(f"{name} {ap:.3f}" for name, ap in found.items()), flush=True)


def main(quick: bool = False) -> None:
    """All of it."""
    torch.set_num_threads(1)
    for examples in data_sets(quick):
        print(f"\n{examples}")
        print_table(benchmark(examples, quiet=True))
        scores(examples)
