"""The audit's CPU time against cleanlab's with one tuned classifier, five folds: one thread, 384 dimensions.

python -m benchmarks audit_speed
"""

from functools import partial

import torch
from torch import Tensor

from bayesmooth.audit.api import audit
from bayesmooth.data import Labels, Source
from benchmarks.competitors import confident_learning, out_of_fold, regression
from benchmarks.harness import time_cpu

DIM = 384
SPECTRUM = torch.arange(1, DIM + 1) ** -0.25  # decays, as that of sentence encoders
SIZES = ((10_000, 10), (10_000, 77), (10_000, 100), (50_000, 10), (10_000, 1_000))
ALONE = 1_000  # classes from which cleanlab is not waited for


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


def main(quick: bool = False) -> None:
    """One line per size."""
    audit(clouds(500, 5), quiet=True)  # warms up
    print(f"\n{'examples × classes':>20} {'audit':>8} {'cleanlab':>9}   ratio   goal")
    for count, classes in SIZES[:1] if quick else SIZES:
        examples = clouds(count // 10 if quick else count, classes)
        _, ours = time_cpu(partial(audit, examples, quiet=True))
        name = f"{len(examples):,} × {classes:,}"
        if classes >= ALONE:
            print(f"{name:>20} {ours:7.1f}s {'':>9}           ≤ 180 s")
            continue
        _, theirs = time_cpu(partial(cleanlab, examples))
        print(f"{name:>20} {ours:7.1f}s {theirs:8.1f}s {ours / theirs:7.2f}   ≤ 1", flush=True)
