"""What our pieces cost, in times of what bare torch or scikit-learn takes for the least of the same work.

Losses stand against cross-entropy, expected noise against sigmoids, effective labels against a backward pass, exact
regressions against lbfgs, the training loop against bare steps, and label noise against forward passes.
"""

import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth import progress
from bayesmooth.data import Labels, Source, load
from bayesmooth.executors import keep_freed_memory
from bayesmooth.integrations.sklearn import VariationalLogisticRegression
from bayesmooth.labelnoise import label_noise
from bayesmooth.losses import ALASCA, LOSSES
from bayesmooth.models import MODELS
from bayesmooth.posterior import Posterior
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import Bernoulli
from bayesmooth.theory.noise import effective_labels, expected_noise
from bayesmooth.train import Recipe, Splits
from bayesmooth.train.loop import Loop
from benchmarks.harness import Jobs, compare_seconds, measure_seconds, print_ratios, time_cpu

EXAMPLES, BATCH, CLASSES = 2_048, 512, 1_000  # of the losses
NODES = 32  # of the expected noise
STEPS, STEP_BATCH = 5, 50  # of the training loop
SAMPLES, DRAWS, FORWARD_BATCH = 16, 8, 256  # of the label noise
TRAINED = {  # shape, model, augmentation
    "CNN, 28 × 28, batch 50": ((1, 28, 28), "cnn", "none"),
    "small ResNet, 32 × 32, batch 50, crop and flip": ((3, 32, 32), "resnet_small", "crop_flip"),
}


def compare_losses(repeats: int) -> None:
    """Forward and backward of every loss."""
    logits = 3 * torch.randn(BATCH, CLASSES)
    labels = logits.argmax(1)
    labels[: BATCH // 3] = torch.randint(CLASSES, (BATCH // 3,))  # two thirds are predicted right
    extra = {
        "index": torch.randperm(EXAMPLES)[:BATCH],
        "past": logits.flip(1).softmax(1),
        "epoch": 15.0,
    }
    sizes = {"num_classes": CLASSES, "num_examples": EXAMPLES}
    transition = 0.7 * torch.eye(CLASSES) + 0.3 * torch.rand(CLASSES, CLASSES).softmax(1)
    options: dict[str, dict[str, Any]] = {
        "ols": {"num_classes": CLASSES},
        "loras": {"num_classes": CLASSES},
        "elr": sizes,
        "sop": sizes,
        "als": {"weight": 0.1},
        "forward_correction": {"transition": transition},
        "backward_correction": {"transition": transition},
    }
    jobs = {"F.cross_entropy": partial(backward, partial(cross_entropy, target=labels), logits)}
    for name, make in LOSSES.items():
        if make is not ALASCA:
            loss = partial(make(**options.get(name, {})), labels=labels, **extra)
            jobs[name] = partial(backward, loss, logits)
    title = f"losses, forward + backward, batch {BATCH}, {CLASSES:,} classes"
    compare_seconds(title, jobs, dict.fromkeys(LOSSES, 3.0), repeats=repeats)
    compare_alasca(logits, labels, extra, repeats)


def compare_alasca(logits: Tensor, labels: Tensor, extra: dict[str, Any], repeats: int) -> None:
    """Without its convolutions. It classifies four times, so it stands against four cross-entropies."""
    loss = ALASCA(EXAMPLES, CLASSES)

    def heads() -> list[Tensor]:
        return [logits.detach().requires_grad_() for _ in range(4)]

    def plain() -> None:
        torch.autograd.backward([cross_entropy(z, labels) for z in heads()])

    def alasca() -> None:
        first, *others = heads()
        loss._head_outputs = lambda features, batch: others  # type: ignore[method-assign]
        torch.autograd.backward(loss(first, labels, **extra))

    title = f"ALASCA without its convolutions, batch {BATCH}, {CLASSES:,} classes"
    jobs: Jobs = {"4 × F.cross_entropy": plain, "alasca": alasca}
    compare_seconds(title, jobs, {"alasca": 3.0}, repeats=repeats)


def backward(loss: Callable[[Tensor], Tensor], logits: Tensor) -> None:
    """One forward and one backward pass of a loss."""
    torch.autograd.backward(loss(logits.detach().requires_grad_()))


def compare_expected_noise(size: int, repeats: int) -> None:
    """The expected noise of `size` pairs (m, v) against as many sigmoids as it has nodes."""
    mean, var, out = 3 * torch.randn(size), torch.rand(size), torch.empty(size)

    def sigmoids() -> None:
        for _ in range(NODES):
            torch.sigmoid(mean, out=out)

    jobs: Jobs = {
        f"{NODES} sigmoids": sigmoids,
        "expected_noise": lambda: expected_noise(mean, var, Bernoulli(), nodes=NODES),
    }
    title = f"expected noise of {size:,} pairs, {NODES} nodes"
    compare_seconds(title, jobs, {"expected_noise": 2.0}, repeats=repeats)


def compare_effective_labels(repeats: int) -> None:
    """Effective labels against forward and backward of the loss itself."""
    logits, labels = 3 * torch.randn(512, 1_000), torch.randint(1_000, (512,))
    for name, smoothing in {"cross-entropy": 0.0, "label smoothing": 0.1}.items():
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        jobs: Jobs = {
            "forward + backward": partial(backward, partial(loss, target=labels), logits),
            "effective_labels": partial(effective_labels, loss, logits, labels),
        }
        title = f"{name}, batch 512, 1,000 classes"
        compare_seconds(title, jobs, {"effective_labels": 1.5}, repeats=repeats)


def compare_fits(examples: int, dim: int, repeats: int, classes: int = 10) -> None:
    """One fit each: a point by lbfgs; a point, a Gaussian, and a Gaussian with its prior by VON.

    Features have a decaying spectrum, as embeddings have, and labels are drawn from a softmax.
    """
    features = torch.randn(examples, dim) / torch.arange(1, dim + 1).sqrt()
    logits = 2 * features @ torch.randn(dim, classes)
    labels = torch.multinomial(torch.softmax(logits, 1), 1).squeeze(1)
    lbfgs, fit = LogisticRegression(max_iter=1_000), partial(fit_glm, features, labels)
    jobs: Jobs = {
        "scikit-learn lbfgs, a point": lambda: lbfgs.fit(features.numpy(), labels.numpy()),
        "newton, a point and Laplace": partial(fit, method="newton"),
        "VON, a Gaussian": fit,
        "VON to a tenth of a std, float32": partial(fit, tol=0.1, dtype=torch.float32),
        "VON and the prior by the ELBO": partial(fit, prior_precision="elbo"),
    }
    seconds = measure_seconds(jobs, repeats)
    first = next(iter(seconds.values()))
    title = f"fit of N={examples:,}, D={dim}, K={classes}; lbfgs took {first:.2f} s"
    print_ratios(title, {name: each / first for name, each in seconds.items()})


def time_regression(count: int = 1_257) -> None:
    """CPU time of the exact variational regression whose prior the ELBO chooses."""
    features, labels = load_digits(return_X_y=True)
    rows = StandardScaler().fit_transform(features[:count])
    model, seconds = time_cpu(lambda: VariationalLogisticRegression().fit(rows, labels[:count]))
    print(
        f"\nVariationalLogisticRegression, {count:,} digits: {seconds:.1f} CPU s (goal ≤ 2), "
        f"prior precision {model.prior_precision_:.2f}, ELBO {model.elbo_:.1f}"
    )


def compare_training(repeats: int) -> None:
    """The training loop against bare forward + backward + step on batches that are ready."""
    for title, (shape, model, augment) in TRAINED.items():
        rng = torch.Generator().manual_seed(0)
        inputs = torch.randint(256, (2000, *shape), dtype=torch.uint8, generator=rng)
        labels = torch.randint(10, (2000,), generator=rng)
        examples = Source(inputs, Labels(labels, tuple("0123456789")), mean=(0.5,), std=(0.25,))
        jobs: Jobs = {
            "bare": partial(step_bare, make_loop(model, "none", examples), ready(examples)),
            "loop": partial(step_by_loop, make_loop(model, augment, examples)),
        }
        compare_seconds(f"training: {title}", jobs, {"loop": 1.05}, repeats=repeats)


def make_loop(model: str, augment: str, examples: Source) -> Loop:
    recipe = Recipe.from_dict(
        {
            "data": {"augment": augment},
            "model": {"name": model},
            "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
            "schedule": {"name": "cosine"},
            "train": {"epochs": 10**6, "batch_size": STEP_BATCH},
        }
    )
    return Loop(recipe, Splits(examples, None, None, None), torch.device("cpu"))


def ready(examples: Source) -> list[tuple[Tensor, Tensor]]:
    """The batches of a few steps."""
    first = torch.arange(STEP_BATCH * STEPS).chunk(STEPS)
    return [(examples.batch(index), examples.labels[index]) for index in first]


def step_bare(loop: Loop, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The least that any training does."""
    loop.model.train()
    for inputs, labels in batches:
        loop.optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(loop.model(inputs), labels))
        loop.optimizer.step()


def step_by_loop(loop: Loop) -> None:
    """As many steps by the loop, with its batches, its figures and its progress."""
    loop.batch = 0
    with progress.bar(10**6, quiet=True) as bar:
        for _ in islice(loop.steps(), STEPS):
            bar.update(loop.batch, "epoch 1", dict)


def compare_label_noise(name: str, shape: tuple[int, ...], count: int, repeats: int) -> None:
    """A sample, and a linearised draw, in forward passes over the same inputs."""
    model = MODELS[name](num_classes=10, input_shape=shape).eval()
    inputs = torch.randn(count, *shape)
    noise = noise_job(model, inputs, batch_size=FORWARD_BATCH)
    jobs: Jobs = {
        "forward": partial(forward, model, inputs),
        "noise": noise,
        "linearised": partial(noise, linearised=DRAWS),
    }
    seconds = measure_seconds(jobs, repeats)
    draws = (seconds["linearised"] - seconds["noise"]) / seconds["forward"]
    costs = {
        f"{SAMPLES} samples, a sample": seconds["noise"] / seconds["forward"],
        "a linearised draw": draws * SAMPLES / DRAWS,
    }
    goals = {f"{SAMPLES} samples, a sample": 1.1, "a linearised draw": 2.5}
    print_ratios(f"label noise in forward passes, {name} on {count} × {shape}", costs, goals)


def compare_statistics(batches: int, repeats: int, count: int = 1024) -> None:
    """What it costs that the mean and each draw compute their BatchNorm statistics from so many batches."""
    model = MODELS["cnn_batchnorm"](num_classes=10, input_shape=(3, 32, 32)).eval()
    inputs = torch.randn(count, 3, 32, 32)
    noise, own = noise_job(model, inputs), torch.split(inputs, FORWARD_BATCH)[:batches]
    jobs: Jobs = {
        "running statistics": noise,
        "statistics of each draw": partial(noise, batchnorm=own),
    }
    shown = f"{batches * FORWARD_BATCH:,} images for the statistics of {count:,}"
    title = f"label noise, cnn_batchnorm, {SAMPLES} samples, {shown}"
    compare_seconds(title, jobs, repeats=repeats)


def time_mnist() -> None:
    """The label noise of every training image, beside as many bare forward passes."""
    examples, model = load("mnist", "train"), MODELS["cnn"](num_classes=10).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = examples.batch(torch.arange(len(examples)))
    _, noise = time_cpu(noise_job(model, examples, batch_size=FORWARD_BATCH))
    _, bare = time_cpu(lambda: forward(model, inputs))
    print(f"\n{len(examples):,} MNIST images × {SAMPLES} samples, small network")
    print(f"label noise {noise:.1f} CPU s, bare forward passes {bare:.1f} CPU s")


def noise_job(model: nn.Module, inputs: Any, **options: Any) -> Callable[..., object]:
    """Computes the label noise under a Gaussian of σ = 0.01 around the weights."""
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    q = Posterior(mean, {name: torch.full_like(p, 0.01) for name, p in mean.items()})
    return partial(label_noise, model, q, inputs, samples=SAMPLES, quiet=True, **options)


@torch.no_grad()
def forward(model: nn.Module, inputs: Tensor) -> None:
    """As many forward passes as there are samples."""
    for _ in range(SAMPLES):
        for batch in torch.split(inputs, FORWARD_BATCH):
            model(batch)


def main(quick: bool = False) -> None:
    """All of it."""
    keep_freed_memory()  # as `bayesmooth train` does; both sides gain
    torch.manual_seed(0)
    few = 15 if quick else 60
    compare_losses(few)
    compare_expected_noise(100_000 if quick else 1_000_000, repeats=5 if quick else 15)
    compare_effective_labels(few)
    compare_fits(*((2_000, 96) if quick else (10_000, 384)), repeats=1 if quick else 2)
    time_regression()
    compare_training(5 if quick else 40)
    repeats = 3 if quick else 7
    compare_label_noise("cnn", (1, 28, 28), 512, repeats)
    compare_label_noise("resnet_small", (3, 32, 32), 256, repeats)
    compare_label_noise("mlp", (784,), 16_384, repeats)
    compare_statistics(1, repeats)
    compare_statistics(2, repeats)
    if "BAYESMOOTH_DATA" in os.environ and not quick:
        time_mnist()
