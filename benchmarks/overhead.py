"""What our pieces cost, in times of what bare torch or scikit-learn takes for the least of the same work.

Losses stand against cross-entropy, exact regressions against lbfgs, and label noise against forward passes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmooth.labelnoise import label_noise
from bayesmooth.losses import ALASCA, LOSSES
from bayesmooth.models import MODELS
from bayesmooth.posterior import Posterior
from bayesmooth.theory.glm import fit_glm
from benchmarks.harness import Jobs, compare_seconds, measure_seconds, print_ratios

EXAMPLES, BATCH, CLASSES = 2_048, 512, 1_000  # of the losses
SAMPLES, DRAWS, FORWARD_BATCH = 16, 8, 256  # of the label noise


def compare_losses(repeats: int) -> None:
    """Forward and backward of every loss."""
    logits = 3 * torch.randn(BATCH, CLASSES)
    labels = logits.argmax(1)
    labels[: BATCH // 3] = torch.randint(CLASSES, (BATCH // 3,))  # two thirds are predicted right
    extra = {"index": torch.randperm(EXAMPLES)[:BATCH], "past": logits.flip(1).softmax(1), "epoch": 15.0}
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
    compare_seconds(title, jobs, repeats=repeats)


def backward(loss: Callable[[Tensor], Tensor], logits: Tensor) -> None:
    """One forward and one backward pass of a loss."""
    torch.autograd.backward(loss(logits.detach().requires_grad_()))


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
    torch.manual_seed(0)
    compare_losses(15 if quick else 60)
    compare_fits(*((2_000, 96) if quick else (10_000, 384)), repeats=1 if quick else 2)
    repeats = 3 if quick else 7
    compare_label_noise("cnn", (1, 28, 28), 512, repeats)
    compare_label_noise("resnet_small", (3, 32, 32), 256, repeats)
    compare_label_noise("mlp", (784,), 16_384, repeats)
