"""Cross-entropy, by which every other loss is measured, and label smoothing, with one rate for all or by confidence."""

import math
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, Reduction, dot, one_of, pick, within


class CrossEntropy(Loss):
    """L = −log p_y, and ε = 0.

    >>> import torch
    >>> CrossEntropy()(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y."""
        return F.cross_entropy(logits, labels, reduction="none")


class LabelSmoothing(Loss):
    """L = −Σ_j t_j log p_j with the label t = (1−α)y + αu  (equ: label smoothing def), so ε = α(u − y).

    With form="uniform" u is 1/K on every class, including the true one, as in `torch.nn.functional.cross_entropy`. With
    form="others" it is 1/(K−1) on the others and 0 on the true class; α there is α(K−1)/K here.

    One rate per example (as structural smoothing has) is passed as `alpha=`, of shape (B,).

    References: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
    """

    def __init__(
        self, alpha: float = 0.1, *, form: Literal["uniform", "others"] = "uniform", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.alpha = within("alpha", alpha, "0 is plain cross-entropy", high=1)
        self.form = one_of("form", form, ("uniform", "others"))

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


class SelfKnowledgeSmoothing(Loss):
    """L = −Σ_j t_j log p_j with t = (1−α_n)y + α_n p_φ and α_n = 1 − H(p)/log K, so ε = α_n(p_φ − y).

    `past` (B, K) is p_φ, the probabilities that the best past checkpoint gives the same inputs. While it is None there
    is no past self, and the loss is cross-entropy. α_n and p_φ carry no gradient.
    The formula is from memory of the paper, without its code at hand.

    References: Lee et al., Adaptive Label Smoothing with Self-Knowledge in Natural Language Generation, EMNLP 2022.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"past"})

    def per_example(self, logits: Tensor, labels: Tensor, *, past: Tensor | None = None, **extra: Any) -> Tensor:
        """−(1−α_n) log p_y − α_n Σ_j p_φj log p_j."""
        log_probs = logits.log_softmax(1)
        hard = -pick(log_probs, labels)
        if past is None:
            return hard
        if past.shape != logits.shape:
            raise InputError(
                f"past of shape {tuple(past.shape)} for logits of shape {tuple(logits.shape)}: must agree; "
                "pass the past self's probabilities of the same batch"
            )
        rate = smoothing_rate(log_probs.detach())
        return (1 - rate) * hard - rate * dot(past.detach().to(log_probs.dtype), log_probs)


def smoothing_rate(log_probs: Tensor) -> Tensor:
    """α_n = 1 − H(p_n)/log K: 0 for a uniform prediction, 1 for a certain one.

    >>> import torch
    >>> smoothing_rate(torch.tensor([[0.7, 0.2, 0.1]]).log())
    tensor([0.2702])
    """
    return 1 + dot(log_probs.exp(), log_probs) / math.log(log_probs.shape[1])
