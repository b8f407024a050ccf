"""Leave-one-out without refitting: the posterior itself says what it would predict without an example.

Removing example i from a Gaussian posterior takes its site away, Λ₋ᵢ = Λ − φᵢA″ᵢφᵢᵀ, and its pull on the mean
back. In the space of its own logits that is (memory perturbation, Nickl et al. 2023)

    V₋ᵢ = (I − VᵢA″ᵢ)⁻¹ Vᵢ,    f₋ᵢ = fᵢ + V₋ᵢ (pᵢ − yᵢ),

V the posterior covariance of the logits, p the averaged prediction. Where the logits are independent the
curvature is diagonal too, h = p(1 − p), and V₋ = V / (1 − Vh).
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LEVERAGE = (
    0.95  # Vh beyond it is an error of the approximation: no example is its own only witness
)


class LeftOut(NamedTuple):
    """The logits of each example with that example removed, N(logits, cov)."""

    logits: Tensor
    cov: Tensor


def leave_one_out(
    logits: Tensor,
    cov: Tensor,
    averaged: Tensor,
    labels: Tensor,
    curvature: Tensor | None = None,
) -> LeftOut:
    """f₋ᵢ and V₋ᵢ from one fit; `cov` is (N, K) for independent logits, or (N, K, K).

    `curvature` is E[A″] (N, K, K), for correlated logits; default: that of the averaged prediction.

    >>> leave_one_out(torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 0.5), torch.tensor([0]))
    LeftOut(logits=tensor([[-0.6667,  0.6667]]), cov=tensor([[1.3333, 1.3333]]))
    """
    pull = averaged.scatter_add(1, labels[:, None], -torch.ones_like(averaged[:, :1]))
    if cov.ndim == logits.ndim:
        leverage = (cov * averaged * (1 - averaged)).clamp_max(MAX_LEVERAGE)
        left = cov / (1 - leverage)
        return LeftOut(logits + left * pull, left)
    if curvature is None:
        curvature = torch.diag_embed(averaged) - averaged.unsqueeze(-1) * averaged.unsqueeze(-2)
    left = _removed(cov, curvature)
    return LeftOut(logits + (left @ pull.unsqueeze(-1)).squeeze(-1), left)


def _removed(cov: Tensor, curvature: Tensor) -> Tensor:
    """(I − VA″)⁻¹V by the eigenvalues of RᵀA″R, V = RRᵀ, none of which may reach 1."""
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    leverage, axes = torch.linalg.eigh(root.mT @ curvature @ root)
    turned = root @ axes
    removed: Tensor = (turned / (1 - leverage.clamp_max(MAX_LEVERAGE)).unsqueeze(-2)) @ turned.mT
    return removed
