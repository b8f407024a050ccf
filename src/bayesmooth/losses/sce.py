"""Symmetric cross-entropy: the label teaches the prediction, and the prediction judges the label."""

from typing import Any

from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, pick, within


class SCE(Loss):
    """L = −α log p_y + βA(1 − p_y), so ε = (1 − α − βA p_y)(p − y).

    The second term is the cross-entropy −Σ_j p_j log y_j the other way round, with −A for log 0. Our A = 4 is the
    paper's; the authors' code has −log 10⁻⁴ = 9.2. On CIFAR-100 they use α = 6, β = .1.

    References: Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019.
    """

    def __init__(self, alpha: float = 0.1, beta: float = 1.0, *, A: float = 4.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        infinity = float("inf")
        self.alpha = within("alpha", alpha, 0, infinity, "0 leaves only the reverse term")
        self.beta = within("beta", beta, 0, infinity, "0 leaves only cross-entropy")
        self.A = within("A", A, 0, infinity, "give −log of what stands for 0")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−α log p_y + βA(1 − p_y)."""
        log_prob = pick(logits.log_softmax(1), labels)
        return -self.alpha * log_prob - self.beta * self.A * log_prob.expm1()
