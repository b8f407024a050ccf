"""ACLS: a margin on the predicted class's logit and on its distance to the others."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, within


class ACLS(Loss):
    """L = −log p_y + α [λ₊ Σ_{j∈top} relu(z_j − M)² + λ₋/(K−1) Σ_j relu(z_top − z_j − M)²].

    top is the predicted class; classes that tie for it all count. z_top is a constant in the second sum, so
    ε_top = −2αλ₊ relu(z_top − M) and ε_j = (2αλ₋/(K−1)) relu(z_top − z_j − M): the label of the predicted class falls
    as its logit grows.

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
        top = logits.amax(1, keepdim=True)
        ties = (logits == top).sum(1)  # `amax` shares its gradient among them
        below = (top.detach() - logits - self.margin).relu()  # 0 at the top, as the margin is ≥ 0
        push_down = self.positive * ties * (top.squeeze(1) - self.margin).relu().square()
        pull_up = self.negative / (logits.shape[1] - 1) * below.square().sum(1)
        return F.cross_entropy(logits, labels, reduction="none") + self.alpha * (push_down + pull_up)
