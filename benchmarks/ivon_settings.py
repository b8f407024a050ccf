"""What one wrong setting does to IVON, and what its figures look like then: where the limits of its warnings come from.

A multilayer perceptron on scikit-learn's digits with 40 % wrong labels, with and without batch normalisation.
"""

import warnings
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bayesmooth.optim import IVON

TRAIN, WIDTH = 1300, 128
GOOD = {"lr": 0.1, "ess": float(TRAIN), "hess_init": 0.5, "weight_decay": 1e-4, "seed": 0}
CHANGES: list[dict[str, Any]] = [
    {},
    {"lr": 0.001},
    {"lr": 1.0},
    {"lr": 3.0},
    {"weight_decay": 0.01},
    {"weight_decay": 0.1},
    {"beta2": 0.99},
    {"beta2": 0.9},
    {"ess": TRAIN / 10},
    {"hess_init": 0.1},
    {"hess_init": 0.05},
    {"hess_init": 0.01},
]


def digits() -> tuple[Tensor, Tensor]:
    """Standardised inputs in a random order; of the first 1,300 labels 40 % are wrong."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    inputs, labels = x[order].float() / 16, y[order].long()
    flip = torch.rand(TRAIN, generator=generator) < 0.4
    shift = torch.randint(1, 10, (int(flip.sum()),), generator=generator)
    labels[:TRAIN][flip] = (labels[:TRAIN][flip] + shift) % 10
    return (inputs - inputs.mean(0)) / (inputs.std(0) + 0.1), labels


def network(norm: bool) -> nn.Sequential:
    """Two hidden layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for size in (64, WIDTH):
        layers += [nn.Linear(size, WIDTH), *([nn.BatchNorm1d(WIDTH)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def run(norm: bool, steps: int, **change: Any) -> tuple[float, float, float, list[str]]:
    """Accuracy on clean data, σ over the weights at the start and at the end, and the warnings."""
    x, y = digits()
    model = network(norm)
    settings = {**GOOD, "beta2": 1 - 2 / steps, **change}
    optimizer = IVON(model.parameters(), **settings)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(1)
    start = median(optimizer.diagnostics()["layers"].values())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            rows = torch.randint(TRAIN, (50,), generator=generator)

            def closure(rows: Tensor = rows) -> Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                torch.autograd.backward(loss)
                return loss

            optimizer.step(closure)
            rates.step()
    with torch.no_grad():
        model(x[:TRAIN])
        accuracy = (model.eval()(x[TRAIN:]).argmax(1) == y[TRAIN:]).float().mean()
    end = median(optimizer.diagnostics()["layers"].values())
    return float(accuracy), start, end, [str(w.message) for w in caught]


def main(quick: bool = False) -> None:
    """One row per setting and kind of network."""
    steps = 200 if quick else 1200
    print(
        f"\n{'changed':24} {'batch norm':10} {'accuracy':>8} {'σ/w start':>9} {'end':>6}  warning"
    )
    for norm in (True, False):
        for change in CHANGES[:2] if quick else CHANGES:
            accuracy, start, end, found = run(norm, steps, **change)
            name = ", ".join(f"{key}={value:g}" for key, value in change.items()) or "nothing"
            told = "; ".join(message.split(": ")[-1] for message in found) or "–"
            print(
                f"{name:24} {norm!s:10} {accuracy:8.1%} {start:9.2f} {end:6.2f}  {told}", flush=True
            )
