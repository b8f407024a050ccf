"""Bootstrapping: a part of the label is what the model itself says."""

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, dot, one_of, predictions, within

BETAS = {"soft": 0.95, "hard": 0.8}  # the authors'


class Bootstrapping(Loss):
    """L = −Σ_j [βy_j + (1−β)g_j] log p_j, where g is the prediction p ("soft") or its most likely class ("hard").

    Hard: ε = (1−β)(g − y). Soft: p carries its gradient, so L = −β log p_y + (1−β)H(p) favours confident predictions,
    and ε_i = (1−β)[p_i(1 + log p_i + H) − y_i].

    References: Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR 2015 (workshop).
    """

    def __init__(
        self, beta: float | None = None, *, form: Literal["soft", "hard"] = "soft", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.form = one_of("form", form, BETAS)
        chosen = BETAS[self.form] if beta is None else beta
        self.beta = within("beta", chosen, 0, 1, "1 is plain cross-entropy")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−β log p_y − (1−β) Σ_j g_j log p_j."""
        log_probs = logits.log_softmax(1)
        given = F.nll_loss(log_probs, labels, reduction="none")
        if self.form == "hard":
            own = F.nll_loss(log_probs, predictions(logits), reduction="none")
        else:
            own = -dot(log_probs.exp(), log_probs)
        return self.beta * given + (1 - self.beta) * own
