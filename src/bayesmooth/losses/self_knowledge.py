"""Self-knowledge smoothing: confident examples are smoothed most, towards the model's earlier prediction."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, can_be_read, dot


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
        hard = F.nll_loss(log_probs, labels, reduction="none")
        if past is None:
            return hard
        past = past.detach()
        _check_past(past, logits)
        past = past.to(log_probs.dtype)
        rate = smoothing_rate(log_probs.detach())
        return (1 - rate) * hard - rate * dot(past, log_probs)


def smoothing_rate(log_probs: Tensor) -> Tensor:
    """α_n = 1 − H(p_n)/log K: 0 for a uniform prediction, 1 for a certain one.

    >>> smoothing_rate(torch.tensor([[0.7, 0.2, 0.1]]).log())
    tensor([0.2702])
    """
    entropy = -dot(log_probs.exp(), log_probs)
    return 1 - entropy / math.log(log_probs.shape[1])


def _check_past(past: Tensor, logits: Tensor) -> None:
    if past.shape != logits.shape:
        raise InputError(
            f"past of shape {tuple(past.shape)} for logits of shape {tuple(logits.shape)}: must agree; "
            "pass the past self's probabilities of the same batch"
        )
    if can_be_read(past):
        low, high = (float(bound) for bound in torch.aminmax(past.sum(1)))
        if not 0.98 < low <= high < 1.02:
            raise InputError(
                f"past has rows that sum to {low:.3g}…{high:.3g}: must be probabilities; pass past.softmax(1)"
            )
