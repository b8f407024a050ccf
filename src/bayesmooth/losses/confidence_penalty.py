"""The confidence penalty: cross-entropy less a share of the prediction's entropy."""

from typing import Any

from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, dot, pick, within


class ConfidencePenalty(Loss):
    """L = −log p_y − βH(p), so ε_i = −βp_i(log p_i + H).

    With a `threshold` Γ it is the hinge form −log p_y + β max(0, Γ − H): predictions with entropy above Γ nats are left
    alone, ε = 0.
    The formula is from memory of the paper, without its code at hand.

    References: Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions, 2017.
    """

    def __init__(self, beta: float = 0.1, *, threshold: float | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.beta = within("beta", beta, 0, float("inf"), "0 is plain cross-entropy")
        if threshold is not None:
            within("threshold", threshold, 0, float("inf"), "None penalises every prediction")
        self.threshold = threshold

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y − βH(p), or its hinge form."""
        log_probs = logits.log_softmax(1)
        entropy = -dot(log_probs.exp(), log_probs)
        penalty = -entropy if self.threshold is None else (self.threshold - entropy).relu()
        return self.beta * penalty - pick(log_probs, labels)
