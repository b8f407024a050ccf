"""Loss correction: cross-entropy that knows the corruption of the labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, Reduction, dot, within

Transition = Tensor | Sequence[Sequence[float]]
MAX_CONDITION = 1e6


class ForwardCorrection(Loss):
    """L = −log Σ_i p_i T_iy, so the label is the posterior over true classes, t_i = p_i T_iy / Σ_k p_k T_ky.

    T_ij = P(given label j | true class i): rows are true classes and sum to 1.

    References: Patrini et al., Making Deep Neural Networks Robust to Label Noise: A Loss Correction Approach,
    CVPR 2017.
    """

    log_columns: Tensor

    def __init__(self, transition: Transition, *, reduction: Reduction = "mean") -> None:
        matrix = check_transition(transition)
        super().__init__(reduction, len(matrix))
        never = (matrix.amax(0) == 0).nonzero().flatten().tolist()
        if never:
            raise InputError(
                f"transition columns {never} are 0: every label must be possible for some true class; "
                "mix in the identity, as in 0.99 * T + 0.01 * torch.eye(K)"
            )
        self.register_buffer("log_columns", matrix.t().log().float().contiguous())

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log Σ_i p_i T_iy."""
        columns = self.log_columns.index_select(0, labels).to(logits.dtype)
        return -(columns + logits.log_softmax(1)).logsumexp(1)


class BackwardCorrection(Loss):
    """L = −Σ_j (T⁻¹)_yj log p_j, so the label is t = (T⁻¹)_y and L is unbiased for the loss on clean labels.

    T_ij = P(given label j | true class i): rows are true classes and sum to 1. The loss may be negative. Under
    symmetric noise it is label smoothing with a negative rate (Lukasik et al., ICML 2020).

    References: as for ForwardCorrection.
    """

    inverse: Tensor

    def __init__(self, transition: Transition, *, reduction: Reduction = "mean") -> None:
        matrix = check_transition(transition)
        super().__init__(reduction, len(matrix))
        condition = float(torch.linalg.cond(matrix, 1))
        if not condition < MAX_CONDITION:
            raise InputError(
                f"transition has condition number {condition:.3g}: must be below {MAX_CONDITION:g} to be inverted; "
                "mix in the identity, or use ForwardCorrection"
            )
        self.register_buffer("inverse", matrix.inverse().float())

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−Σ_j (T⁻¹)_yj log p_j."""
        weights = self.inverse.index_select(0, labels).to(logits.dtype)
        return -dot(weights, logits.log_softmax(1))


def estimate_transition(probs: Tensor, percentile: float | None = 97) -> Tensor:
    """T̂ (K, K) from the (N, K) probabilities of a network trained on the noisy labels, over the whole training set.

    The anchor of class i is the example most surely of class i, and its probabilities are row i of T̂. Scores at or
    above the percentile of their column are left out first, as outliers; None leaves none out (CIFAR-100).

    >>> estimate_transition(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]), percentile=None)
    tensor([[0.9000, 0.1000],
            [0.2000, 0.8000]])
    """
    one = torch.ones((), dtype=torch.float32, device=probs.device)
    if probs.ndim != 2 or len(probs) == 0 or not torch.allclose(probs.sum(1).float(), one):
        raise InputError(
            f"probs of shape {tuple(probs.shape)}: must be (examples, classes) with rows that sum to 1; "
            "pass logits.softmax(1) of the training set"
        )
    scores = probs
    if percentile is not None:
        within("percentile", percentile, "None leaves no score out", high=100)
        rank = -int(-percentile * (len(probs) - 1) // 100)  # rounded up
        threshold = probs.kthvalue(rank + 1, dim=0).values
        scores = torch.where(probs < threshold, probs, 0.0)
    anchors = probs[scores.argmax(0)]
    return anchors / anchors.sum(1, keepdim=True)


def check_transition(transition: Transition) -> Tensor:
    """T as float64: square, K ≥ 2, entries in [0, 1], rows that sum to 1."""
    matrix = torch.as_tensor(transition, dtype=torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise InputError(
            f"transition of shape {tuple(matrix.shape)}: must be (classes, classes); "
            "give row i the probabilities of the given label when the true class is i"
        )
    sums = matrix.sum(1)
    if not (bool((matrix >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all())):
        row = int((sums - 1).abs().argmax())
        raise InputError(
            f"transition has smallest entry {float(matrix.min()):.3g}, and row {row} sums to {float(sums[row]):.4g}: "
            "rows must be probabilities; divide by T.sum(1, keepdim=True), or pass T.t() if columns are true classes"
        )
    return matrix / sums.unsqueeze(1)
