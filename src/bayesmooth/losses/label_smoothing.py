"""Label smoothing: every label gives the same share of its mass away."""

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, Reduction, one_of, within

Form = Literal["uniform", "others"]
FORMS = ("uniform", "others")


class LabelSmoothing(Loss):
    """L = −Σ_j t_j log p_j with the label t = (1−α)y + αu  (equ: label smoothing def), so ε = α(u − y).

    With form="uniform" u is 1/K on every class, including the true one, as in `torch.nn.functional.cross_entropy`. With
    form="others" it is 1/(K−1) on the others and 0 on the true class; α there is α(K−1)/K here.

    One rate per example (as structural smoothing has) is passed as `alpha=`, of shape (B,).

    >>> import torch
    >>> LabelSmoothing(0.1)(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.5076)

    References: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
    """

    def __init__(self, alpha: float = 0.1, *, form: Form = "uniform", reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.alpha = within("alpha", alpha, 0, 1, "0 is plain cross-entropy")
        self.form = one_of("form", form, FORMS)

    def per_example(self, logits: Tensor, labels: Tensor, *, alpha: Tensor | None = None, **extra: Any) -> Tensor:
        """−Σ_j t_j log p_j."""
        if alpha is not None and alpha.shape != labels.shape:
            raise InputError(
                f"alpha of shape {tuple(alpha.shape)} for {len(labels)} examples: must be one rate per example; "
                "pass a tensor of shape (batch,), or a float to the constructor"
            )
        rate = self.alpha if alpha is None else alpha
        return smoothed_cross_entropy(logits.log_softmax(1), labels, rate, self.form)


def smoothed_cross_entropy(log_probs: Tensor, labels: Tensor, rate: float | Tensor, form: str) -> Tensor:
    """−Σ_j t_j log p_j where t has o on each class and 1 − Ko more on the true one; `rate` may be (B,)."""
    K = log_probs.shape[1]
    off_class = rate / (K if form == "uniform" else K - 1)
    true_class = F.nll_loss(log_probs, labels, reduction="none")
    return (1 - K * off_class) * true_class - off_class * log_probs.sum(1)
