"""E[A], E[A′] and E[A″] under Gaussian logits: what the variational objective and its steps need.

Closed forms for Poisson and Gaussian, Gauss–Hermite for Bernoulli. For the softmax of independent
logits one integral over the real line is exact, whatever the number of classes; correlated logits
take quasi-random points.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.theory.expectation import (
    covariance_root,
    gaussian_expectation,
    gaussian_points,
    normal_rule,
)
from bayesmooth.theory.links import Categorical, Gaussian, Link, Poisson

CHUNK = 1 << 16  # entries a thread at a time
STEP = 0.5  # of the trapezoid rule: 1e-8 for a Gumbel density
MAX_STEPS, MAX_NODES = 256, 128
WIDEST = (
    50.0  # beyond this standard deviation the softmax is a choice, and the quadrature too coarse
)


class Moments(NamedTuple):
    """Expectations under f ~ N(mean, cov)."""

    log_partition: Tensor  # E[A(f)]
    mean: Tensor  # E[A′(f)]
    variance: Tensor  # E[A″(f)]; for independent categorical logits its diagonal only


def moments(link: Link, mean: Tensor, cov: Tensor, samples: int = 512, seed: int = 0) -> Moments:
    """E[A], E[A′], E[A″] for f ~ N(mean, cov); `samples` and `seed` serve correlated logits only."""
    if isinstance(link, Categorical):
        return softmax_moments(mean, cov, samples, seed)
    if isinstance(link, Poisson):
        rate = torch.exp(mean + cov / 2)
        return Moments(rate, rate, rate)
    if isinstance(link, Gaussian):
        return Moments((mean.square() + cov) / 2, mean.expand_as(cov), torch.ones_like(cov))
    functions = (link.log_partition, link.mean, link.variance)
    return Moments(*(gaussian_expectation(g, mean, cov, nodes=None) for g in functions))


def softmax_moments(mean: Tensor, cov: Tensor, samples: int = 512, seed: int = 0) -> Moments:
    """The categorical moments of logits (…, K), in pieces that fit the cache."""
    batch, classes = mean.shape[:-1], mean.shape[-1]
    flat = mean.reshape(-1, classes)
    spread = cov.reshape(len(flat), *cov.shape[mean.ndim - 1 :])
    if cov.ndim > mean.ndim:
        pieces = _in_pieces(partial(_correlated, samples=samples, seed=seed), flat, spread, samples)
    else:
        order = spread.detach().amax(-1).argsort()  # the widest of a piece sets its number of nodes
        sorted_ = _in_pieces(_independent, flat[order], spread[order], 40)
        back = order.argsort()
        pieces = Moments(*(part[back] for part in sorted_))
    return Moments(*(part.reshape(batch + part.shape[1:]) for part in pieces))


def _in_pieces(
    rule: Callable[[Tensor, Tensor], Moments], mean: Tensor, cov: Tensor, points: int
) -> Moments:
    rows = max(1, CHUNK * torch.get_num_threads() // (mean.shape[-1] * points))
    pieces = zip(torch.split(mean, rows), torch.split(cov, rows), strict=True)
    return Moments(*map(torch.cat, zip(*(rule(m, c) for m, c in pieces), strict=True)))


def _independent(mean: Tensor, var: Tensor) -> Moments:
    """The moments of independent logits, by the Gumbel trick.

    softmax_k(f) = P(f_k + g_k is the largest), g Gumbel. With P_j the CDF of f_j + g_j, r = P′/P and
    F = ∏P_j, E[softmax_k] = ∫F r_k, and by ∂/∂mean_k of it E[A″_kk] = ∫F r_k Σ_{j≠k} r_j.
    """
    top = mean.amax(-1, keepdim=True)
    std = covariance_root(mean, var).clamp(max=WIDEST)
    u, du = _real_line(std.gather(-1, mean.argmax(-1, keepdim=True)), std.amax(-1, keepdim=True))
    cdf, density = _gumbel_mixture(torch.exp((mean - top).unsqueeze(-2) - u.unsqueeze(-1)), std)
    hazard = density / cdf.clamp_min(torch.finfo(mean.dtype).tiny)
    joint = cdf.prod(-1)
    flow = (joint * du).unsqueeze(-1) * hazard
    probs, spread = flow.sum(-2), (flow * (hazard.sum(-1, keepdim=True) - hazard)).sum(-2)
    # against one Gumbel at `top`, whose mean cancels the others': both tails vanish
    excess = ((torch.exp(-torch.exp(-u)) - joint) * du).sum(-1)
    return Moments(top.squeeze(-1) + excess, probs / probs.sum(-1, keepdim=True), spread)


def _real_line(std_top: Tensor, std_max: Tensor) -> tuple[Tensor, Tensor]:
    """Points u and steps du (rows, T): linear on the left, exponential where only e^−u is left."""
    bend = 1 + 2 * std_max
    low, high = -(3.5 + 5 * std_top), bend + 3.2
    span = (high - low).detach()
    steps = min(ceil(float(span.max() / STEP)) if len(span) else 1, MAX_STEPS)
    grid = torch.arange(steps + 1, dtype=std_max.dtype, device=std_max.device) / steps
    y = (low + (high - low) * grid).detach()  # where the points lie is no part of the value
    stretch = torch.exp(y - bend.detach())
    return y + stretch, (1 + stretch) * span / steps


def _gumbel_mixture(rate: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E[exp(−rate·e^{std·x})] and minus its derivative in log(rate), x ~ N(0, 1)."""
    cdf, density = torch.zeros_like(rate), torch.zeros_like(rate)
    largest = torch.finfo(rate.dtype).max ** 0.49
    rate = rate.clamp(max=largest)
    for point, weight in zip(*normal_rule(std, fewest=12, most=MAX_NODES), strict=True):
        exponent = rate * -torch.exp(std * point).clamp(max=largest).unsqueeze(-2)
        survival = torch.exp(exponent)
        cdf.add_(survival, alpha=weight)
        density.addcmul_(exponent, survival, value=-weight)
    return cdf, density


def _correlated(mean: Tensor, cov: Tensor, samples: int, seed: int) -> Moments:
    """The moments of correlated logits, at shared quasi-random points."""
    points, weights = (x.to(mean) for x in gaussian_points(mean.shape[-1], samples, seed))
    f = mean.unsqueeze(-2) + points @ covariance_root(mean, cov).mT
    probs = torch.softmax(f, -1)
    weighted = probs * weights.unsqueeze(-1)
    expected = weighted.sum(-2)
    log_partition = (torch.logsumexp(f, -1) * weights).sum(-1)
    return Moments(log_partition, expected, torch.diag_embed(expected) - weighted.mT @ probs)
