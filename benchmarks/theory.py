"""Expected noise against sigmoids, effective labels against a backward pass, VON against lbfgs."""

import time

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bayesmooth.integrations.sklearn import VariationalLogisticRegression
from bayesmooth.lab.executors import keep_freed_memory
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import Bernoulli
from bayesmooth.theory.noise import effective_labels, expected_noise
from benchmarks.harness import compare, measure, table

NODES = 32


def main(quick: bool = False) -> None:
    """Print the tables, and the time of the exact regression on digits."""
    keep_freed_memory()
    torch.manual_seed(0)
    expected_noise_table(100_000 if quick else 1_000_000, repeats=5 if quick else 15)
    effective_labels_table(repeats=15 if quick else 60)
    fit_table(*((2_000, 96) if quick else (10_000, 384)), repeats=1 if quick else 2)
    time_digits()


def time_digits(count: int = 1_257) -> None:
    """CPU time of the exact variational regression whose prior the ELBO chooses."""
    features, labels = load_digits(return_X_y=True)
    rows = StandardScaler().fit_transform(features[:count])
    start = time.process_time()
    model = VariationalLogisticRegression().fit(rows, labels[:count])
    seconds = time.process_time() - start
    print(
        f"\nVariationalLogisticRegression, {count:,} digits: {seconds:.1f} CPU s (goal ≤ 2), "
        f"prior precision {model.prior_precision_:.2f}, ELBO {model.elbo_:.1f}"
    )


def expected_noise_table(size: int, repeats: int) -> None:
    """The expected noise of `size` pairs (m, v) against as many sigmoids as it has nodes."""
    mean, var, out = 3 * torch.randn(size), torch.rand(size), torch.empty(size)

    def sigmoids() -> None:
        for _ in range(NODES):
            torch.sigmoid(mean, out=out)

    jobs = {
        f"{NODES} sigmoids": sigmoids,
        "expected_noise": lambda: expected_noise(mean, var, Bernoulli(), nodes=NODES),
    }
    ratios = compare(jobs, baseline=f"{NODES} sigmoids", repeats=repeats)
    table(f"expected noise of {size:,} pairs, {NODES} nodes", ratios, {"expected_noise": 2.0})


def effective_labels_table(repeats: int) -> None:
    """Effective labels against forward and backward of the loss itself."""
    logits, labels = 3 * torch.randn(512, 1_000), torch.randint(1_000, (512,))
    for name, loss in {
        "cross-entropy": nn.CrossEntropyLoss(),
        "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    }.items():
        jobs = {
            "forward + backward": lambda loss=loss: backward(loss, logits, labels),
            "effective_labels": lambda loss=loss: effective_labels(loss, logits, labels),
        }
        ratios = compare(jobs, baseline="forward + backward", repeats=repeats)
        table(f"{name}, batch 512, 1,000 classes", ratios, {"effective_labels": 1.5})


def backward(loss: nn.Module, logits: Tensor, labels: Tensor) -> None:
    """One backward pass."""
    loss(logits.detach().requires_grad_(), labels).backward()


def fit_table(examples: int, dim: int, repeats: int, classes: int = 10) -> None:
    """One fit each: a point by lbfgs; a point, a Gaussian, and a Gaussian with its prior by VON."""
    features, labels = softmax_data(examples, dim, classes)
    lbfgs = LogisticRegression(max_iter=1_000)
    jobs = {
        "scikit-learn lbfgs, a point": lambda: lbfgs.fit(features.numpy(), labels.numpy()),
        "newton, a point and Laplace": lambda: fit_glm(features, labels, method="newton"),
        "VON, a Gaussian": lambda: fit_glm(features, labels),
        "VON to a tenth of a std, float32": lambda: fit_glm(
            features, labels, tol=0.1, dtype=torch.float32
        ),
        "VON and the prior by the ELBO": lambda: fit_glm(features, labels, prior_precision="elbo"),
    }
    seconds = measure(jobs, repeats=repeats)
    first = next(iter(seconds.values()))
    title = f"fit of N={examples:,}, D={dim}, K={classes}; lbfgs took {first:.2f} s"
    table(title, {name: time / first for name, time in seconds.items()})


def softmax_data(examples: int, dim: int, classes: int) -> tuple[Tensor, Tensor]:
    """Features with a decaying spectrum, as embeddings have, and labels drawn from a softmax."""
    features = torch.randn(examples, dim) / torch.arange(1, dim + 1).sqrt()
    logits = 2 * features @ torch.randn(dim, classes)
    return features, torch.multinomial(torch.softmax(logits, 1), 1).squeeze(1)
