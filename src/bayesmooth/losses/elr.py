"""ELR: what a network predicted early, before it memorised, holds it back later."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.losses.base import Loss, Reduction, check_index, dot, within

LEAST = 1e-4  # of 1 − ⟨p, t⟩, as in the authors' code


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
        super().__init__(reduction)
        self.weight = within("weight", weight, 0, float("inf"), "0 is plain cross-entropy")
        self.beta = within("beta", beta, 0, 1, "0 keeps no average")
        self.register_buffer("averages", torch.zeros(num_examples, num_classes, dtype=torch.float32))

    def per_example(self, logits: Tensor, labels: Tensor, *, index: Tensor | None = None, **extra: Any) -> Tensor:
        """−log p_y + λ log(1 − ⟨p, t⟩)."""
        self.check_classes(logits, self.averages.shape[1])
        hard = F.cross_entropy(logits, labels, reduction="none")
        if not self.training:
            return hard
        index = check_index(index, labels, len(self.averages), "ELR")
        probs = logits.softmax(1)
        agreement = dot(probs, self._average(probs.detach(), index).to(probs.dtype))
        return hard + self.weight * (1 - agreement).clamp_min(LEAST).log()

    def _average(self, probs: Tensor, index: Tensor) -> Tensor:
        """t ← βt + (1−β)p, kept and returned."""
        average = self.averages.index_select(0, index)
        average = average.lerp(probs.to(average.dtype), 1 - self.beta)
        self.averages.index_copy_(0, index, average)
        return average
