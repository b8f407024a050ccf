"""Losses that remember every example: its early predictions (ELR), or what is wrong with its label (SOP)."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, dot, pick, within

LEAST = 1e-4  # of a probability, and of 1 − ⟨p, t⟩, as in the authors' code
START = 1e-8  # of u and v; only their squares count, so they need no random sign


class ELR(Loss):
    """L = −log p_y + λ log(1 − ⟨p, t⟩), so ε_i = λ p_i (t_i − ⟨p, t⟩)/(1 − ⟨p, t⟩).

    t is the moving average of the example's own predictions, t ← βt + (1−β)p from 0, made anew by every forward in
    training mode; it carries no gradient. In evaluation mode the loss is cross-entropy. Forward needs `index` (B,), the
    examples' positions in the training set. The averages take 4·N·K bytes. On CIFAR-100 the authors use β = .9, λ = 7.

    References: Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index"})
    averages: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        weight: float = 3.0,
        beta: float = 0.7,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes, num_examples)
        self.weight = within("weight", weight, "0 is plain cross-entropy")
        self.beta = within("beta", beta, "0 keeps no average", high=1)
        self.register_buffer("averages", torch.zeros(num_examples, num_classes, dtype=torch.float32))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y + λ log(1 − ⟨p, t⟩)."""
        hard = F.cross_entropy(logits, labels, reduction="none")
        if not self.training:
            return hard
        index, probs = extra["index"], logits.softmax(1)
        average = self.averages.index_select(0, index)
        average = average.lerp(probs.detach().to(average.dtype), 1 - self.beta)
        self.averages.index_copy_(0, index, average)
        agreement = dot(probs, average.to(probs.dtype))
        return hard + self.weight * (1 - agreement).clamp_min(LEAST).log()


class SOP(Loss):
    """L = −log r_y + ‖ŷ + s − y‖², where r is p + s with its entries ≥ 10⁻⁴, normalised, and s is the example's own.

    s = u² on the label and −v_j² on each other class j, none above 1, and ŷ is the predicted class. Where no bound
    is met, ε = (1 − p_y/(p_y + u²))(p − y): what u explains of the label, the network need not learn.

    u and v follow their own gradients: every forward in training mode takes a step with the rates `u_lr` and `v_lr`, as
    the authors' second optimizer does (their −log r_y moves u only). So they are buffers, and any optimizer trains the
    network. In evaluation mode the loss is cross-entropy. Forward needs `index` (B,), the examples' positions in the
    training set; the buffers take 4·N·(K + 1) bytes. SOP+, with its consistency and balance terms, is not here.

    References: Liu et al., Robust Training under Label Noise by Over-parameterization, ICML 2022.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index"})
    u: Tensor
    v: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        u_lr: float = 10.0,
        v_lr: float = 10.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, num_classes, num_examples)
        self.u_lr = within("u_lr", u_lr, "0 is cross-entropy but for a constant")
        self.v_lr = within("v_lr", v_lr, "0 leaves v at its start")
        self.register_buffer("u", torch.full((num_examples, 1), START, dtype=torch.float32))
        self.register_buffer("v", torch.full((num_examples, num_classes), START, dtype=torch.float32))

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log r_y + ‖ŷ + s − y‖², and a step of u and v.

        u ← u − (u_lr/B)·2u(1/Σ_j q_j − 1/q_y + 2 res_y), v_j ← v_j + (v_lr/B)·4 v_j res_j for j ≠ y, q = p + s.
        """
        if not self.training:
            return F.cross_entropy(logits, labels, reduction="none")
        index, classes = extra["index"], logits.shape[1]
        label = F.one_hot(labels, classes).to(logits.dtype)
        u, v = self.u.index_select(0, index), self.v.index_select(0, index)
        shift = label * u.square().clamp_max(1) - (1 - label) * v.square().clamp_max(1)
        guess = F.one_hot(logits.argmax(1), classes).to(logits.dtype)
        residual = guess + shift - label
        corrected = (logits.softmax(1) + shift).clamp_min(LEAST)
        total, given = corrected.sum(1), pick(corrected, labels)
        with torch.no_grad():
            share = 1 / len(labels)
            slope = 2 * u[:, 0] * (1 / total - 1 / given + 2 * pick(residual, labels))
            growth = (4 * v * residual).scatter(1, labels.unsqueeze(1), 0.0)
            self.u.index_copy_(0, index, (u - self.u_lr * share * slope.unsqueeze(1)).to(u.dtype))
            self.v.index_copy_(0, index, (v + self.v_lr * share * growth).to(v.dtype))
        return residual.square().sum(1) - (given / total).clamp_min(LEAST).log()
