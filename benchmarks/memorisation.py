"""What is memorised depends on noise/√(lr · epochs): the law behind `hess_init="auto"`.

    python -m benchmarks memorisation

Digits with 40 % wrong labels, an MLP with batch norm. Rows are C/√(lr · epochs), C the relative noise of
`bayesmooth.optim.auto`; columns are lengths and learning rates. Along a row the figures should agree.
"""

from math import sqrt

import torch
from torch import nn
from torch.optim import Optimizer

from bayesmooth import progress
from bayesmooth.losses import CrossEntropy
from bayesmooth.optim.auto import relative_noise
from benchmarks.regret import Method, ivon, run
from benchmarks.regret_tasks import Cell

RATIOS = (0.25, 0.35, 0.5, 0.7, 1.0)
LENGTHS = ((15, 0.1), (60, 0.05), (60, 0.1), (60, 0.2))  # epochs, lr


def with_noise(ratio: float, lr: float) -> Method:
    """IVON with C = ratio · √(lr · epochs)."""

    def make(weights: list[nn.Parameter], count: int, epochs: int, steps: int) -> Optimizer:
        noise = ratio * sqrt(lr * epochs) / relative_noise(weights, lr, epochs)
        return ivon("auto", lr=lr, noise=noise)(weights, count, epochs, steps)

    return Method(make, CrossEntropy())


def main(quick: bool = False) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    jobs = [
        (ratio, epochs, lr)
        for ratio in RATIOS
        for epochs, lr in LENGTHS
        if not quick or epochs < 60
    ]
    found = {}
    for ratio, epochs, lr in progress.track(jobs, description="memorisation"):
        cell = Cell("digits", "mlp+bn", "symmetric", epochs)
        (found[ratio, epochs, lr],) = run(cell, "IVON", with_noise(ratio, lr))
    columns = list(dict.fromkeys((epochs, lr) for _, epochs, lr in jobs))
    titles = [f"{epochs} epochs, lr {lr:g}" for epochs, lr in columns]
    print("\nWrong labels memorised (test accuracy), %\nnoise  " + "  ".join(titles))
    for ratio in RATIOS:
        rows = [found[ratio, epochs, lr] for epochs, lr in columns]
        cells = [f"{row['memorised']:.0f} ({row['accuracy']:.0f})" for row in rows]
        print(
            f"{ratio:5.2f}  "
            + "  ".join(c.rjust(len(t)) for c, t in zip(cells, titles, strict=True))
        )


if __name__ == "__main__":
    main()
