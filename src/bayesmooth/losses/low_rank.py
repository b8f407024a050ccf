"""Low-rank adaptive smoothing: a learned embedding of the classes says which of them share mass."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.losses.base import Loss, Reduction, dot, pick, within


class LowRankSmoothing(Loss):
    """L = −log p_y + β[−Σ_j V_j log p_j − ηH(V)] with V = softmax(E_y Eᵀ), so ε = β(V − p).

    E (K, rank) starts at ones, where V is uniform, and is trained beside the model; in training mode it is seen through
    dropout, drawn from `seed` and the number of draws so far.

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
        within("num_classes", num_classes, "count the classes of the labels", low=2)
        within("rank", rank, "the method's own is 20", low=1)
        self.beta = within("beta", beta, "0 is plain cross-entropy")
        self.eta = within("eta", eta, "0 leaves the entropy of V free")
        self.dropout = within("dropout", dropout, "0 is no dropout", high=0.99)
        self.seed = seed
        self.embedding = nn.Parameter(torch.ones(num_classes, rank, dtype=torch.float32))
        self.draws = 0

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """Cross-entropy and β times that with the learned label V, less ηH(V)."""
        self.check_classes(logits, len(self.embedding))
        embedding = self._dropped() if self.training and self.dropout else self.embedding
        embedding = embedding.to(logits.dtype)
        log_probs = logits.log_softmax(1)
        with torch.autocast(logits.device.type, enabled=False):
            log_soft = F.linear(embedding.index_select(0, labels), embedding).log_softmax(1)
        learned = dot(log_soft.exp(), self.eta * log_soft - log_probs)
        return self.beta * learned - pick(log_probs, labels)

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
