"""Generalised cross-entropy: between cross-entropy, which learns fast, and mean absolute error, which bears noise."""

from typing import Any

import torch
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, pick, within


class GCE(Loss):
    """L = (1 − p_y^q)/q, so ε = (1 − p_y^q)(p − y): what the model doubts, it labels itself.

    q → 0 is cross-entropy, q = 1 is 1 − p_y, half the mean absolute error.

    References: Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels,
    NeurIPS 2018.
    """

    def __init__(self, q: float = 0.7, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.q = within("q", q, 1e-3, 1, "use CrossEntropy for the limit 0")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """(1 − p_y^q)/q."""
        return -torch.expm1(self.q * pick(logits.log_softmax(1), labels)) / self.q
