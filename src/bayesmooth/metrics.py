"""Measures of predictions. Tensors or arrays in, a float out.

Predictions are class probabilities, N×K with rows that sum to one (`logits.softmax(-1)`, or
`Posterior.predict`, which averages them over posterior samples), with N integer labels.
Every value is the same for every order of the examples, ties included.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError

SUM_TOLERANCE = 0.01  # the rows of a bfloat16 softmax miss one by up to 0.4 %


@dataclass(frozen=True)
class Reliability:
    """The points of a reliability diagram: one entry per bin, NaN where a bin is empty."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    error: float  # Σ_b (n_b/N)·|accuracy_b − confidence_b|, the expected calibration error


def accuracy(probs: Any, labels: Any) -> float:
    """The share of examples whose most probable class is their label.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    probs, labels = _predictions(probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def nll(probs: Any, labels: Any) -> float:
    """−mean log p(label): the negative log-likelihood in nats.

    A probability that underflowed to zero counts as the smallest float32 (NLL 87.3), not as ∞.
    """
    probs, labels = _predictions(probs, labels)
    given = probs.gather(1, labels[:, None])
    return float(-given.clamp_min(torch.finfo(torch.float32).tiny).log().mean())


def brier(probs: Any, labels: Any) -> float:
    """Mean of Σ_k (p_k − y_k)²; between 0 and 2.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    0.5
    """
    probs, labels = _predictions(probs, labels)
    # Σ_k (p_k − y_k)² = Σ_k p_k² − 2 p_y + 1, with no N×K one-hot
    given = probs.gather(1, labels[:, None])[:, 0]
    return float(((probs**2).sum(1) - 2 * given + 1).mean())


def ece(probs: Any, labels: Any, bins: int = 15) -> float:
    """Expected calibration error over `bins` bins of equal width (Guo et al. 2017)."""
    return reliability(probs, labels, bins).error


def adaptive_ece(probs: Any, labels: Any, bins: int = 15) -> float:
    """Expected calibration error over `bins` bins of equal size (Nixon et al. 2019)."""
    return reliability(probs, labels, bins, adaptive=True).error


def reliability(probs: Any, labels: Any, bins: int = 15, adaptive: bool = False) -> Reliability:
    """Mean confidence, accuracy and count of every bin of the top confidence.

    Bins are right-closed: of width 1/`bins`, or `adaptive`: of equal size, equal confidences
    sharing a bin.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), bins=2).count
    tensor([0, 2])
    """
    probs, labels = _predictions(probs, labels)
    if bins < 1:
        raise InputError(f"bins={bins}: must be ≥ 1; 15 is usual")
    confidence, predicted = probs.max(1)
    number = torch.arange(1, bins + 1, device="cpu")
    upper = number.double() / bins
    if adaptive:
        size_up_to = (number * len(confidence) + bins - 1) // bins
        upper = confidence.sort().values[size_up_to - 1]
    # rounding may leave a confidence a hair above one
    index = torch.bucketize(confidence, upper).clamp_max(bins - 1)
    count = torch.bincount(index, minlength=bins)
    mean = torch.bincount(index, confidence, bins) / count
    right = torch.bincount(index, (predicted == labels).double(), bins) / count
    error = (right - mean).abs().nan_to_num() @ count.double() / len(labels)
    return Reliability(mean, right, count, float(error))


def _predictions(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """N×K probabilities in float64 and N labels, or an error that names the fault."""
    probs = torch.as_tensor(probs, dtype=torch.float64, device="cpu").detach()
    labels = torch.as_tensor(labels, device="cpu").detach()
    if probs.ndim != 2 or not probs.numel():
        raise InputError(f"probs of shape {tuple(probs.shape)}: must be examples × classes, at least one of each")
    sums = probs.sum(1)
    off = ~((sums - 1).abs() <= SUM_TOLERANCE) | (probs < 0).any(1)  # NaN is off too
    if off.any():
        row = int(off.nonzero()[0])
        raise InputError(
            f"probs[{row}] = {[round(float(p), 4) for p in probs[row, :5]]}…, sum {sums[row]:.4g}: "
            "must be ≥ 0 and sum to one; pass logits.softmax(-1)"
        )
    if labels.shape != probs.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"labels of shape {tuple(labels.shape)}, {labels.dtype}: must be {len(probs)} integers, one per row"
        )
    first, last = int(labels.min()), int(labels.max())
    if first < 0 or last >= probs.shape[1]:
        raise InputError(f"labels from {first} to {last}: must lie in 0 … {probs.shape[1] - 1}")
    return probs, labels.long()
