"""Losses that bear wrong labels by their shape alone: generalised and symmetric cross-entropy, bootstrapping."""

from typing import Any, Literal

import torch
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, dot, one_of, pick, within

BETAS = {"soft": 0.95, "hard": 0.8}  # the authors'


class GCE(Loss):
    """L = (1 − p_y^q)/q, so ε = (1 − p_y^q)(p − y): what the model doubts, it labels itself.

    q → 0 is cross-entropy, q = 1 is 1 − p_y, half the mean absolute error.

    References: Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels,
    NeurIPS 2018.
    """

    def __init__(self, q: float = 0.7, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.q = within("q", q, "use CrossEntropy for the limit 0", low=1e-3, high=1)

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """(1 − p_y^q)/q."""
        return -torch.expm1(self.q * pick(logits.log_softmax(1), labels)) / self.q


class SCE(Loss):
    """L = −α log p_y + βA(1 − p_y), so ε = (1 − α − βA p_y)(p − y).

    The second term is the cross-entropy −Σ_j p_j log y_j the other way round, with −A for log 0. Our A = 4 is the
    paper's; the authors' code has −log 10⁻⁴ = 9.2. On CIFAR-100 they use α = 6, β = .1.

    References: Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019.
    """

    def __init__(self, alpha: float = 0.1, beta: float = 1.0, *, A: float = 4.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.alpha = within("alpha", alpha, "0 leaves only the reverse term")
        self.beta = within("beta", beta, "0 leaves only cross-entropy")
        self.A = within("A", A, "give −log of what stands for 0")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−α log p_y + βA(1 − p_y)."""
        log_prob = pick(logits.log_softmax(1), labels)
        return -self.alpha * log_prob - self.beta * self.A * log_prob.expm1()


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
        self.beta = within("beta", BETAS[form] if beta is None else beta, "1 is plain cross-entropy", high=1)

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−β log p_y − (1−β) Σ_j g_j log p_j."""
        log_probs = logits.log_softmax(1)
        own = log_probs.max(1).values if self.form == "hard" else dot(log_probs.exp(), log_probs)
        return -self.beta * pick(log_probs, labels) - (1 - self.beta) * own
