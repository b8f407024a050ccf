"""ACLS: a margin on the predicted class's logit and on its distance to the others."""

from typing import Any

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


class ACLS(Loss):
    """L = −log p_y + α [λ₊ Σ_{j∈top} relu(z_j − M)² + λ₋/(K−1) Σ_j relu(z_top − z_j − M)²].

    top is the predicted class; classes that tie for it all count. z_top is a constant in the second sum, so
    ε_top = −2αλ₊ relu(z_top − M) and ε_j = (2αλ₋/(K−1)) relu(z_top − z_j − M): the label of the predicted class falls
    as its logit grows. The gradient is written out and can be differentiated once.

    References: Park et al., ACLS: Adaptive and Conditional Label Smoothing for Network Calibration, ICCV 2023.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        positive: float = 1.0,
        negative: float = 0.1,
        margin: float = 10.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        infinity = float("inf")
        self.alpha = within("alpha", alpha, 0, infinity, "0 is plain cross-entropy")
        self.positive = within("positive", positive, 0, infinity, "0 drops the term")
        self.negative = within("negative", negative, 0, infinity, "0 drops the term")
        self.margin = within("margin", margin, 0, infinity, "the method's own is 10")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and the two margins."""
        return known_gradient(logits, *self._value_and_gradient(logits.detach(), labels))

    def _value_and_gradient(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        push_down = self.alpha * self.positive
        pull_up = self.alpha * self.negative / (logits.shape[1] - 1)
        top = logits.amax(1, keepdim=True)
        over = (top - self.margin).relu_()
        below = top - logits
        is_top = below.sign().neg_().add_(1)
        below.sub_(self.margin).relu_()  # 0 at the top: the margin is not negative
        log_probs = logits.log_softmax(1)
        values = push_down * is_top.sum(1) * over.squeeze(1).square()
        values += pull_up * dot(below, below) - pick(log_probs, labels)
        gradient = subtract_one_hot(log_probs.exp_(), labels)
        gradient.addcmul_(is_top, over, value=2 * push_down).sub_(below, alpha=2 * pull_up)
        return values, gradient
