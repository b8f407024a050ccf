"""The audit's CPU time against cleanlab's with one tuned classifier, five folds; and a million rows on the disk.

    python -m benchmarks audit_speed

The million embeddings (× 384 float32, and another split of 100,000) are mapped from two .npy files in a temporary
folder, with near duplicates, outliers and leaks between the splits.
"""

import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit import audit
from bayesmooth.data import Labels, Source
from bayesmooth.data.source import Mapped
from benchmarks.competitors import confident_learning, out_of_fold, regression
from benchmarks.harness import time_cpu

DIM = 384
SPECTRUM = torch.arange(1, DIM + 1) ** -0.25  # decays, as that of sentence encoders
SIZES = ((10_000, 10), (10_000, 77), (10_000, 100), (50_000, 10), (10_000, 1_000))
ALONE = 1_000  # classes from which cleanlab is not waited for
CLASSES, PIECE, NOISE = 10, 50_000, 0.02  # of the million rows


def draw_centres(classes: int, generator: torch.Generator) -> Tensor:
    return SPECTRUM * torch.randn(classes, DIM, generator=generator)


def draw_rows(centres: Tensor, generator: torch.Generator) -> Tensor:
    """One unit embedding around each of these centres."""
    rows = centres + 2.0 * SPECTRUM * torch.randn(len(centres), DIM, generator=generator)
    return torch.nn.functional.normalize(rows, dim=1)


def clouds(count: int, classes: int) -> Source:
    """Unit embeddings around a centre per class, with 10 % of the labels moved."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    rows = draw_rows(draw_centres(classes, generator)[labels], generator)
    moved = torch.rand(count, generator=generator) < 0.1
    given = torch.where(moved, torch.randint(classes, (count,), generator=generator), labels)
    return Source(rows, Labels(given, tuple(map(str, range(classes)))), labels, name="clouds")


def cleanlab(examples: Source) -> None:
    """With the classifier that log loss chooses on such embeddings, without the time of choosing."""
    confident_learning(examples, out_of_fold(regression("unit norm", 10.0), examples))


def write_clouds(path: Path, count: int, generator: torch.Generator) -> Any:
    """Unit embeddings around a centre per class in a file, a piece at a time; row i has the class i mod 10."""
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, DIM))
    centres = draw_centres(CLASSES, torch.Generator().manual_seed(0))
    for index in torch.split(torch.arange(count), PIECE):
        rows[index.numpy()] = draw_rows(centres[index % CLASSES], generator).numpy()
    return rows


def copy_noisily(rows: Any, index: Any, seed: int) -> Any:
    """These rows with a little noise."""
    noise = np.random.default_rng(seed).standard_normal((len(index), DIM), np.float32)
    return rows[index] + NOISE / DIM**0.5 * noise


def recall(found: Any, planted: Any) -> str:
    """How many of the planted were found, and how many others."""
    others = int(found.sum()) - int(found[planted].sum())
    return f"{100 * found[planted].mean():.1f} % of {len(planted):,} found, and {others:,} others"


def audit_million(quick: bool) -> None:
    """Plant near duplicates, outliers and leaks, audit, count what was found."""
    count, other_count = (110_000, 5_000) if quick else (1_000_000, 100_000)
    copies, strange, leaked = count // 200, count // 1000, other_count // 50
    generator = torch.Generator().manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = write_clouds(Path(folder) / "rows.npy", count, generator)
        other = write_clouds(Path(folder) / "other.npy", other_count, generator)
        order = np.random.default_rng(0).permutation(count)
        ends = np.cumsum([copies, copies, strange, leaked])
        originals, places, outliers, leaks, _ = np.split(order, ends)
        rows[places] = copy_noisily(rows, originals, 1)
        far = np.random.default_rng(2).standard_normal((strange, DIM), np.float32)
        rows[outliers] = far / np.linalg.norm(far, axis=1, keepdims=True)
        other[: len(leaks)] = copy_noisily(rows, leaks, 3)
        names = tuple(map(str, range(CLASSES)))
        train, test = (
            Source(Mapped(each), Labels(torch.arange(len(each)) % CLASSES, names), name=name)
            for name, each in (("clouds", rows), ("test", other))
        )
        start = time.perf_counter()
        made, cpu = time_cpu(partial(audit, train, against=test, quiet=True))
        found, wall = made.findings, time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert found.duplicate_of is not None
    assert found.outlier_score is not None
    times = f"{cpu:.0f} CPU s, {wall:.0f} s, peak {peak:.1f} GiB"
    print(f"{count:,} × {DIM} against {other_count:,}: {times}")
    pairs = np.concatenate([originals, places])
    print(f"near duplicates: {recall(found.duplicate_of >= 0, pairs)}")
    print(f"outliers: {recall(found.outlier_score > 1, outliers)}")
    print(f"leaks: {recall(found.in_other_split != '', leaks)}", flush=True)


def main(quick: bool = False) -> None:
    """One line per size, then the million rows."""
    audit(clouds(500, 5), quiet=True)  # warms up
    print("\n| examples × classes | audit | cleanlab | ratio | goal |\n| --- | --- | --- | --- | --- |")
    for count, classes in SIZES[:1] if quick else SIZES:
        examples = clouds(count // 10 if quick else count, classes)
        _, ours = time_cpu(partial(audit, examples, quiet=True))
        beside = ["", "", "≤ 180 s"]
        if classes < ALONE:
            _, theirs = time_cpu(partial(cleanlab, examples))
            beside = [f"{theirs:.1f}s", f"{ours / theirs:.2f}", "≤ 1"]
        cells = (f"{len(examples):,} × {classes:,}", f"{ours:.1f}s", *beside)
        print(f"| {' | '.join(cells)} |", flush=True)
    audit_million(quick)
