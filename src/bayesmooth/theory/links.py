"""Exponential families: the log-partition A(f), its derivatives, and their expectations under a Gaussian f.

A loss of the paper reads ℓ(f) = −yᵀf + A(f)  (eq:glm_loss), so A′ is the model's prediction and A″ its variance. Every
formula is stable: |f| up to 1e4 gives neither NaN nor a lost digit, in float32 and float64. `moments` are E[A], E[A′]
and E[A″], which the variational objective and its steps need: a closed form for Gaussian, quadrature for Bernoulli
(within 1e-7 at any variance), and averages over points for the softmax. All of it is batched and differentiable, on any
device and floating dtype.
"""

from collections.abc import Callable
from functools import lru_cache
from math import exp, pi
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.quasirandom import SobolEngine

from bayesmooth.errors import InputError

NODES = 32
WIDE_LOGIT = 1.5  # standard deviation past which a sigmoid is integrated over the logistic variable
LOGISTIC_STEP = 0.8  # between the points at which the logistic variable is taken, from −25 to 25
SAMPLES = 512  # shared points of the softmax
AT_ONCE = 1 << 18  # drawn logits, which fit the cache


class Link(Protocol):
    """A(f) and its derivatives. `vector` says that the last axis of f is one K-dimensional logit.

    A covariance of f has the shape of f (independent entries) or one more axis of size K (one matrix per example).
    """

    vector: bool = False

    def log_partition(self, f: Tensor) -> Tensor:
        """A(f)."""

    def mean(self, f: Tensor) -> Tensor:
        """A′(f), the expected label."""

    def variance(self, f: Tensor) -> Tensor:
        """A″(f), the variance of the label: the shape of f, or (…, K, K)."""


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


# ---- expectations under a Gaussian ----


def gaussian_expectation(g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, nodes: int = NODES) -> Tensor:
    """E[g(f)], f ~ N(mean, var), entry by entry, by Gauss–Hermite quadrature; g acts on entries.

    32 nodes give the sigmoid to 1e-12 for var = 1 and 3e-5 for var = 10.

    >>> gaussian_expectation(torch.exp, torch.tensor(0.0), torch.tensor(1.0))  # e^½
    tensor(1.6487)
    """
    std = covariance_root(mean, var)
    total = torch.zeros_like(mean + std)
    for point, weight in zip(*hermite_rule(nodes), strict=True):
        total.add_(g(torch.add(mean, std, alpha=point)), alpha=weight)
    return total


def covariance_root(mean: Tensor, cov: Tensor) -> Tensor:
    """Σ^½: the standard deviations where cov has the shape of the mean, else Cholesky factors."""
    eps = torch.finfo(cov.dtype).eps
    if cov.ndim <= mean.ndim:
        least, most = cov.detach().aminmax() if cov.numel() else (0.0, 0.0)
        if not (least >= 0 and most < float("inf")):
            odd = float(most if least >= 0 else least)
            raise InputError(f"variance {odd}: must be ≥ 0, finite and no NaN")
        # ∂√v/∂v is infinite at 0, where ∂E/∂v = ½E[g″] is not: step off the point
        return (torch.where(cov < eps, cov + eps, cov) if cov.requires_grad else cov).sqrt()
    diagonal = cov.diagonal(dim1=-2, dim2=-1)
    root = cholesky(cov, diagonal.amax(-1, keepdim=True).expand_as(diagonal))
    if root is None:
        raise InputError("covariance with negative, infinite or NaN eigenvalues: must be positive semi-definite")
    return root


def cholesky(matrix: Tensor, scale: Tensor) -> Tensor | None:
    """L with LLᵀ = matrix, which may take rounding errors of `scale` on its diagonal first; None if that fails."""
    unit = matrix.shape[-1] * torch.finfo(matrix.dtype).eps * scale
    for jitter in (0, 4, 100, 10_000):
        root, failed = torch.linalg.cholesky_ex(
            matrix + torch.diag_embed(jitter * unit + torch.finfo(matrix.dtype).tiny)
        )
        if not bool(failed.any()) and bool(root.isfinite().all()):
            return root  # type: ignore[no-any-return]
    return None


@lru_cache(maxsize=64)
def hermite_rule(nodes: int) -> tuple[list[float], list[float]]:
    """Points and weights with E[g(e)] ≈ Σ w g(x), e ~ N(0, 1): exact to degree 2·nodes − 1."""
    if nodes < 1:
        raise InputError(f"nodes={nodes}: must be at least 1; 32 is the usual choice")
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points.tolist(), (weights / weights.sum()).tolist()


@lru_cache(maxsize=16)
def gaussian_points(dim: int, samples: int, seed: int) -> Tensor:
    """Points (samples, dim) of N(0, I): scrambled Sobol points under the inverse normal CDF, mirrored.

    Where there are enough of them they are whitened.
    """
    sobol = SobolEngine(dim, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    uniform = sobol.draw(samples // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    points = torch.cat([half, -half])
    if len(points) >= 4 * dim:
        root = torch.linalg.cholesky(points.T @ points / len(points))
        points = torch.linalg.solve_triangular(root, points.T, upper=False).T
    return points


# ---- the moments of links ----


class Moments(NamedTuple):
    """Expectations under f ~ N(mean, cov)."""

    log_partition: Tensor  # E[A(f)]
    mean: Tensor  # E[A′(f)]
    variance: Tensor  # E[A″(f)]; for independent categorical logits its diagonal only


def moments(link: Link, mean: Tensor, cov: Tensor) -> Moments:
    """E[A], E[A′], E[A″] for f ~ N(mean, cov)."""
    if isinstance(link, Categorical):
        return softmax_moments(mean, cov)
    if isinstance(link, Bernoulli):
        return sigmoid_moments(mean, cov)
    if isinstance(link, Gaussian):
        return Moments((mean.square() + cov) / 2, mean + 0 * cov, torch.ones_like(mean + cov))
    return Moments(*(gaussian_expectation(g, mean, cov) for g in (link.log_partition, link.mean, link.variance)))


def sigmoid_moments(mean: Tensor, var: Tensor) -> Moments:
    """The Bernoulli moments.

    σ(f) = P(x < f), x logistic. Where f is wide the average over x is the easy one: with z = (m − x)/s,
    E[σ] = E[Φ(z)], E[σ′] = E[φ(z)]/s and E[A] = s E[zΦ(z) + φ(z)].
    """
    std = covariance_root(mean, var)
    narrow = std.detach() <= WIDE_LOGIT
    link, moderate = Bernoulli(), var.clamp(max=WIDE_LOGIT**2)
    functions = (link.log_partition, link.mean, link.variance)
    near = Moments(*(gaussian_expectation(g, mean, moderate) for g in functions))
    if bool(narrow.all()):
        return near
    s = std.clamp_min(WIDE_LOGIT)
    cdf, density, rise = (torch.zeros_like(mean + s) for _ in range(3))
    points = [LOGISTIC_STEP * i for i in range(-31, 32)]
    weights = [1 / (2 + exp(x) + exp(-x)) for x in points]
    for point, share in zip(points, weights, strict=True):
        z, weight = (mean - point) / s, share / sum(weights)
        below, here = torch.special.ndtr(z), torch.exp(-z.square() / 2) / (2 * pi) ** 0.5
        cdf.add_(below, alpha=weight)
        density.add_(here, alpha=weight)
        rise.add_(z * below + here, alpha=weight)
    wide = Moments(s * rise, cdf, density / s)
    return Moments(*(torch.where(narrow, *pair) for pair in zip(near, wide, strict=True)))


def softmax_moments(mean: Tensor, cov: Tensor, samples: int = SAMPLES, seed: int = 0, *, own: bool = False) -> Moments:
    """The categorical moments of logits (…, K), averaged over `samples` points, in pieces that fit the cache.

    Shared quasi-random points are exact to degree 3 (where they are enough): ε is right to a few per cent of itself for
    standard deviations up to 1; of two classes it is right to rounding, if `samples` are not fewer than usual. With
    `own`, every example has mirrored random draws of its own, the same at every call: their errors cancel over the
    examples, so that a few are enough to fit a model.
    """
    if samples < 2 or samples % 2:
        raise InputError(f"{samples} draws: must be even and at least 2, as they come in pairs")
    batch, classes = mean.shape[:-1], mean.shape[-1]
    if classes == 2 and samples >= SAMPLES and not own:
        return two_class_moments(mean, cov)
    flat, spread = mean.reshape(-1, classes), cov.reshape(-1, *cov.shape[mean.ndim - 1 :])
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, AT_ONCE // (classes * samples))
    pieces = []
    for m, c in zip(torch.split(flat, rows), torch.split(spread, rows), strict=True):
        if own:
            half = torch.randn((samples // 2, *m.shape), generator=generator, dtype=m.dtype, device="cpu").to(m.device)
            points = torch.cat([half, -half])
        else:
            points = gaussian_points(classes, samples, seed).to(m).unsqueeze(1)
        root, correlated = covariance_root(m, c), c.ndim > m.ndim
        f = m + (torch.einsum("nij,snj->sni", root, points.expand(-1, len(m), -1)) if correlated else root * points)
        top = f.detach().amax(-1, keepdim=True)
        unscaled = torch.exp(f - top)
        total = unscaled.sum(-1, keepdim=True)
        p = unscaled / total
        share = m.new_full((samples,), 1 / samples)  # by it a mean takes half of the time that `mean` does
        log_partition = torch.tensordot(share, (top + total.log()).squeeze(-1), 1)
        expected = torch.tensordot(share, p, 1)
        if correlated:
            variance = torch.diag_embed(expected) - torch.einsum("s,snj,snk->njk", share, p, p)
        else:
            variance = expected - torch.tensordot(share, p * p, 1)
        pieces.append(Moments(log_partition, expected, variance))
    return Moments(*(torch.cat(p).reshape(batch + p[0].shape[1:]) for p in zip(*pieces, strict=True)))


def two_class_moments(mean: Tensor, cov: Tensor) -> Moments:
    """Two classes are one sigmoid of f₀ − f₁, and A(f) = f₁ + log(1 + e^(f₀ − f₁))."""
    correlated = cov.ndim > mean.ndim
    signs = mean.new_tensor([1.0, -1.0])
    var = torch.einsum("...ij,i,j->...", cov, signs, signs) if correlated else cov.sum(-1)
    one = sigmoid_moments(mean[..., 0] - mean[..., 1], var)
    shape = signs[:, None] * signs if correlated else signs.abs()
    variance = one.variance.reshape(*one.variance.shape, *[1] * shape.ndim) * shape
    return Moments(mean[..., 1] + one.log_partition, torch.stack([one.mean, 1 - one.mean], -1), variance)
