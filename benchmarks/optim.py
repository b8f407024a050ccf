"""IVON's step against torch's optimizers and the public IVON package, a whole training step against SGD's, and label
noise against forward passes.

Ratios are of processor time on one thread. All are timed in turn, round after round: a busy machine slows them alike.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import ivon
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.labelnoise import label_noise
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON, SAM
from bayesmooth.posterior import Posterior
from benchmarks.harness import time_cpu

ESS = 50_000.0
SAMPLES, DRAWS, BATCH = 16, 8, 256  # of the label noise
Jobs = Mapping[str, Callable[[], object]]


# ---- timing ----


def measure_seconds(jobs: Jobs, repeats: int) -> dict[str, float]:
    """Median seconds of each job; one round to warm up, then `repeats` rounds over all of them."""
    rounds = [{name: time_cpu(job)[1] for name, job in jobs.items()} for _ in range(repeats + 1)]
    return {name: median(each[name] for each in rounds[1:]) for name in jobs}


def print_ratios(title: str, ratios: Mapping[str, float]) -> None:
    width = max(len(name) for name in ratios)
    lines = (f"{name:{width}}  {ratio:6.2f}×" for name, ratio in ratios.items())
    print("", title, *lines, sep="\n", flush=True)


def compare_seconds(title: str, jobs: Jobs, repeats: int) -> None:
    """Print each job's median time over that of the first one."""
    seconds = measure_seconds(jobs, repeats)
    first = next(iter(seconds.values()))
    print_ratios(title, {name: each / first for name, each in seconds.items()})


# ---- the timed jobs ----


def parameters(shapes: list[torch.Size]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in shapes]
    for param in params:
        param.grad = 0.01 * torch.randn(param.shape, generator=generator)
    return params


def by_context(optimizer: IVON) -> Callable[[], None]:
    def step() -> None:
        with optimizer.sampled_params(train=True):
            pass
        optimizer.step()

    return step


def by_closure(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    loss = torch.zeros(())
    return lambda: optimizer.step(lambda: loss)  # type: ignore[arg-type, return-value]


def ours(params: list[nn.Parameter], **settings: Any) -> IVON:
    return IVON(params, 0.1, ESS, seed=0, **settings)


# One optimizer step each: sampling and update, gradients given.
STEPS: dict[str, Callable[[list[nn.Parameter]], Callable[[], object]]] = {
    "AdamW fused": lambda params: torch.optim.AdamW(params, fused=True).step,
    "AdamW foreach": lambda params: torch.optim.AdamW(params, foreach=True).step,
    "IVON step(closure)": lambda params: by_closure(ours(params)),
    "IVON context + step": lambda params: by_context(ours(params)),
    "IVON plain torch": lambda params: by_closure(ours(params, fused=False)),
    "public IVON": lambda params: by_context(ivon.IVON(params, 0.1, ESS)),
}


def compare_steps(shapes: list[torch.Size], names: Iterable[str], repeats: int) -> None:
    size = sum(shape.numel() for shape in shapes)
    jobs = {name: STEPS[name](parameters(shapes)) for name in names}
    compare_seconds(f"sample + update, {size / 1e6:.3g}M weights in {len(shapes)} tensors", jobs, repeats)


def make_training_step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[], object]:
    """A step of a ResNet-18, whose optimizer calls the loss as often as it needs."""
    x, y = torch.randn(50, 3, 32, 32), torch.randint(10, (50,))
    model = MODELS["resnet18"](num_classes=10)
    optimizer = make(list(model.parameters()))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        return loss

    return partial(optimizer.step, closure)


def compare_training_steps(repeats: int) -> None:
    jobs = {
        "SGD": make_training_step(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        "AdamW": make_training_step(torch.optim.AdamW),
        "IVON": make_training_step(ours),
        "SAM": make_training_step(lambda p: SAM(p, torch.optim.SGD, lr=0.05, momentum=0.9)),
    }
    compare_seconds("training step, ResNet-18, batch 50", jobs, repeats)


def print_memory() -> None:
    """Peak resident memory over that of weights and gradients, in a process of its own."""
    print("\npeak memory beyond weights and gradients, in sizes of the weights")
    for name in ("AdamW fused", "IVON step(closure)", "IVON context + step", "public IVON"):
        code = f"from benchmarks.optim import print_peak; print_peak({name!r})"
        printed = subprocess.check_output([sys.executable, "-c", code], text=True)
        print(f"{name:20} {printed.strip()}", flush=True)


def print_peak(name: str) -> None:
    """Print the growth of the peak over four steps at 40M weights."""
    STEPS[name](parameters([torch.Size([1000])]))()  # one-time loading is not measured
    params = parameters([torch.Size([1_000_000])] * 40)  # the baseline: weights and gradients
    before = read_peak()
    job = STEPS[name](params)
    for _ in range(4):
        job()
    print(f"{(read_peak() - before) * 1024 / (4 * 40_000_000):.2f}")


def read_peak() -> int:
    """Kilobytes at the peak (Linux); `getrusage` would hand a child the peak of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0])


def compare_label_noise(name: str, shape: tuple[int, ...], count: int, repeats: int) -> None:
    """A sample, and a linearised draw, in forward passes over the same inputs, under σ = 0.01."""
    model, inputs = MODELS[name](num_classes=10, input_shape=shape).eval(), torch.randn(count, *shape)
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    posterior = Posterior(mean, {name: torch.full_like(p, 0.01) for name, p in mean.items()})
    noise = partial(label_noise, model, posterior, inputs, samples=SAMPLES, batch_size=BATCH, quiet=True)

    @torch.no_grad()
    def forward() -> None:
        for batch in torch.split(inputs, BATCH) * SAMPLES:
            model(batch)

    jobs: Jobs = {"forward": forward, "noise": noise, "linearised": partial(noise, linearised=DRAWS)}
    seconds = measure_seconds(jobs, repeats)
    draws = (seconds["linearised"] - seconds["noise"]) / seconds["forward"]
    ratios = {"a sample": seconds["noise"] / seconds["forward"], "a linearised draw": draws * SAMPLES / DRAWS}
    title = f"label noise in forward passes, {name} on {count} × {shape}"
    print_ratios(title, ratios)


def main(quick: bool = False) -> None:
    """All of it."""
    large = [p.shape for p in MODELS["resnet34"](num_classes=10).parameters()]
    compare_steps(large, STEPS, repeats=5 if quick else 21)
    small = [torch.Size(s) for s in [(100, 90), (90,), (90, 100), (100,)] * 2 + [(100, 140), (9,)]]
    fast = [name for name in STEPS if name not in ("AdamW fused", "IVON plain torch")]
    compare_steps(small, fast, repeats=100 if quick else 500)
    print_memory()
    compare_training_steps(repeats=3 if quick else 9)
    compare_label_noise("cnn", (1, 28, 28), 512, repeats=3 if quick else 7)
    compare_label_noise("resnet_small", (3, 32, 32), 256, repeats=3 if quick else 7)
