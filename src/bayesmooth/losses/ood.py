"""Adaptive smoothing for out-of-distribution detection: classes not predicted should be equally unlikely."""

from typing import Any, Literal

from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, dot, one_of, pick, predictions, within

EPS = 1e-12  # inside the square root, whose slope at 0 is infinite


class OODSmoothing(Loss):
    """L = −log p_y + λ s with s = sqrt((1/(K−1)) Σ_{i≠k} (p_i − p̄)²), p̄ the mean of p_i over i ≠ k.

    The excluded class k is the predicted one (exclude="predicted", the formula) or the label (exclude="true", the
    abstract's words). With d_i = (p_i − p̄)/((K−1)s) for i ≠ k and d_k = 0, ε_i = −λ p_i (d_i − Σ_j p_j d_j).
    λ has no default: no value is known to be good.

    References: Xu et al., Adaptive Label Smoothing for Out-of-Distribution Detection, 2024.
    """

    def __init__(
        self, weight: float, *, exclude: Literal["predicted", "true"] = "predicted", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.weight = within("weight", weight, 0, float("inf"), "0 is plain cross-entropy")
        self.exclude = one_of("exclude", exclude, ("predicted", "true"))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and λ times the spread of the other classes."""
        log_probs = logits.log_softmax(1)
        excluded = labels if self.exclude == "true" else predictions(logits)
        return self.weight * spread_of_others(log_probs.exp(), excluded) - pick(log_probs, labels)


def spread_of_others(probs: Tensor, excluded: Tensor) -> Tensor:
    """s, the standard deviation of p over the classes that are not excluded.

    >>> import torch
    >>> spread_of_others(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0]))
    tensor([0.0500])
    """
    others, column = probs.shape[1] - 1, excluded.unsqueeze(1)
    mean = probs.scatter(1, column, 0.0).sum(1, keepdim=True) / others
    deviation = (probs - mean).scatter(1, column, 0.0)
    return (dot(deviation, deviation) / others + EPS).sqrt()
