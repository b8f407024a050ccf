"""How much faster wrong labels are found when the audit learns from decisions on the way.

    BAYESMOOTH_AUDIT_DATA=folder python -m benchmarks audit_rounds > results/audit_rounds.txt

A reviewer who knows the true labels looks at as many labels as are wrong, from the top: all in one ranking, or with the
rest ranked anew after one half (one round) or after each third (two rounds). Each figure is the share of the wrong
labels that were found, mean ± standard deviation over samples of 2,000 examples.
"""

import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bayesmooth import Audit, audit
from bayesmooth.data import Examples, corrupt, load
from bayesmooth.data.reading import read_npz

FILES = {"news_annotators": "labels", "cifar10n": "worse", "yoruba_distant": "labels"}
ROWS = 2_000
HEADER = ["id", "given", "decision", "new_label"]


def data_sets(seed: int) -> Iterator[Examples]:
    """Digits with pair flips, and the files that are there."""
    noisy = corrupt(load("digits", "train"), "pairflip", rate=0.3, seed=seed)[0]
    yield Examples(
        noisy.inputs[torch.arange(len(noisy))].flatten(1),
        noisy.labels,
        noisy.class_names,
        noisy.clean_labels,
        name="digits, 30 % pair flips",
    )
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    for name, column in FILES.items() if folder else ():
        arrays = read_npz(Path(folder or "") / f"{name}.npz")
        some = np.random.default_rng(seed).permutation(len(arrays[column]))[:ROWS]
        rows = torch.from_numpy(arrays["embeddings"][some]).float()
        given, true = (
            torch.from_numpy(arrays[key][some]).long() for key in (column, "clean_labels")
        )
        names = tuple(map(str, range(int(max(given.max(), true.max())) + 1)))
        yield Examples(rows, given, names, true, name=name)


def found(examples: Examples, parts: int) -> float:
    """The share of wrong labels found by looking at as many as there are, in so many parts."""
    assert examples.clean_labels is not None
    true, given = examples.clean_labels.numpy(), examples.labels.numpy()
    wrong = given != true
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.csv"
        for part in range(1, parts + 1):
            made = audit(examples, decisions=path if seen else None, quiet=True)
            fresh = [i for i in made.order.tolist() if i not in set(seen)]
            seen += fresh[: int(part * wrong.sum() / parts) - len(seen)]
            write_decisions(path, made, given, true, seen)
    return float(wrong[seen].mean())


def write_decisions(
    path: Path, made: Audit, given: np.ndarray, true: np.ndarray, seen: list[int]
) -> None:
    """What the reviewer decided so far."""
    names = made.class_names
    rows = [
        [
            made.ids[i],
            names[given[i]],
            *(("keep", "") if given[i] == true[i] else ("relabel", names[true[i]])),
        ]
        for i in seen
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *rows])


def main(quick: bool = False) -> None:
    """One line per data set."""
    torch.set_num_threads(1)
    seeds = range(1 if quick else 3)
    print(
        "share of the wrong labels found, %".ljust(36) + "one ranking     one round      two rounds"
    )
    for sets in zip(*(data_sets(seed) for seed in seeds), strict=True):
        shares = np.array(
            [[100 * found(examples, parts) for parts in (1, 2, 3)] for examples in sets]
        )
        spread = shares.std(0, ddof=1) if len(sets) > 1 else np.zeros(3)
        cells = [
            f"{mean:8.1f} ± {std:.1f}" for mean, std in zip(shares.mean(0), spread, strict=True)
        ]
        print(sets[0].name.ljust(32) + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
