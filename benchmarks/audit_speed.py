"""The audit's CPU time against cleanlab's with one tuned classifier, five folds: one thread, 384 dimensions.

python -m benchmarks audit_speed
"""

import time
from collections.abc import Callable

import torch

from bayesmooth.audit.api import audit
from bayesmooth.data import Examples
from benchmarks.competitors import confident_learning, out_of_fold, regression

DIM = 384
SIZES = ((10_000, 10), (10_000, 77), (10_000, 100), (50_000, 10), (10_000, 1_000))
ALONE = 1_000  # classes from which cleanlab is not waited for


def clouds(count: int, classes: int, seed: int = 0) -> Examples:
    """Unit embeddings around a centre per class, as sentence encoders give, with 10 % of the labels moved."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    scale = torch.arange(1, DIM + 1) ** -0.25  # a decaying spectrum
    centres = scale * torch.randn(classes, DIM, generator=generator)
    rows = centres[labels] + 2.0 * scale * torch.randn(count, DIM, generator=generator)
    moved = torch.rand(count, generator=generator) < 0.1
    given = torch.where(moved, torch.randint(classes, (count,), generator=generator), labels)
    rows = torch.nn.functional.normalize(rows, dim=1)
    return Examples(rows, given, tuple(map(str, range(classes))), labels, name="clouds")


def cleanlab(examples: Examples) -> None:
    """With the classifier that log loss chooses on such embeddings, without the time of choosing."""
    confident_learning(examples, out_of_fold(regression("unit norm", 10.0), examples))


def seconds(job: Callable[[], object]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


def main(quick: bool = False) -> None:
    """Print a line per size."""
    torch.set_num_threads(1)
    audit(clouds(500, 5), quiet=True)  # warms up
    print(f"\n{'examples × classes':>20} {'audit':>8} {'cleanlab':>9}   ratio   goal")
    for count, classes in SIZES[:1] if quick else SIZES:
        examples = clouds(count // 10 if quick else count, classes)
        ours = seconds(lambda examples=examples: audit(examples, quiet=True))  # type: ignore[misc]
        name = f"{len(examples):,} × {classes:,}"
        if classes >= ALONE:
            print(f"{name:>20} {ours:7.1f}s {'':>9}           ≤ 180 s")
            continue
        theirs = seconds(lambda examples=examples: cleanlab(examples))  # type: ignore[misc]
        print(f"{name:>20} {ours:7.1f}s {theirs:8.1f}s {ours / theirs:7.2f}   ≤ 1", flush=True)
