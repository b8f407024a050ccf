"""Low-rank adaptive smoothing: a learned embedding of the classes says which of them share mass."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.losses.base import (
    Loss,
    Reduction,
    pick,
    predictions,
    refuse_second_derivatives,
    within,
)


class LowRankSmoothing(Loss):
    """L = −log p_y + β[−Σ_j V_j log p_j − ηH(V)] with V = softmax(E_y Eᵀ), so ε = β(V − p).

    E (K, rank) starts at ones, where V is uniform, and is trained beside the model; in training mode it is seen through
    dropout, drawn from `seed` and the number of draws so far. The gradient is written out and can be differentiated
    once.

    References: Ghoshal et al., Learning Better Structured Representations Using Low-Rank Adaptive Label Smoothing,
    ICLR 2021.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rank: int = 20,
        beta: float = 0.1,
        eta: float = 0.1,
        dropout: float = 0.4,
        seed: int = 0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        infinity = float("inf")
        within("num_classes", num_classes, 2, infinity, "count the classes of the labels")
        within("rank", rank, 1, infinity, "the method's own is 20")
        self.beta = within("beta", beta, 0, infinity, "0 is plain cross-entropy")
        self.eta = within("eta", eta, 0, infinity, "0 leaves the entropy of V free")
        self.dropout = within("dropout", dropout, 0, 0.99, "0 is no dropout")
        self.seed = seed
        self.embedding = nn.Parameter(torch.ones(num_classes, rank, dtype=torch.float32))
        self.draws = 0

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and β times that with the learned label V, less ηH(V)."""
        self.check_classes(logits, len(self.embedding))
        embedding = self._dropped() if self.training and self.dropout else self.embedding
        embedding = embedding.to(logits.dtype)
        with torch.autocast(logits.device.type, enabled=False):
            values: Tensor = _LowRank.apply(logits, embedding, labels, self.beta, self.eta)  # type: ignore[no-untyped-call]
        return values

    def _dropped(self) -> Tensor:
        shape, device = self.embedding.shape, self.embedding.device
        # torch's CPU generator reads 32 bits of its seed; the golden ratio keeps the draws of two seeds far apart
        name = (self.seed * 0x9E3779B1 + self.draws) % 2**32
        generator = torch.Generator().manual_seed(name)
        self.draws += 1
        uniform = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
        keep = uniform.ge_(self.dropout).div_(1 - self.dropout)
        return self.embedding * keep.to(device, non_blocking=True)

    def get_extra_state(self) -> dict[str, int]:
        """The number of draws, which `state_dict` keeps."""
        return {"draws": self.draws}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Go on with the draws of the saved loss."""
        self.draws = state["draws"]


class _LowRank(torch.autograd.Function):
    """The loss with both gradients in closed form: several arrays of the logits' size fewer than autograd keeps."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, embedding: Tensor, labels: Tensor, beta: float, eta: float
    ) -> Tensor:
        rows = embedding.index_select(0, labels)
        scores = F.linear(rows, embedding)
        probs, log_total = _softmax(logits)
        soft, log_soft_total = _softmax(scores)
        # V∘(log p − η log V) but for the constants of a row, which leave ∂/∂U, V∘(w − Σ V w), as it is.
        weighted = torch.sub(logits, scores, alpha=eta).mul_(soft)
        agreement = weighted.sum(1)
        weighted.addcmul_(soft, agreement.unsqueeze(1), value=-1)
        ctx.save_for_backward(probs, soft, weighted, rows, embedding, labels)
        ctx.beta = beta
        hard = log_total - pick(logits, labels)
        return hard + beta * (log_total - agreement - eta * log_soft_total)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        refuse_second_derivatives()
        probs, soft, weighted, rows, embedding, labels = ctx.saved_tensors
        upstream = upstream.unsqueeze(1)
        scaled = -ctx.beta * upstream
        to_logits = probs * ((1 + ctx.beta) * upstream)
        to_logits.addcmul_(soft, scaled).scatter_add_(1, labels.unsqueeze(1), -upstream)
        # U = E_y Eᵀ has E on both sides. Products of wide by tall matrices are the fast ones.
        from_left = (embedding.t() @ weighted.t()).t() * scaled
        from_right = ((scaled * rows).t() @ weighted).t()
        to_embedding = from_right.index_add(0, labels, from_left)
        return to_logits, to_embedding, None, None, None


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """softmax and log Σ_j exp(score_j), of the largest entry's logarithm."""
    probs = scores.softmax(1)
    top = predictions(scores)
    return probs, pick(scores, top) - pick(probs, top).log_()
