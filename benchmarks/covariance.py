"""Why a fixed covariance is level with the learned one, or ahead of it: does h learn a shape, or does σ only grow?

    python -m benchmarks.covariance > results/choices/covariance.txt

Digits, symmetric noise 40 %, an MLP of 128-128 with batch norm, 40 epochs, five seeds. `learned` has β₂ = 1 − 2/T,
`fixed` β₂ = 1. Two variants lie between: `floor` keeps h from falling below its start, and `shape` rescales h + δ after
every step, so that the mean of σ² stays what it was and only its shape over the weights is learned.
"""

from collections.abc import Callable, Iterator
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.lab import Recipe, prepare
from bayesmooth.lab.loop import Loop

STEPS = 40 * 23
HESSIANS, SEEDS = (0.03, 0.1, 0.3), range(5)
Change = Callable[[Optimizer], None]


def main() -> None:
    """Print one row per variant and h₀."""
    torch.set_num_threads(1)
    print(
        "variant   h₀    averaged      at the mean   memorised     noisy validation   σ at the end"
    )
    for name, (beta2, change) in VARIANTS.items():
        for h0 in HESSIANS:
            rows = [measure(h0, beta2, change, seed) for seed in SEEDS]
            cells = [
                f"{mean(column):.1f} ± {stdev(column):.1f}" for column in zip(*rows, strict=True)
            ]
            print(f"{name:8}  {h0:<4}  " + "   ".join(f"{cell:11}" for cell in cells), flush=True)


def measure(h0: float, beta2: float, change: Change, seed: int) -> list[float]:
    """Accuracies in per cent, and how often its start the standard deviation is at the end."""
    recipe = _recipe(h0, beta2, seed)
    loop = Loop(recipe, prepare(recipe), torch.device("cpu"))
    *_, (record, _, _) = loop.epochs(after_step=lambda: change(loop.optimizer))
    names = ("averaged.accuracy", "test.accuracy", "memorised", "averaged.validation.accuracy")
    growth = [((h0 + 1e-3) / (h + 1e-3)).sqrt().mean().item() for h in _hessians(loop.optimizer)]
    return [*(100 * record[name] for name in names), mean(growth)]


def _recipe(h0: float, beta2: float, seed: int) -> Recipe:
    own = {"name": "ivon", "lr": 0.2, "weight_decay": 1e-3, "hess_init": h0, "beta2": beta2}
    return Recipe.from_dict(
        {
            "data": {"name": "digits", "validation": 0.2},
            "corruption": {"name": "symmetric", "rate": 0.4},
            "model": {"name": "mlp", "hidden": [128, 128], "batchnorm": True},
            "optimizer": own,
            "schedule": {"name": "cosine", "warmup": 0.05},
            "train": {"epochs": 40, "seed": seed},
            "evaluate": {"every": 40},
        }
    )


def _hessians(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            yield optimizer.state[weight]["hess"]


def _keep_floor(optimizer: Optimizer) -> None:
    for h in _hessians(optimizer):
        h.clamp_(min=optimizer.param_groups[0]["hess_init"])


def _keep_size(optimizer: Optimizer) -> None:
    start, δ = (optimizer.param_groups[0][key] for key in ("hess_init", "weight_decay"))
    variances = torch.cat([1 / (h + δ).flatten() for h in _hessians(optimizer)])
    factor = float(variances.mean()) * (start + δ)
    for h in _hessians(optimizer):
        h.add_(δ).mul_(factor).sub_(δ).clamp_(min=1e-8)


def _change_nothing(optimizer: Optimizer) -> None:
    pass


VARIANTS: dict[str, tuple[float, Change]] = {
    "learned": (1 - 2 / STEPS, _change_nothing),
    "fixed": (1.0, _change_nothing),
    "floor": (1 - 2 / STEPS, _keep_floor),
    "shape": (1 - 2 / STEPS, _keep_size),
}


if __name__ == "__main__":
    main()
