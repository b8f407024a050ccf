"""What EVON's basis costs: a training step and the state, against IVON, AdamW and SOAP.

SOAP is that of `pytorch-optimizer`. It gets EVON's longest side and frequency.
"""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from pytorch_optimizer import SOAP
from torch import Tensor, nn

from bayesmooth.models import MODELS
from bayesmooth.optim import EVON, IVON
from benchmarks.harness import print_ratios, take_step, time_cpu
from benchmarks.optim import ESS, loss_of, ours

EVERY, LONGEST = 10, 4096
MAKERS: dict[str, Callable[[list[nn.Parameter], int], torch.optim.Optimizer]] = {
    "AdamW": lambda p, every: torch.optim.AdamW(p),
    "IVON": lambda p, every: ours(p),
    "EVON": lambda p, every: EVON(p, 0.1, ESS, seed=0, basis_every=every, max_side=LONGEST),
    "SOAP": lambda p, every: SOAP(p, precondition_frequency=every, max_precondition_dim=LONGEST),
}


def compare_steps(
    title: str, make: Callable[[], nn.Module], x: Tensor, cycles: int, every: int = EVERY
) -> None:
    """Processor time of a step, in turns: of the first one, and the mean with one new basis in EVERY steps.

    A cycle has one new basis in `every` steps. Steps with a new basis and the others are averaged apart.
    """
    labels = torch.randint(10, (len(x),))
    models = {name: make() for name in MAKERS}
    optimizers = {name: MAKERS[name](list(m.parameters()), every) for name, m in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(cycles * every + 1):
        for name, model in models.items():
            loss = partial(loss_of, model, x, labels)
            times[name].append(time_cpu(partial(take_step, optimizers[name], loss))[1])
    means, first = {}, {}
    for name, (once, *seconds) in times.items():
        bases = seconds[every - 2 :: every]  # steps every, 2 every, … of the run
        others = [t for at, t in enumerate(seconds) if (at + 2) % every]
        means[name] = ((EVERY - 1) * fmean(others) + fmean(bases)) / EVERY
        first[name] = round(once / means["AdamW"], 1)
    ratios = {name: mean / means["AdamW"] for name, mean in means.items()}
    print_ratios(f"training step, {title}", ratios)
    print("the first step, in steps of AdamW:", first)
    sizes = {name: round(state_size(models[name], each), 2) for name, each in optimizers.items()}
    print("state in sizes of the weights:", sizes, flush=True)


def state_size(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Bytes of the state, and of IVON's buffer for the other of mean and sample, over those of the weights."""
    weights = count_bytes(list(model.parameters()))
    buffers = weights if isinstance(optimizer, IVON) else 0
    return (buffers + count_bytes(list(optimizer.state.values()))) / weights


def count_bytes(value: Any) -> int:
    """Of all tensors within lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    inside = value.values() if isinstance(value, dict) else value
    return sum(map(count_bytes, inside)) if isinstance(value, dict | list | tuple) else 0


def main(quick: bool = False) -> None:
    """An MLP and a ResNet-18."""
    features, pictures = torch.randn(50, 256), torch.randn(50, 3, 32, 32)
    mlp = partial(MODELS["mlp"], input_shape=(256,), hidden=(256, 256), batchnorm=True)
    compare_steps("MLP 256-256-256-10, batch 50", mlp, features, cycles=2 if quick else 20)
    cycles = 1 if quick else 4
    compare_steps("ResNet-18, batch 50", MODELS["resnet18"], pictures, cycles, every=3)
