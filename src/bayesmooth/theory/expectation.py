"""E[g(f)] of a Gaussian f, batched and differentiable, on any device and floating dtype.

`gaussian_expectation` is for scalars (Gauss–Hermite), `gaussian_points` for K-dimensional logits (a tensor grid for
K ≤ 2, quasi-random points beyond), `gaussian_draw` for a single draw.
A covariance has the shape of the mean (independent entries) or one more axis (one matrix per example).
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import ceil, exp, pi, prod

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from bayesmooth.errors import InputError

Seed = int | torch.Generator
Rule = tuple[list[float], list[float]]  # points, weights
CHUNK = 1 << 16  # entries per thread at a time: a few such arrays stay in its cache
WIDEST = 1000.0  # standard deviation for which nodes are added: 18,000 then
GRID_NODES = 12  # a tensor grid pays from this many nodes per axis


def gaussian_expectation(
    g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, nodes: int | None = 32
) -> Tensor:
    """E[g(f)], f ~ N(mean, var), entry by entry, by quadrature; g acts on entries.

    32 Gauss–Hermite nodes give the sigmoid to 1e-12 for var = 1 and 3e-5 for var = 10; past that
    take None: as many nodes as the largest variance asks for.

    >>> gaussian_expectation(torch.exp, torch.tensor(0.0), torch.tensor(1.0))  # e^½
    tensor(1.6487)
    """
    std = covariance_root(mean, var)
    rule = normal_rule(std, fewest=32) if nodes is None else hermite_rule(nodes)

    def weighted_sum(m: Tensor, s: Tensor) -> Tensor:
        total = torch.zeros_like(m)
        for point, weight in zip(*rule, strict=True):
            total.add_(g(torch.add(m, s, alpha=point)), alpha=weight)
        return total

    return map_entries(weighted_sum, mean, std)


def map_entries(function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, std: Tensor) -> Tensor:
    """A function of the entries of two tensors, in pieces that stay in the cache."""
    shape, size = (mean + std).shape, CHUNK * torch.get_num_threads()
    pieces = (torch.split(x.expand(shape).reshape(-1), size) for x in (mean, std))
    return torch.cat([function(m, s) for m, s in zip(*pieces, strict=True)]).reshape(shape)


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
        root, failed = torch.linalg.cholesky_ex(
            cov + torch.diag_embed(times * jitter.expand_as(diagonal))
        )
        if not bool(failed.any()):
            factors: Tensor = root
            return factors
    raise InputError("covariance with negative eigenvalues: must be positive semi-definite")


def normal_rule(std: Tensor, fewest: int) -> Rule:
    """Nodes dense enough for sigmoids of std·x: Gauss–Hermite while that is narrow.

    Then the trapezoid rule, as Hermite nodes spread out instead of closing up.
    """
    widest = float(std.detach().max()) if std.numel() else 0.0
    if not widest > 1.5:
        return hermite_rule(fewest + ceil(12 * widest))
    if widest > WIDEST:
        raise InputError(
            f"standard deviation {widest:.3g}: adaptive nodes reach {WIDEST:g}; give their number, or scale f"
        )
    return trapezoid_rule(max(fewest, ceil(18 * widest)))


@lru_cache(maxsize=64)
def trapezoid_rule(nodes: int) -> Rule:
    """Points and weights with E[g(x)] ≈ Σ w g(x), x ~ N(0, 1), equally spaced.

    The range √(π·nodes) balances what is cut off against the spacing; beyond 7 nothing is left.
    """
    if nodes < 1:
        raise InputError(f"nodes={nodes}: must be at least 1; 32 is the usual choice")
    reach = min((pi * nodes) ** 0.5, 7.0) if nodes > 1 else 0.0
    points = np.linspace(-reach, reach, nodes)
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
