"""The log-partition A(f) of exponential families, and its derivatives A′ and A″  (eq:glm_loss).

A loss of the paper reads ℓ(f) = −yᵀf + A(f), so A′ is the model's prediction and A″ its variance.
Every formula is stable: |f| up to 1e4 gives neither NaN nor a lost digit, in float32 and float64
(Poisson's eᶠ overflows to inf where the number itself does).
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Link(Protocol):
    """A(f) and its derivatives. `vector` says that the last axis of f is one K-dimensional logit.

    Covariances of f come as `cov`: the shape of f (independent entries), or with one more axis of
    size K (one matrix per example).
    """

    vector: bool = False

    def log_partition(self, f: Tensor) -> Tensor:
        """A(f)."""

    def mean(self, f: Tensor) -> Tensor:
        """A′(f), the expected label."""

    def variance(self, f: Tensor) -> Tensor:
        """A″(f), the variance of the label: the shape of f, or (…, K, K)."""

    def variance_times(self, f: Tensor, d: Tensor) -> Tensor:
        """A″(f) d, without a K×K matrix."""
        return self.variance(f) * d

    def curvature(self, f: Tensor, cov: Tensor) -> Tensor:
        """E[dᵀ∇²A′(f) d] for d ~ N(0, cov): A‴(f)·v for a scalar f."""


class Bernoulli(Link):
    """A(f) = log(1 + eᶠ): binary labels, A′ is the sigmoid  (eq:bce).

    >>> Bernoulli().mean(torch.tensor([-1e4, 0.0, 1e4]))
    tensor([0.0000, 0.5000, 1.0000])
    """

    def log_partition(self, f: Tensor) -> Tensor:
        """log(1 + eᶠ)."""
        return -F.logsigmoid(-f)  # softplus would switch to f itself from 20 on: 2e-9 off

    def mean(self, f: Tensor) -> Tensor:
        """σ(f)."""
        return torch.sigmoid(f)

    def variance(self, f: Tensor) -> Tensor:
        """σ′ = σ(f) σ(−f)."""
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def curvature(self, f: Tensor, cov: Tensor) -> Tensor:
        """σ″(f)·v = −σ′(f) tanh(f/2)·v."""
        return -self.variance(f) * torch.tanh(f / 2) * cov


class Categorical(Link):
    """A(f) = log Σ_k exp f_k over the last axis: K classes, A′ is the softmax  (eq:softmax)."""

    vector = True

    def log_partition(self, f: Tensor) -> Tensor:
        """log Σ_k exp f_k, with the last axis gone."""
        return torch.logsumexp(f, -1)

    def mean(self, f: Tensor) -> Tensor:
        """The softmax."""
        return torch.softmax(f, -1)

    def variance(self, f: Tensor) -> Tensor:
        """diag(p) − ppᵀ, its diagonal as minus the sum of the row: 1 − p would cancel."""
        p = torch.softmax(f, -1)
        off = torch.eye(f.shape[-1], dtype=torch.bool, device=f.device).logical_not()
        products = p.unsqueeze(-1) * p.unsqueeze(-2) * off
        return torch.diag_embed(products.sum(-1)) - products

    def variance_times(self, f: Tensor, d: Tensor) -> Tensor:
        """p ∘ (d − pᵀd)."""
        p = torch.softmax(f, -1)
        return p * (d - (p * d).sum(-1, keepdim=True))

    def curvature(self, f: Tensor, cov: Tensor) -> Tensor:
        """p_i (V_ii − 2(Vp)_i + 2pᵀVp − Σ_k p_k V_kk), V the covariance."""
        p = torch.softmax(f, -1)
        matrix = cov.ndim == f.ndim + 1
        diagonal = cov.diagonal(dim1=-2, dim2=-1) if matrix else cov
        cov_p = (cov @ p.unsqueeze(-1)).squeeze(-1) if matrix else cov * p
        shared = 2 * (p * cov_p).sum(-1, keepdim=True) - (p * diagonal).sum(-1, keepdim=True)
        return p * (diagonal - 2 * cov_p + shared)


class Poisson(Link):
    """A(f) = eᶠ: counts with rate eᶠ."""

    def log_partition(self, f: Tensor) -> Tensor:
        """eᶠ."""
        return torch.exp(f)

    mean = log_partition
    variance = log_partition

    def curvature(self, f: Tensor, cov: Tensor) -> Tensor:
        """eᶠ·v."""
        return torch.exp(f) * cov


class Gaussian(Link):
    """A(f) = f²/2: real labels with unit noise. Its label noise is zero: nothing bends A′."""

    def log_partition(self, f: Tensor) -> Tensor:
        """f²/2."""
        return f.square() / 2

    def mean(self, f: Tensor) -> Tensor:
        """The label's mean is f itself."""
        return f

    def variance(self, f: Tensor) -> Tensor:
        """One."""
        return torch.ones_like(f)

    def curvature(self, f: Tensor, cov: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(f)
