"""The confidence penalty: cross-entropy less a share of the prediction's entropy."""

from typing import Any

import torch
from torch import Tensor

from bayesmooth.losses.base import (
    Loss,
    Reduction,
    dot,
    known_gradient,
    pick,
    subtract_one_hot,
    within,
)


class ConfidencePenalty(Loss):
    """L = −log p_y − βH(p), so ε_i = −βp_i(log p_i + H).

    With a `threshold` Γ it is the hinge form −log p_y + β max(0, Γ − H): predictions with entropy above Γ nats are left
    alone, ε = 0. The gradient is written out and can be differentiated once.
    The formula is from memory of the paper, without its code at hand.

    References: Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions, 2017.
    """

    def __init__(
        self, beta: float = 0.1, *, threshold: float | None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.beta = within("beta", beta, 0, float("inf"), "0 is plain cross-entropy")
        if threshold is not None:
            within("threshold", threshold, 0, float("inf"), "None penalises every prediction")
        self.threshold = threshold

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y − βH(p), or its hinge form."""
        return known_gradient(logits, *self._value_and_gradient(logits.detach(), labels))

    def _value_and_gradient(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = logits.log_softmax(1)
        probs = log_probs.exp()
        hard = -pick(log_probs, labels)
        entropy = -dot(probs, log_probs)
        if self.threshold is None:
            penalty, beta = -entropy, torch.full_like(entropy, self.beta)
        else:
            penalty = (self.threshold - entropy).relu_()
            beta = self.beta * (penalty > 0)
        gradient = log_probs.add_(entropy.unsqueeze(1)).mul_(beta.unsqueeze(1)).add_(1).mul_(probs)
        return hard + self.beta * penalty, subtract_one_hot(gradient, labels)
