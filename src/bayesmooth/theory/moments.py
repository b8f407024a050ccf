"""E[A], E[A′] and E[A″] under Gaussian logits: what the variational objective and its steps need.

Closed forms for Poisson and Gaussian. For Bernoulli, and for the softmax of independent logits whatever
the number of classes, one integral over the real line: E[A′] and E[A″] within 1e-6 at any variance,
E[A] within 1e-6 standard deviations (float64). Correlated logits take quasi-random points.

Two cheaper ways for the softmax of many independent logits: `likely_softmax_mean` integrates over the likely classes
only, `drawn_softmax_moments` averages over a few draws, which is enough on the way of a fit.
"""

from collections.abc import Callable
from functools import partial
from math import ceil, log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import (
    CHUNK,
    covariance_root,
    gaussian_expectation,
    gaussian_points,
    gumbel_rule,
    logistic_rule,
    normal_rule,
)
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson

STEP, COARSE_STEP = 0.5, 1.0  # of the trapezoid rule: 1e-8 and 1e-4 for a Gumbel density
REACH = 5.0  # standard deviations
DRAWN = 1 << 18  # logits drawn at a time
WIDEST_RATIO = 40.0  # variance of a logit past which eᶠ is nothing but its tail
WIDE = 2.0  # standard deviation past which few points of the other variable, Gumbel or logistic, do
BANDS = (1.0, WIDE, 4.0)  # of standard deviations that share their points


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
    mean: Tensor, cov: Tensor, samples: int = 512, seed: int = 0, *, coarse: bool = False
) -> Moments:
    """The categorical moments of logits (…, K), in pieces that fit the cache.

    `samples` and `seed` serve correlated logits, `coarse` independent ones: it takes a third of the time, and E[A′]
    and E[A″] are right to 1e-3, E[A] to 1e-2.
    """
    batch, classes = mean.shape[:-1], mean.shape[-1]
    flat = mean.reshape(-1, classes)
    spread = cov.reshape(len(flat), *cov.shape[mean.ndim - 1 :])
    if cov.ndim > mean.ndim:
        pieces = _in_pieces(partial(_correlated, samples=samples, seed=seed), flat, spread, samples)
    else:
        std = spread.detach().sqrt()
        # the longest row of a piece sets its number of points
        order = (std.amax(-1) / _stretch(std).squeeze(-1)).argsort()
        sorted_ = _in_pieces(partial(_independent, coarse=coarse), flat[order], spread[order], 40)
        back = order.argsort()
        pieces = Moments(*(part[back] for part in sorted_))
    return Moments(*(part.reshape(batch + part.shape[1:]) for part in pieces))


def likely_softmax_mean(mean: Tensor, var: Tensor, classes: int = 16) -> Tensor:
    """E[softmax(f)] of independent logits (N, K), at a cost that hardly depends on K.

    The integral goes over the `classes` likeliest ones of each example and one that stands for all the others: their
    Σ eᶠ is nearly log-normal, with the mean and the variance that the sum has. What that one is given, the
    others share by E[eᶠ]. Within 2e-3 for standard deviations up to 1.5 (a test holds it), exact for K ≤ classes + 1.
    """
    if mean.shape[-1] <= classes + 1:
        return softmax_moments(mean, var).mean
    parts, pieces = [], (torch.split(values, 1 << 14) for values in (mean, var))
    for m, v in zip(*pieces, strict=True):
        log_mean = m + v / 2
        likely = (m + v.sqrt()).topk(classes, sorted=False).indices
        rest = log_mean.scatter(1, likely, -torch.inf)
        size = torch.logsumexp(rest, 1, keepdim=True)
        shares = torch.exp(rest - size)
        relative = (shares.square() * torch.expm1(v.clamp_max(WIDEST_RATIO))).sum(1, keepdim=True)
        spread = torch.log1p(relative)
        few = softmax_moments(
            torch.cat([m.gather(1, likely), size - spread / 2], 1),
            torch.cat([v.gather(1, likely), spread], 1),
        ).mean
        parts.append((shares * few[:, -1:]).scatter(1, likely, few[:, :-1]))
    return torch.cat(parts)


def drawn_softmax_moments(mean: Tensor, var: Tensor, draws: int) -> Moments:
    """The categorical moments of independent logits (N, K), averaged over mirrored draws.

    Every example has draws of its own, the same at every call: their errors cancel over the examples, and
    an objective made of them is a smooth function of mean and variance.
    """
    if draws < 2 or draws % 2:
        raise InputError(
            f"draws={draws}: must be even and at least 2, as draws come in mirrored pairs"
        )
    generator, std = torch.Generator().manual_seed(0), covariance_root(mean, var)
    log_partition = mean.new_zeros(len(mean))
    probs, squares = torch.zeros_like(mean), torch.zeros_like(mean)
    rows = max(1, DRAWN // mean.shape[1])
    for start in range(0, len(mean), rows):
        at = slice(start, start + rows)
        shape = std[at].shape
        for _ in range(draws // 2):
            shift = torch.randn(shape, generator=generator, dtype=std.dtype, device="cpu")
            shift.mul_(std[at])
            for f in (mean[at] + shift, mean[at] - shift):
                top = f.amax(1, keepdim=True)
                weight = f.sub_(top).exp_()
                total = weight.sum(1, keepdim=True)
                p = weight.div_(total)
                log_partition[at] += (top + total.log_()).squeeze(1)
                probs[at] += p
                squares[at].addcmul_(p, p)
    probs /= draws
    return Moments(log_partition / draws, probs, probs - squares / draws)


def _in_pieces(
    rule: Callable[[Tensor, Tensor], Moments], mean: Tensor, cov: Tensor, points: int
) -> Moments:
    rows = max(1, CHUNK * torch.get_num_threads() // (mean.shape[-1] * points))
    pieces = zip(torch.split(mean, rows), torch.split(cov, rows), strict=True)
    return Moments(*map(torch.cat, zip(*(rule(m, c) for m, c in pieces), strict=True)))


def _independent(mean: Tensor, var: Tensor, coarse: bool = False) -> Moments:
    """The moments of independent logits, by the Gumbel trick.

    softmax_k(f) = P(f_k + g_k is the largest), g Gumbel. With P_j the CDF of f_j + g_j, r = P′/P and
    F = ∏P_j, E[softmax_k] = ∫F r_k, and by ∂/∂mean_k of it E[A″_kk] = ∫F r_k Σ_{j≠k} r_j. As F is the CDF of the
    largest, E[A] = mean_j + ∫(P_j − F) for any j.
    """
    top = mean.amax(-1, keepdim=True)
    mean, std = mean - top, covariance_root(mean, var)
    step = COARSE_STEP if coarse else STEP
    last, u, du = _real_line(mean.detach(), std.detach(), step)  # no part of the value
    cdf, density = _gumbel_mixture(u.unsqueeze(-2) - mean.unsqueeze(-1), std.unsqueeze(-1), coarse)
    hazard = density / cdf.clamp_min(torch.finfo(mean.dtype).tiny)
    joint = cdf.prod(-2)
    flow = (joint * du).unsqueeze(-2) * hazard
    probs, spread = flow.sum(-1), (flow * (hazard.sum(-2, keepdim=True) - hazard)).sum(-1)
    beside = cdf.take_along_dim(last.unsqueeze(-1), -2).squeeze(-2)
    excess = ((beside - joint) * du).sum(-1, keepdim=True)
    log_partition = (top + mean.gather(-1, last) + excess).squeeze(-1)
    return Moments(log_partition, probs / probs.sum(-1, keepdim=True), spread)


def _stretch(std: Tensor) -> Tensor:
    """How many times longer than a Gumbel's the steps (rows, 1) may be, as the narrowest logit blurs every P_j.

    The largest of K normals varies by 1/√(2 log K) of one.
    """
    return (1 + std.amin(-1, keepdim=True).square() / max(0.5, log(std.shape[-1]))).sqrt()


def _real_line(mean: Tensor, std: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """The class that begins last (rows, 1), and points u and steps du (rows, T) from where it does.

    Steps grow. While all is narrow, where only e^−u is left. Else with the distance: a class of deviation s is over
    10s after it began, so what is still to come at a distance is as wide.
    """
    widest, times = std.amax(-1, keepdim=True), _stretch(std)
    start, last = (mean - REACH * std).max(-1, keepdim=True)
    low, high = start - 3.5, (mean + REACH * std).amax(-1, keepdim=True) + 24
    if bool((widest > WIDE).any()):
        # the largest of K normals is `up` deviations up, and varies by 1/up of one
        up = (2 * log(mean.shape[-1])) ** 0.5
        scale = max(12.0, up * (REACH + up)) * times
        y, dy = _grid(torch.asinh((high - low) / scale), step * times / scale)
        return last, low + scale * torch.sinh(y), scale * torch.cosh(y) * dy
    bend = 2 * widest + (torch.logsumexp(mean, -1, keepdim=True) - 1).clamp_min(1.0)
    y, dy = _grid(bend - low + times * ((high - bend) / times).log(), step * times)
    grown = torch.exp((y + low - bend) / times)
    return last, low + y + times * grown, (1 + grown) * dy


def _grid(end: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Points (rows, T) from 0 to `end`, and their distance, `step` at most."""
    steps = ceil(float((end / step).max())) if len(end) else 1
    points = torch.arange(steps + 1, dtype=end.dtype, device=end.device)
    return end / steps * points, end / steps


def _gumbel_mixture(v: Tensor, std: Tensor, coarse: bool) -> tuple[Tensor, Tensor]:
    """The CDF and the density of std·x + g at v (rows, K, T), x ~ N(0, 1), g Gumbel, by averages over the narrower."""
    flat, s = v.reshape(-1, v.shape[-1]), std.reshape(-1, 1)
    band = torch.bucketize(s.detach().squeeze(1), s.new_tensor(BANDS))
    order = band.argsort(stable=True)
    sizes = torch.bincount(band, minlength=len(BANDS) + 1).tolist()
    parts, widths = (torch.split(x[order], sizes) for x in (flat, s))
    rules = [
        (_over_normal if high <= WIDE else _over_gumbel)(part, width, coarse)
        for part, width, high in zip(parts, widths, (*BANDS, torch.inf), strict=True)
    ]
    back = order.argsort()
    cdf, density = (torch.cat(values)[back].reshape(v.shape) for values in zip(*rules, strict=True))
    return cdf, density


def _over_normal(v: Tensor, std: Tensor, coarse: bool) -> tuple[Tensor, Tensor]:
    """The Gumbel CDF exp(−e^−v) and its density, averaged over a narrow normal variable."""
    cdf, density = torch.zeros_like(v), torch.zeros_like(v)
    rate = torch.exp(-v.clamp_min(-40.0))
    # denser than one expectation asks for: few points u do not average the ripples between nodes
    rule = normal_rule(std, fewest=8) if coarse else normal_rule(1.45 * std, fewest=20)
    for point, weight in zip(*rule, strict=True):
        exponent = rate * -torch.exp(std * point)
        survival = torch.exp(exponent)
        cdf.add_(survival, alpha=weight)
        density.addcmul_(exponent, survival, value=-weight)
    return cdf, density


def _over_gumbel(v: Tensor, std: Tensor, coarse: bool) -> tuple[Tensor, Tensor]:
    """The normal CDF and density of a wide variable, averaged over the Gumbel one."""
    cdf, density = torch.zeros_like(v), torch.zeros_like(v)
    narrowest = float(std.detach().min()) if len(std) else torch.inf
    scale = -(0.5**0.5) / std
    scaled = v * scale
    nodes = max(3, ceil((10 if coarse else 32) / narrowest))
    for point, weight in zip(*gumbel_rule(nodes), strict=True):
        z = torch.add(scaled, scale, alpha=-point)
        cdf.add_(torch.erfc(z), alpha=weight / 2)
        density.add_(torch.exp(-z.square()), alpha=weight)
    return cdf, density * -scale / pi**0.5


def _correlated(mean: Tensor, cov: Tensor, samples: int, seed: int) -> Moments:
    """The moments of correlated logits, at shared quasi-random points."""
    points, weights = (x.to(mean) for x in gaussian_points(mean.shape[-1], samples, seed))
    f = mean.unsqueeze(-2) + points @ covariance_root(mean, cov).mT
    probs = torch.softmax(f, -1)
    weighted = probs * weights.unsqueeze(-1)
    expected = weighted.sum(-2)
    log_partition = (torch.logsumexp(f, -1) * weights).sum(-1)
    return Moments(log_partition, expected, torch.diag_embed(expected) - weighted.mT @ probs)
