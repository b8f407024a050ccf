"""The audit's CPU time against cleanlab's with one tuned classifier, five folds; a CSV; a million rows on the disk.

    python -m benchmarks audit_speed

The million embeddings (× 384 float32, and another split of 100,000) are mapped from two .npy files in a temporary
folder, with near duplicates, outliers and leaks between the splits.
"""

import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bayesmooth.audit import audit
from bayesmooth.data import Labels, Source, corrupt, open_source
from bayesmooth.data.source import Mapped
from benchmarks.competitors import confident_learning, out_of_fold, regression
from benchmarks.harness import time_cpu
from docs.make_tables import format_table

DIM = 384
SPECTRUM = torch.arange(1, DIM + 1) ** -0.25  # decays, as that of sentence encoders
SIZES = ((10_000, 10), (10_000, 77), (10_000, 100), (50_000, 10))
CLASSES, PIECE, NOISE = 10, 50_000, 0.02  # of the million rows


def fill(rows: Any, classes: int, seed: int) -> Labels:
    """Write unit embeddings around a centre per class, a piece at a time; row i has the class i modulo `classes`."""
    centres = SPECTRUM * torch.randn(classes, DIM, generator=torch.Generator().manual_seed(0))
    generator, labels = torch.Generator().manual_seed(seed), torch.arange(len(rows)) % classes
    for index in torch.split(torch.arange(len(rows)), PIECE):
        piece = centres[labels[index]] + 2.0 * SPECTRUM * torch.randn(len(index), DIM, generator=generator)
        rows[index.numpy()] = torch.nn.functional.normalize(piece, dim=1).numpy()
    return Labels(labels, tuple(map(str, range(classes))))


def clouds(count: int, classes: int) -> Source:
    """Embeddings with 10 % of the labels moved."""
    rows = np.empty((count, DIM), np.float32)
    noisy, _ = corrupt(Source(torch.from_numpy(rows), fill(rows, classes, seed=1)), "symmetric", rate=0.1, seed=0)
    return noisy


def cleanlab(examples: Source) -> None:
    """With the classifier that log loss chooses on such embeddings, without the time of choosing."""
    confident_learning(examples, out_of_fold(regression("unit norm", 10.0), examples))


def open_csv(count: int) -> str:
    """The ratio of `open_source` to `pandas.read_csv`: six numbers, a text and a class per row; medians of three."""
    import pandas

    numbers = np.random.default_rng(0).standard_normal((count, 6)).round(5)
    frame = pandas.DataFrame(numbers).add_prefix("x")
    frame["text"], frame["label"] = [f'row {row}, with "quotes"' for row in range(count)], ["cat", "dog"] * (count // 2)
    with tempfile.TemporaryDirectory() as folder:
        frame.to_csv(path := Path(folder, "rows.csv"), index=False)
        pairs = [(time_cpu(lambda: open_source(path))[1], time_cpu(lambda: pandas.read_csv(path))[1]) for _ in range(3)]
    ours, theirs = (median(times) for times in zip(*pairs, strict=True))
    return f"a CSV of {count:,} rows: opened in {ours:.2f} CPU s, {ours / theirs:.0f} × pandas.read_csv"


def copy_noisily(rows: Any, index: Any, seed: int) -> Any:
    """These rows with a little noise."""
    noise = np.random.default_rng(seed).standard_normal((len(index), DIM), np.float32)
    return rows[index] + NOISE / DIM**0.5 * noise


def recall(flagged: Any, planted: Any) -> str:
    """The share of the planted that is flagged, and the number of others, in words."""
    others = int(flagged.sum()) - int(flagged[planted].sum())
    return f"{100 * flagged[planted].mean():.1f} % of {len(planted):,} found, and {others:,} others"


def audit_million(quick: bool) -> None:
    """Plant near duplicates, outliers and leaks, audit, and count the hits."""
    count, other_count = (110_000, 5_000) if quick else (1_000_000, 100_000)
    copies, strange, leaked = count // 200, count // 1000, other_count // 50
    with tempfile.TemporaryDirectory() as folder:
        rows, other = (
            np.lib.format.open_memmap(Path(folder, f"{n}.npy"), "w+", np.float32, (n, DIM))
            for n in (count, other_count)
        )
        train = Source(Mapped(rows), fill(rows, CLASSES, seed=1), name="clouds")
        test = Source(Mapped(other), fill(other, CLASSES, seed=2), name="test")
        order = np.random.default_rng(0).permutation(count)
        ends = np.cumsum([copies, copies, strange, leaked])
        originals, places, outliers, leaks, _ = np.split(order, ends)
        rows[places] = copy_noisily(rows, originals, 1)
        far = np.random.default_rng(2).standard_normal((strange, DIM), np.float32)
        rows[outliers] = far / np.linalg.norm(far, axis=1, keepdims=True)
        other[: len(leaks)] = copy_noisily(rows, leaks, 3)
        start = time.perf_counter()
        audited, cpu = time_cpu(partial(audit, train, against=test, quiet=True))
        findings, wall = audited.findings, time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert findings.duplicate_of is not None
    assert findings.outlier_score is not None
    times = f"{cpu:.0f} CPU s, {wall:.0f} s, peak {peak:.1f} GiB"
    print(f"{count:,} × {DIM} against {other_count:,}: {times}")
    pairs = np.concatenate([originals, places])
    print(f"near duplicates: {recall(findings.duplicate_of >= 0, pairs)}")
    print(f"outliers: {recall(findings.outlier_score > 1, outliers)}")
    print(f"leaks: {recall(findings.in_other_split != '', leaks)}", flush=True)


def main(quick: bool = False) -> None:
    """One line per size, then the million rows."""
    audit(clouds(500, 5), quiet=True)  # warms up
    lines = [["examples × classes", "audit", "cleanlab", "ratio"]]
    for count, classes in SIZES[:1] if quick else SIZES:
        examples = clouds(count // 10 if quick else count, classes)
        _, ours = time_cpu(partial(audit, examples, quiet=True))
        _, theirs = time_cpu(partial(cleanlab, examples))
        lines.append([f"{len(examples):,} × {classes:,}", f"{ours:.1f}s", f"{theirs:.1f}s", f"{ours / theirs:.2f}"])
    print(f"\n{format_table(lines)}\n")
    print(f"{open_csv(20_000 if quick else 200_000)}\n", flush=True)
    audit_million(quick)
