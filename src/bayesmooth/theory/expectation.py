"""E[g(f)] of a Gaussian f, batched and differentiable, on any device and floating dtype.

`gaussian_expectation` is for scalars, `gaussian_points` for K-dimensional logits (a tensor grid for K ≤ 2, quasi-random
points beyond), `gaussian_draw` for a single draw. `moments` are E[A], E[A′] and E[A″], which the variational objective
and its steps need: closed forms for Poisson and Gaussian, quadrature for Bernoulli (within 1e-6 at any variance), and
for the softmax averages over points: quasi-random ones that all examples share, or draws of each example's own.
A covariance has the shape of the mean (independent entries) or one more axis (one matrix per example).
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import ceil, exp, pi, prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson

Seed = int | torch.Generator
Rule = tuple[list[float], list[float]]  # points, weights
CHUNK = 1 << 16  # entries per thread at a time: a few such arrays stay in its cache
NODES = 32
NARROW = 1.5  # standard deviation up to which Gauss–Hermite nodes are the better ones for a sigmoid
WIDEST = 1000.0  # standard deviation for which nodes are added
GRID_NODES = 12  # a tensor grid pays from this many nodes per axis
SAMPLES = 512  # shared points of the softmax
AT_ONCE = 1 << 18  # drawn logits, which fit the cache
WIDE_LOGIT = 2.0  # standard deviation past which a sigmoid is integrated over the logistic variable


def gaussian_expectation(g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, nodes: int | None = 32) -> Tensor:
    """E[g(f)], f ~ N(mean, var), entry by entry, by quadrature; g acts on entries.

    32 Gauss–Hermite nodes give the sigmoid to 1e-12 for var = 1 and 3e-5 for var = 10; past that take None: as many
    nodes as the largest variance asks for, by the trapezoid rule where it is wide, as Hermite nodes spread out.

    >>> gaussian_expectation(torch.exp, torch.tensor(0.0), torch.tensor(1.0))  # e^½
    tensor(1.6487)
    """
    std = covariance_root(mean, var)
    widest = float(std.detach().max()) if std.numel() else 0.0
    if nodes is None and widest > WIDEST:
        raise InputError(
            f"standard deviation {widest:.3g}: adaptive nodes reach {WIDEST:g}; give their number, or scale f"
        )
    if nodes is None and widest > NARROW:
        rule = trapezoid_rule(max(NODES, ceil(18 * widest)))
    else:
        rule = hermite_rule(NODES + ceil(12 * widest) if nodes is None else nodes)
    shape, size = (mean + std).shape, CHUNK * torch.get_num_threads()
    pieces = (torch.split(x.expand(shape).reshape(-1), size) for x in (mean, std))
    sums = []
    for m, s in zip(*pieces, strict=True):
        total = torch.zeros_like(m)
        for point, weight in zip(*rule, strict=True):
            total.add_(g(torch.add(m, s, alpha=point)), alpha=weight)
        sums.append(total)
    return torch.cat(sums).reshape(shape)


def gaussian_draw(mean: Tensor, cov: Tensor, generator: Seed) -> Tensor:
    """Σ^½ e, e ~ N(0, I): the displacement of one draw of f ~ N(mean, cov) from its mean."""
    if isinstance(generator, int):
        if not 0 <= generator < 2**63:
            raise InputError(f"seed={generator}: must be from 0 to 2⁶³ − 1; 0 is as good as any")
        generator = torch.Generator().manual_seed(generator)
    draw = torch.randn(mean.shape, generator=generator, device=generator.device, dtype=mean.dtype)
    draw, root = draw.to(mean.device), covariance_root(mean, cov)
    return torch.einsum("...ij,...j->...i", root, draw) if cov.ndim > mean.ndim else root * draw


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
    if not bool(cov.detach().isfinite().all()):
        raise InputError("covariance with NaN or infinite entries: must be finite")
    diagonal = cov.diagonal(dim1=-2, dim2=-1)
    # a rounding error's worth on the diagonal, so that singular matrices have a factor too
    jitter = 4 * cov.shape[-1] * eps * diagonal.amax(-1, keepdim=True) + torch.finfo(cov.dtype).tiny
    for times in (1, 100, 10_000):  # rounding may cost more than it should
        root, failed = torch.linalg.cholesky_ex(cov + torch.diag_embed(times * jitter.expand_as(diagonal)))
        if not bool(failed.any()):
            factors: Tensor = root
            return factors
    raise InputError("covariance with negative eigenvalues: must be positive semi-definite")


@lru_cache(maxsize=64)
def trapezoid_rule(nodes: int) -> Rule:
    """Points and weights with E[g(x)] ≈ Σ w g(x), x ~ N(0, 1), equally spaced; beyond 7 nothing is left."""
    points = np.linspace(-7.0, 7.0, nodes)
    weights = np.exp(-(points**2) / 2)
    return points.tolist(), (weights / weights.sum()).tolist()


@lru_cache(maxsize=64)
def hermite_rule(nodes: int) -> Rule:
    """Points and weights with E[g(e)] ≈ Σ w g(x), e ~ N(0, 1): exact to degree 2·nodes − 1."""
    if nodes < 1:
        raise InputError(f"nodes={nodes}: must be at least 1; 32 is the usual choice")
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points.tolist(), (weights / weights.sum()).tolist()


@lru_cache(maxsize=1)
def logistic_rule() -> Rule:
    """Points and weights with E[h(x)] ≈ Σ w h(x), x logistic: the trapezoid rule."""
    points = [0.6 * i for i in range(-50, 51)]
    density = [1 / (2 + exp(x) + exp(-x)) for x in points]
    return points, [value / sum(density) for value in density]


@lru_cache(maxsize=16)
def gaussian_points(dim: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """At most `samples` points (S, dim) of N(0, I) and their weights (S,).

    A tensor grid where it pays. Else scrambled Sobol points under the inverse normal CDF, mirrored, and whitened if
    there are enough of them.
    """
    nodes = min(int(samples ** (1 / dim) + 1e-9), 64)
    if nodes >= GRID_NODES:
        axis, weights = hermite_rule(nodes)
        shares = [prod(each) for each in product(weights, repeat=dim)]
        grid = torch.tensor(list(product(axis, repeat=dim)), dtype=torch.float64, device="cpu")
        return grid, torch.tensor(shares, dtype=torch.float64, device="cpu")
    if samples < 2:
        raise InputError(f"samples={samples}: must be at least 2, as points come in mirrored pairs")
    sobol = SobolEngine(dim, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    uniform = sobol.draw(samples // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    points = torch.cat([half, -half])
    if len(points) >= 4 * dim:
        root = torch.linalg.cholesky(points.T @ points / len(points))
        points = torch.linalg.solve_triangular(root, points.T, upper=False).T
    return points, torch.full((len(points),), 1 / len(points), dtype=torch.float64, device="cpu")


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
    narrow = std.detach() <= WIDE_LOGIT
    near = _scalar_moments(Bernoulli(), mean, var.clamp(max=WIDE_LOGIT**2))
    if bool(narrow.all()):
        return near
    s = std.clamp_min(WIDE_LOGIT)
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


def softmax_moments(mean: Tensor, cov: Tensor, samples: int = SAMPLES, seed: int = 0, *, own: bool = False) -> Moments:
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
    return Moments(*(torch.cat(p).reshape(batch + p[0].shape[1:]) for p in zip(*pieces, strict=True)))


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
