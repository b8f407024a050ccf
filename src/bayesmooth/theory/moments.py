"""E[A], E[A′] and E[A″] under Gaussian logits: what the variational objective and its steps need.

Closed forms for Poisson and Gaussian, quadrature for Bernoulli (within 1e-6 at any variance). The softmax is averaged
over points: quasi-random ones that all examples share, or draws of each example's own.
"""

from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import (
    covariance_root,
    gaussian_expectation,
    gaussian_points,
    logistic_rule,
)
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson

SAMPLES = 512  # shared points of the softmax
AT_ONCE = 1 << 18  # drawn logits, which fit the cache
WIDE = 2.0  # standard deviation past which a sigmoid is integrated over the logistic variable


class Moments(NamedTuple):
    """Expectations under f ~ N(mean, cov)."""

    log_partition: Tensor  # E[A(f)]
    mean: Tensor  # E[A′(f)]
    variance: Tensor  # E[A″(f)]; for independent categorical logits its diagonal only


def moments(link: Link, mean: Tensor, cov: Tensor) -> Moments:
    """E[A], E[A′], E[A″] for f ~ N(mean, cov)."""
    if isinstance(link, Categorical):
        return softmax_moments(mean, cov)
    if isinstance(link, Poisson):
        rate = torch.exp(mean + cov / 2)
        return Moments(rate, rate, rate)
    if isinstance(link, Gaussian):
        return Moments((mean.square() + cov) / 2, mean.expand_as(cov), torch.ones_like(cov))
    if isinstance(link, Bernoulli):
        return sigmoid_moments(mean, cov)
    return _scalar_moments(link, mean, cov)


def sigmoid_moments(mean: Tensor, var: Tensor) -> Moments:
    """The Bernoulli moments.

    σ(f) = P(x < f), x logistic. Where f is wide the average over x is the easy one: with z = (m − x)/s,
    E[σ] = E[Φ(z)], E[σ′] = E[φ(z)]/s and E[A] = s E[zΦ(z) + φ(z)].
    """
    std = covariance_root(mean, var)
    narrow = std.detach() <= WIDE
    near = _scalar_moments(Bernoulli(), mean, var.clamp(max=WIDE**2))
    if bool(narrow.all()):
        return near
    s = std.clamp_min(WIDE)
    cdf, density, rise = (torch.zeros_like(mean + s) for _ in range(3))
    for point, weight in zip(*logistic_rule(), strict=True):
        z = (mean - point) / s
        below, here = torch.special.ndtr(z), torch.exp(-z.square() / 2) / (2 * pi) ** 0.5
        cdf.add_(below, alpha=weight)
        density.add_(here, alpha=weight)
        rise.add_(z * below + here, alpha=weight)
    wide = Moments(s * rise, cdf, density / s)
    return Moments(*(torch.where(narrow, *pair) for pair in zip(near, wide, strict=True)))


def _scalar_moments(link: Link, mean: Tensor, var: Tensor) -> Moments:
    functions = (link.log_partition, link.mean, link.variance)
    return Moments(*(gaussian_expectation(g, mean, var, nodes=None) for g in functions))


def softmax_moments(
    mean: Tensor, cov: Tensor, samples: int = SAMPLES, seed: int = 0, *, own: bool = False
) -> Moments:
    """The categorical moments of logits (…, K), averaged over `samples` points, in pieces that fit the cache.

    Shared quasi-random points are exact to degree 3 (where they are enough): ε is right to a few per cent of itself for
    standard deviations up to 1. With `own`, every example has mirrored random draws of its own, the same at every call:
    their errors cancel over the examples, so that a few are enough to fit a model.
    """
    if samples < 2 or samples % 2:
        raise InputError(f"{samples} draws: must be even and at least 2, as they come in pairs")
    batch, classes = mean.shape[:-1], mean.shape[-1]
    flat, spread = mean.reshape(-1, classes), cov.reshape(-1, *cov.shape[mean.ndim - 1 :])
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, AT_ONCE // (classes * samples))
    pieces = []
    for m, c in zip(torch.split(flat, rows), torch.split(spread, rows), strict=True):
        if own:
            shape = (samples // 2, *m.shape)
            half = torch.randn(shape, generator=generator, dtype=m.dtype, device="cpu").to(m.device)
            points, weights = torch.cat([half, -half]), m.new_full((samples,), 1 / samples)
        else:
            points, weights = (x.to(m) for x in gaussian_points(classes, samples, seed))
            points = points.unsqueeze(1)
        pieces.append(_average(m, covariance_root(m, c), points, weights))
    return Moments(
        *(torch.cat(p).reshape(batch + p[0].shape[1:]) for p in zip(*pieces, strict=True))
    )


def _average(mean: Tensor, root: Tensor, points: Tensor, weights: Tensor) -> Moments:
    """The weighted average over f = mean + Σ^½ e, e one of the points (S, N or 1, K)."""
    if root.ndim == mean.ndim:
        f = mean + root * points
    else:
        f = mean + torch.einsum("nij,snj->sni", root, points.expand(-1, len(mean), -1))
    top = f.detach().amax(-1, keepdim=True)
    unscaled = torch.exp(f - top)
    total = unscaled.sum(-1, keepdim=True)
    p = unscaled / total

    def average(values: Tensor) -> Tensor:
        return (weights @ values.flatten(1)).reshape(values.shape[1:])

    log_partition, expected = average((top + total.log()).squeeze(-1)), average(p)
    if root.ndim == mean.ndim:
        return Moments(log_partition, expected, expected - average(p * p))
    products = torch.einsum("s,snj,snk->njk", weights, p, p)
    return Moments(log_partition, expected, torch.diag_embed(expected) - products)
