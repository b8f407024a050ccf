"""What the training loop costs on top of bare forward + backward + step on batches that are ready."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesmooth import progress
from bayesmooth.data import Examples
from bayesmooth.lab import Recipe, Splits
from bayesmooth.lab.executors import keep_freed_memory
from bayesmooth.lab.loop import Loop
from benchmarks.harness import compare, table

STEPS = 5  # per job
GOAL = 1.05
CPU = torch.device("cpu")
CASES: dict[str, tuple[tuple[int, ...], str, str]] = {  # shape, model, augmentation
    "CNN, 28 × 28, batch 50": ((1, 28, 28), "cnn", "none"),
    "small ResNet, 32 × 32, batch 50, crop and flip": ((3, 32, 32), "resnet_small", "crop_flip"),
}


def pictures(shape: tuple[int, ...], count: int = 2000) -> Examples:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=rng)
    labels = torch.randint(10, (count,), generator=rng)
    return Examples(inputs, labels, tuple("0123456789"), mean=(0.5,), std=(0.25,))


def loop_of(model: str, augment: str, examples: Examples) -> Loop:
    recipe = Recipe.from_dict(
        {
            "data": {"augment": augment},
            "model": {"name": model},
            "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
            "schedule": {"name": "cosine"},
            "train": {"epochs": 10**6, "batch_size": 50},
        }
    )
    return Loop(recipe, Splits(examples, None, None, None), CPU)


def bare(loop: Loop, ready: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """The least that any training does."""

    def job() -> None:
        loop.model.train()
        for inputs, labels in ready:
            loop.optimizer.zero_grad()
            cross_entropy(loop.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            loop.optimizer.step()

    return job


def whole(loop: Loop) -> Callable[[], None]:
    """The same steps by the loop, with its batches, its figures and its progress."""

    def job() -> None:
        loop.batch = 0
        with progress.bar(10**6, quiet=True) as bar:
            for _ in islice(loop.steps(), STEPS):
                bar.update(loop.batch, "epoch 1", dict)

    return job


def main(quick: bool = False) -> None:
    keep_freed_memory()  # as `bayesmooth train` does; both sides gain
    for title, (shape, model, augment) in CASES.items():
        examples = pictures(shape)
        first = torch.arange(50 * STEPS).chunk(STEPS)
        ready = [(examples.batch(index), examples.labels[index]) for index in first]
        jobs = {
            "bare": bare(loop_of(model, "none", examples), ready),
            "loop": whole(loop_of(model, augment, examples)),
        }
        repeats = 5 if quick else 40
        table(f"training: {title}", compare(jobs, baseline="bare", repeats=repeats), {"loop": GOAL})
