"""What EVON's basis costs: a training step and the state, against IVON, AdamW and SOAP.

SOAP is that of `pytorch-optimizer`, where it is installed; it gets EVON's longest side and frequency.
"""

from collections.abc import Callable
from statistics import fmean
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.models import MODELS
from bayesmooth.optim import EVON, IVON
from benchmarks.harness import table

ESS, EVERY, LONGEST = 50_000.0, 10, 4096

try:
    from pytorch_optimizer import SOAP
except ImportError:
    SOAP = None

Maker = Callable[[list[nn.Parameter], int], torch.optim.Optimizer]
NARROW: dict[str, Any] = {"state_dtype": "bfloat16"}
MAKERS: dict[str, Maker] = {
    "AdamW": lambda p, every: torch.optim.AdamW(p),
    "IVON": lambda p, every: IVON(p, 0.1, ESS, seed=0),
    "IVON in 16 bits": lambda p, every: IVON(p, 0.1, ESS, seed=0, **NARROW),
    "EVON": lambda p, every: EVON(p, 0.1, ESS, seed=0, basis_every=every, max_side=LONGEST),
}
if SOAP is not None:
    MAKERS["SOAP"] = lambda p, every: SOAP(
        p, precondition_frequency=every, max_precondition_dim=LONGEST
    )


def compare_steps(
    title: str, make: Callable[[], nn.Module], x: Tensor, cycles: int, every: int = EVERY
) -> None:
    """Processor time of a step, in turns: of the first one, and the mean with one new basis in EVERY steps.

    A cycle has one new basis in `every` steps; these and the others are averaged apart.
    """
    labels = torch.randint(10, (len(x),), device="cpu")
    pairs = {name: build(make, maker, every) for name, maker in MAKERS.items()}
    times: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(cycles * every + 1):
        for name, (model, optimizer) in pairs.items():
            start = process_time()
            optimizer.step(closure_of(model, optimizer, x, labels))  # type: ignore[arg-type]
            times[name].append(process_time() - start)
    means, first = {}, {}
    for name, (once, *seconds) in times.items():
        bases = seconds[every - 2 :: every]  # steps every, 2 every, … of the run
        others = [t for at, t in enumerate(seconds) if (at + 2) % every]
        means[name] = ((EVERY - 1) * fmean(others) + fmean(bases)) / EVERY
        first[name] = round(once / means["AdamW"], 1)
    table(f"training step, {title}", {name: at / means["AdamW"] for name, at in means.items()})
    print("the first step, in steps of AdamW:", first)
    sizes = {name: round(state_size(*pair), 2) for name, pair in pairs.items()}
    print("state in sizes of the weights:", sizes, flush=True)


def build(
    make: Callable[[], nn.Module], maker: Maker, every: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = make()
    return model, maker(list(model.parameters()), every)


def closure_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        torch.autograd.backward(loss)
        return loss

    return closure


def state_size(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Bytes of the state, and of IVON's buffer for the other of mean and sample, over those of the weights."""
    weights = sum(p.numel() * p.itemsize for p in model.parameters())
    buffers = weights if isinstance(optimizer, IVON) else 0
    return (buffers + sum(count_bytes(s) for s in optimizer.state.values())) / weights


def count_bytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    inside = value.values() if isinstance(value, dict) else value
    return sum(map(count_bytes, inside)) if isinstance(value, dict | list | tuple) else 0  # type: ignore[call-overload]


def main(quick: bool = False) -> None:
    """An MLP and a ResNet-18."""
    torch.set_num_threads(1)
    if SOAP is None:
        print("without SOAP: pip install pytorch-optimizer")
    features, pictures = torch.randn(50, 256), torch.randn(50, 3, 32, 32)

    def mlp() -> nn.Module:
        return MODELS["mlp"](num_classes=10, input_shape=(256,), hidden=(256, 256), batchnorm=True)

    compare_steps("MLP 256-256-256-10, batch 50", mlp, features, cycles=2 if quick else 20)
    compare_steps(
        "ResNet-18, batch 50",
        lambda: MODELS["resnet18"](num_classes=10),
        pictures,
        cycles=1 if quick else 4,
        every=3,
    )
