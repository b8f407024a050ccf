"""Losses that are one formula of the logits and the label: smoothed by confidence, penalised, or robust by shape."""

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.errors import InputError, one_of
from bayesmooth.losses.base import Loss, Reduction, dot, pick, within

BETAS = {"soft": 0.95, "hard": 0.8}  # of bootstrapping, the authors'
EPS = 1e-12  # inside the square root, whose slope at 0 is infinite


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
        given = log_probs.detach()
        rate = 1 + dot(given.exp(), given) / math.log(given.shape[1])  # 0 for a uniform prediction, 1 for a certain one
        return (1 - rate) * hard - rate * dot(past.detach().to(log_probs.dtype), log_probs)


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
        self.alpha = within("alpha", alpha, "0 is plain cross-entropy")
        self.positive = within("positive", positive, "0 drops the term")
        self.negative = within("negative", negative, "0 drops the term")
        self.margin = within("margin", margin, "the method's own is 10")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and the two margins."""
        top = logits.amax(1, keepdim=True)
        ties = (logits == top).sum(1)  # `amax` shares its gradient among them
        below = (top.detach() - logits - self.margin).relu()  # 0 at the top, as the margin is ≥ 0
        push_down = self.positive * ties * (top.squeeze(1) - self.margin).relu().square()
        pull_up = self.negative / (logits.shape[1] - 1) * below.square().sum(1)
        return F.cross_entropy(logits, labels, reduction="none") + self.alpha * (push_down + pull_up)


class ConfidencePenalty(Loss):
    """L = −log p_y − βH(p), so ε_i = −βp_i(log p_i + H).

    With a `threshold` Γ it is the hinge form −log p_y + β max(0, Γ − H): predictions with entropy above Γ nats are left
    alone, ε = 0.
    The formula is from memory of the paper, without its code at hand.

    References: Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions, 2017.
    """

    def __init__(self, beta: float = 0.1, *, threshold: float | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.beta = within("beta", beta, "0 is plain cross-entropy")
        self.threshold = threshold
        if threshold is not None:
            within("threshold", threshold, "None penalises every prediction")

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y − βH(p), or its hinge form."""
        log_probs = logits.log_softmax(1)
        entropy = -dot(log_probs.exp(), log_probs)
        penalty = -entropy if self.threshold is None else (self.threshold - entropy).relu()
        return self.beta * penalty - pick(log_probs, labels)


class OODSmoothing(Loss):
    """L = −log p_y + λ s with s = sqrt((1/(K−1)) Σ_{i≠k} (p_i − p̄)²), p̄ the mean of p_i over i ≠ k.

    The excluded class k is the predicted one (exclude="predicted", the formula) or the label (exclude="true", the
    abstract's words). With d_i = (p_i − p̄)/((K−1)s) for i ≠ k and d_k = 0, ε_i = −λ p_i (d_i − Σ_j p_j d_j).
    λ has no default: no value is known to be good.

    References: Xu et al., Adaptive Label Smoothing for Out-of-Distribution Detection, 2024.
    """

    def __init__(
        self, weight: float, *, exclude: Literal["predicted", "true"] = "predicted", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.weight = within("weight", weight, "0 is plain cross-entropy")
        self.exclude = one_of("exclude", exclude, ("predicted", "true"))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and λ times the spread of the other classes."""
        log_probs, others = logits.log_softmax(1), logits.shape[1] - 1
        excluded = (labels if self.exclude == "true" else logits.argmax(1)).unsqueeze(1)
        probs = log_probs.exp()
        mean = probs.scatter(1, excluded, 0.0).sum(1, keepdim=True) / others
        deviation = (probs - mean).scatter(1, excluded, 0.0)
        spread = (dot(deviation, deviation) / others + EPS).sqrt()
        return self.weight * spread - pick(log_probs, labels)


class GCE(Loss):
    """L = (1 − p_y^q)/q, so ε = (1 − p_y^q)(p − y): a label that the model doubts gives way to its prediction.

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
        self.form = one_of("form", form, tuple(BETAS))
        self.beta = within("beta", BETAS[form] if beta is None else beta, "1 is plain cross-entropy", high=1)

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−β log p_y − (1−β) Σ_j g_j log p_j."""
        log_probs = logits.log_softmax(1)
        own = log_probs.max(1).values if self.form == "hard" else dot(log_probs.exp(), log_probs)
        return -self.beta * pick(log_probs, labels) - (1 - self.beta) * own
