"""How well the audit finds errors that are known, beside what others find in the same data."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmooth.audit.api import audit
from bayesmooth.audit.sources import How, gather
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.lab import Run
from bayesmooth.metrics import auroc, average_precision, precision_at_k
from bayesmooth.optional import require
from benchmarks.competitors import COMPETITORS

OURS: dict[str, dict[str, Any]] = {
    "bayesmooth": {},
    "bayesmooth, leave-one-out": {"out_of_sample": "loo"},
    "bayesmooth, 5 folds": {"out_of_sample": "folds", "folds": 5},
}


@dataclass(frozen=True)
class Row:
    """How one method did; `precision` is among as many as there are true errors."""

    method: str
    ap: float
    auroc: float
    precision: float
    seconds: float
    """Wall-clock."""
    cpu_seconds: float


def benchmark(
    source: Examples | Run, *, data_dir: str | Path | None = None, quiet: bool = False
) -> Iterator[Row]:
    """A row for each method, ours first, as they finish.

    A run is compared with its own in-sample loss; cleanlab would have to train it five times more.
    """
    examples = source if isinstance(source, Examples) else source.examples("train", data_dir)
    wrong = known_errors(examples)
    where = {} if isinstance(source, Examples) else {"data_dir": data_dir}
    jobs: dict[str, Callable[[], Any]] = {
        name: _ours(source, {**settings, **where, "quiet": quiet})
        for name, settings in OURS.items()
        if isinstance(source, Examples) or "folds" not in settings
    }
    if isinstance(source, Examples):
        jobs |= {name: _theirs(method, source) for name, method in COMPETITORS.items()}
        for module in ("cleanlab.filter", "sklearn.linear_model"):
            require(module, extra="cleanlab")  # loading them is not their methods' time
    else:
        jobs["in-sample loss"] = lambda: _loss_at_mean(source, data_dir, quiet)
    for name, job in jobs.items():
        yield measure(name, job, wrong)


def measure(name: str, job: Callable[[], Any], wrong: Tensor) -> Row:
    """Time a method and hold its scores against the errors."""
    wall, cpu = time.perf_counter(), time.process_time()
    scores = torch.as_tensor(job())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = int(wrong.sum())
    return Row(
        name,
        average_precision(scores, wrong),
        auroc(scores, wrong),
        precision_at_k(scores, wrong, count),
        wall,
        cpu,
    )


def known_errors(examples: Examples) -> Tensor:
    """Which labels are wrong, or an error where that is not known."""
    if examples.clean_labels is None:
        raise InputError(
            f"{examples.name}: --benchmark needs the true labels; add clean_labels (.npz) or a "
            "column clean_label, or corrupt a clean set first"
        )
    wrong = examples.labels != examples.clean_labels
    if not bool(wrong.any()):
        raise InputError(f"{examples.name}: no label differs from its clean label; nothing to find")
    return wrong


def print_table(rows: Iterator[Row] | Sequence[Row]) -> None:
    """Print rows as they come."""
    print(f"{'method':26} {'AP':>6} {'AUROC':>6} {'P@errors':>8} {'seconds':>8} {'CPU s':>7}")
    for row in rows:
        numbers = f"{row.ap:6.3f} {row.auroc:6.3f} {row.precision:8.3f}"
        print(f"{row.method:26} {numbers} {row.seconds:8.1f} {row.cpu_seconds:7.1f}", flush=True)


def _ours(source: Examples | Run, settings: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: (
        (
            source.audit(**settings) if isinstance(source, Run) else audit(source, **settings)
        ).disagreement
    )


def _loss_at_mean(run: Run, data_dir: str | Path | None, quiet: bool) -> Tensor:
    """1 − p_y of the mean of the posterior, which ranks as −log p_y does."""
    evidence = gather(run.model(), run.posterior(), run.examples("train", data_dir)).evidence(
        How(quiet=quiet)
    )
    at_mean = evidence.probabilities + evidence.signed_noise()
    return 1 - at_mean.gather(1, evidence.labels[:, None]).squeeze(1)


def _theirs(method: Callable[[Examples], Tensor], examples: Examples) -> Callable[[], Any]:
    return lambda: method(examples)
