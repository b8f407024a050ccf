"""Label noise in forward passes: per sample, per linearised draw, with BatchNorm statistics per draw; MNIST."""

import os
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

from bayesmooth.data import Examples, load
from bayesmooth.labelnoise import label_noise
from bayesmooth.models import MODELS
from bayesmooth.posterior import Posterior
from benchmarks.harness import Jobs, compare, table

SAMPLES, DRAWS, BATCH = 16, 8, 256


def spread(model: nn.Module, std: float = 0.01) -> Posterior:
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


def forward(model: nn.Module, inputs: Tensor, times: int) -> Callable[[], None]:
    @torch.no_grad()
    def job() -> None:
        for _ in range(times):
            for batch in inputs.split(BATCH):  # type: ignore[no-untyped-call]
                model(batch)

    return job


def passes(name: str, shape: tuple[int, ...], count: int, repeats: int) -> None:
    """Both costs in forward passes over the same inputs."""
    model = MODELS[name](num_classes=10, input_shape=shape).eval()
    inputs, q = torch.randn(count, *shape), spread(model)
    noise = partial(label_noise, model, q, inputs, samples=SAMPLES, batch_size=BATCH, quiet=True)
    jobs: Jobs = {
        "forward": forward(model, inputs, SAMPLES),
        "noise": noise,
        "noise, linearised": partial(noise, linearised=DRAWS),
    }
    ratios = compare(jobs, baseline="forward", repeats=repeats)
    costs = {
        f"{SAMPLES} samples, a sample": ratios["noise"],
        "a linearised draw": (ratios["noise, linearised"] - ratios["noise"]) * SAMPLES / DRAWS,
    }
    goals = {f"{SAMPLES} samples, a sample": 1.1, "a linearised draw": 2.5}
    table(f"label noise in forward passes, {name} on {count} × {shape}", costs, goals)


def statistics(count: int, batches: int, repeats: int) -> None:
    """What it costs that the mean and each draw compute their BatchNorm statistics from so many batches."""
    model = MODELS["cnn_batchnorm"](num_classes=10, input_shape=(3, 32, 32)).eval()
    inputs, q = torch.randn(count, 3, 32, 32), spread(model)
    own = list(inputs[: batches * BATCH].split(BATCH))  # type: ignore[no-untyped-call]

    noise = partial(label_noise, model, q, inputs, samples=SAMPLES, quiet=True)
    jobs = {"running statistics": noise, "statistics of each draw": partial(noise, batchnorm=own)}
    ratios = compare(jobs, baseline="running statistics", repeats=repeats)
    shown = f"{len(own) * BATCH:,} images for the statistics of {count:,}"
    table(f"label noise, cnn_batchnorm, {SAMPLES} samples, {shown}", ratios)


def mnist(examples: Examples) -> None:
    """Every training image, 16 samples, beside as many bare forward passes."""
    model = MODELS["cnn"](num_classes=10).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wall, cpu = perf_counter(), process_time()
    label_noise(model, spread(model), examples, samples=SAMPLES, batch_size=BATCH, quiet=True)
    noise = perf_counter() - wall, process_time() - cpu
    inputs = examples.batch(torch.arange(len(examples)))
    wall, cpu = perf_counter(), process_time()
    forward(model, inputs, SAMPLES)()
    bare = perf_counter() - wall, process_time() - cpu
    print(f"\n{len(examples):,} MNIST images × {SAMPLES} samples, small network")
    for name, (seconds, cpu_seconds) in {"label noise": noise, "bare forwards": bare}.items():
        print(f"{name:14} {seconds:6.1f} s  {cpu_seconds:6.1f} CPU s")


def main(quick: bool = False) -> None:
    """All of it."""
    torch.set_num_threads(1)
    repeats = 3 if quick else 7
    passes("cnn", (1, 28, 28), 512, repeats)
    passes("resnet_small", (3, 32, 32), 256, repeats)
    passes("mlp", (784,), 16_384, repeats)
    statistics(1024, 1, repeats)
    statistics(1024, 2, repeats)
    if "BAYESMOOTH_DATA" in os.environ and not quick:
        mnist(load("mnist", "train"))
