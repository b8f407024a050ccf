"""Each loss, forward and backward, against `torch.nn.functional.cross_entropy` at batch 512 and 1,000 classes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.lab.executors import keep_freed_memory
from bayesmooth.losses import ALASCA, LOSSES, Loss
from benchmarks.harness import compare, table

BATCH, CLASSES, EXAMPLES = 512, 1_000, 2_048
GOAL = 3.0


def main(quick: bool = False) -> None:
    """Print the ratios. ALASCA classifies four times, so it stands against four cross-entropies."""
    keep_freed_memory()
    torch.manual_seed(0)
    logits = 3 * torch.randn(BATCH, CLASSES)
    labels = logits.argmax(1)
    labels[: BATCH // 3] = torch.randint(CLASSES, (BATCH // 3,))  # two thirds are predicted right
    extra = {
        "index": torch.randperm(EXAMPLES)[:BATCH],
        "past": logits.flip(1).softmax(1),
        "epoch": 15.0,
    }
    repeats = 15 if quick else 60
    jobs = {"F.cross_entropy": _job(lambda z: F.cross_entropy(z, labels), logits)}
    for name, loss in _losses().items():
        jobs[name] = _job(partial(loss, labels=labels, **extra), logits)
    size = f"batch {BATCH}, {CLASSES:,} classes"
    table(
        f"losses, forward + backward, {size}",
        compare(jobs, baseline="F.cross_entropy", repeats=repeats),
        GOAL,
    )
    ratios = compare(
        _alasca_jobs(logits, labels, extra), baseline="4 × F.cross_entropy", repeats=repeats
    )
    table(f"ALASCA without its convolutions, {size}", ratios, GOAL)


def _losses() -> dict[str, Loss]:
    transition = 0.7 * torch.eye(CLASSES) + 0.3 * torch.rand(CLASSES, CLASSES).softmax(1)
    options: dict[str, dict[str, Any]] = {
        "ols": {"num_classes": CLASSES},
        "loras": {"num_classes": CLASSES},
        "elr": {"num_classes": CLASSES, "num_examples": EXAMPLES},
        "sop": {"num_classes": CLASSES, "num_examples": EXAMPLES},
        "als": {"weight": 0.1},
        "forward_correction": {"transition": transition},
        "backward_correction": {"transition": transition},
    }
    return {name: cls(**options.get(name, {})) for name, cls in LOSSES.items() if cls is not ALASCA}


def _job(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Callable[[], None]:
    def job() -> None:
        torch.autograd.backward(loss(logits.detach().requires_grad_()))

    return job


class _Headless(ALASCA):
    """Takes the logits of its heads as they are given, so that the loss is timed and not the heads."""

    outputs: list[Tensor]

    def _head_outputs(self, features: list[Tensor | None], batch: int) -> list[Tensor]:
        return self.outputs


def _alasca_jobs(
    logits: Tensor, labels: Tensor, extra: dict[str, Any]
) -> dict[str, Callable[[], None]]:
    loss = _Headless(EXAMPLES, CLASSES)

    def fresh() -> list[Tensor]:
        return [logits.detach().requires_grad_() for _ in range(4)]

    def alasca() -> None:
        main, *loss.outputs = fresh()
        torch.autograd.backward(loss(main, labels, **extra))

    def plain() -> None:
        torch.autograd.backward([F.cross_entropy(z, labels) for z in fresh()])

    return {"4 × F.cross_entropy": plain, "alasca": alasca}
