"""Plain cross-entropy: every other loss is measured against it."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from bayesmooth.losses.base import Loss


class CrossEntropy(Loss):
    """L = −log p_y, and ε = 0.

    >>> import torch
    >>> CrossEntropy()(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y."""
        return F.cross_entropy(logits, labels, reduction="none")
