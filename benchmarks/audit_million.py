"""A million embeddings that need not fit in memory: planted near duplicates, outliers and leaks between splits.

    python -m benchmarks audit_million

The rows (1,000,000 × 384 float32, and another split of 100,000) lie in two .npy files in a temporary folder and are
mapped from there. Prints CPU time, peak memory and what was found.
"""

import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.audit.api import audit
from bayesmooth.data import Labels, Source
from bayesmooth.data.source import Mapped
from benchmarks.audit_speed import DIM, draw_centres, draw_rows
from benchmarks.harness import time_cpu

CLASSES, PIECE, NOISE = 10, 50_000, 0.02
NAMES = tuple(map(str, range(CLASSES)))


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


def main(quick: bool = False) -> None:
    """Plant, audit, count."""
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
        train, test = (
            Source(Mapped(each), Labels(torch.arange(len(each)) % CLASSES, NAMES), name=name)
            for name, each in (("clouds", rows), ("test", other))
        )
        start = time.perf_counter()
        made, cpu = time_cpu(partial(audit, train, against=test, quiet=True))
        found, wall = made.findings, time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert found is not None
    assert found.duplicate_of is not None
    assert found.outlier_score is not None
    times = f"{cpu:.0f} CPU s, {wall:.0f} s, peak {peak:.1f} GiB"
    print(f"{count:,} × {DIM} against {other_count:,}: {times}")
    pairs = np.concatenate([originals, places])
    print(f"near duplicates: {recall(found.duplicate_of >= 0, pairs)}")
    print(f"outliers: {recall(found.outlier_score > 1, outliers)}")
    print(f"leaks: {recall(found.in_other_split != '', leaks)}", flush=True)
