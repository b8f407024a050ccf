"""Reach the fixed points of the GLM updates whatever the data: steps that would climb are halved.

The mode comes from Newton's method. The variational posterior comes from VON with ρ = 1, except that
the mean moves by the coupled Newton direction where Σ ignores the coupling of the classes: the fixed
point is that of eq:von, the way there is shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, isfinite, log
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bayesmooth.theory.glm.covariance import Covariance
from bayesmooth.theory.glm.newton import holds_whole_hessian, newton_direction
from bayesmooth.theory.glm.steps import Problem, kl_divergence, moments_at
from bayesmooth.theory.moments import Moments, moments

HALVINGS = 30
STALE = 25  # conjugate-gradient steps after which a new preconditioner pays
SLACK = 1e-6  # of the negative ELBO: so far its quadrature and its gradient's may disagree
PRIOR_RANGE = 1e8  # how far δ may go from where its search starts, either way


@dataclass(frozen=True)
class Point:
    """Parameters, with the moments and the objective there (for a point, the risk ℓ̄)."""

    theta: Tensor
    expected: Moments
    objective: float

    @property
    def rounding(self) -> float:
        """What the objective may change by rounding alone."""
        scale = float(self.expected.log_partition.abs().sum()) + abs(self.objective)
        return 8 * torch.finfo(self.theta.dtype).eps * scale


@dataclass(frozen=True)
class Gaussian(Point):
    """A Gaussian around θ; its objective is the negative ELBO."""

    covariance: Covariance
    spread: Tensor  # of the logits: ΦΣΦᵀ

    def variances(self) -> Tensor:
        """The variance of every logit (N, C)."""
        matrix = self.covariance.matrix
        return self.spread.diagonal(dim1=-2, dim2=-1) if matrix else self.spread


P = TypeVar("P", bound=Point)


@dataclass(frozen=True)
class Solution(Generic[P]):
    """Where a solver stopped, after how many iterations, and why."""

    point: P
    problem: Problem
    iterations: int
    converged: bool
    message: str


def point_at(problem: Problem, matrix: bool, theta: Tensor) -> Point:
    """The moments and ℓ̄ at θ."""
    logits = problem.features @ theta
    here = moments_at(problem.link, logits, matrix)
    loss = problem.expected_loss(logits, here.log_partition)
    return Point(theta, here, float(loss + problem.prior * theta.square().sum() / 2))


def gaussian_at(
    problem: Problem, covariance: Covariance, theta: Tensor, spread: Tensor | None = None
) -> Gaussian:
    """The expected moments and the negative ELBO at N(θ, Σ); `spread` is ΦΣΦᵀ where it is known."""
    logits = problem.features @ theta
    if spread is None:
        spread = covariance.logit_covariance(problem.features)
    here = moments(problem.link, logits, spread)
    loss = problem.expected_loss(logits, here.log_partition)
    kl = kl_divergence(theta, covariance, problem.prior)
    return Gaussian(theta, here, float(loss + kl), covariance, spread)


def find_mode(
    problem: Problem, theta: Tensor, structure: type[Covariance], tol: float, max_iter: int
) -> Solution[Point]:
    """The minimiser of ℓ̄ by Newton steps, until one is below `tol` (rms, in posterior std)."""
    at = partial(point_at, problem, structure.matrix)
    point, step, iteration = at(theta), float("nan"), 0
    hessian = problem.hessian(structure, point.expected.variance)
    while iteration < max_iter:
        iteration += 1
        gradient = problem.gradient(point.theta, point.expected.mean)
        direction, work = newton_direction(problem, point.expected, gradient, hessian)
        step = _rms(gradient * direction)
        line = _line(at, point.theta, direction)
        point, rho = _halve(line, point, slack=point.rounding)
        if step < tol or rho == 0:
            break
        if work > STALE or holds_whole_hessian(hessian, gradient):
            hessian = problem.hessian(structure, point.expected.variance)
    return Solution(point, problem, iteration, step < tol, _verdict(step, tol, iteration))


def find_posterior(
    problem: Problem, start: Gaussian, tol: float, max_iter: int, choose_prior: bool = False
) -> Solution[Gaussian]:
    """The Gaussian that minimises the negative ELBO, and with it the prior precision if asked.

    Until an iteration moves the mean by less than `tol` posterior standard deviations (rms), the
    variances of the logits by less than `tol` of themselves (rms), and log δ by less than `tol`.
    """
    point, change, iteration = start, float("nan"), 0
    search = PriorSearch(problem.prior)
    while iteration < max_iter:
        iteration += 1
        gradient = problem.gradient(point.theta, point.expected.mean)
        hessian = problem.hessian(type(point.covariance), point.expected.variance)
        direction, _ = newton_direction(problem, point.expected, gradient, hessian)
        line = _gaussian_line(problem, point, direction, hessian)
        old = point.variances()
        point, rho = _halve(line, point, slack=point.rounding + SLACK * abs(point.objective))
        relative = (point.variances() - old) / old.clamp_min(torch.finfo(old.dtype).tiny)
        change = max(_rms(gradient * direction), _rms(relative.square()) / max(rho, 0.1))
        if choose_prior:
            problem, point, missing = search.step(problem, point)
            change = max(change, missing)
        if change < tol or rho == 0 or search.failure:
            break
    message = search.failure or _verdict(change, tol, iteration)
    return Solution(point, problem, iteration, change < tol and not search.failure, message)


def find_descent(
    problem: Problem, at: Callable[[Tensor], Point], theta: Tensor, tol: float, max_iter: int
) -> Solution[Point]:
    """Gradient descent on the objective of `at`, each step as long as pays.

    Until the largest entry of the gradient is below `tol` of the first (or of 1).
    """
    point, rho, iteration = at(theta), 1.0, 0
    gradient = problem.gradient(theta, point.expected.mean)
    first = max(float(gradient.abs().max()), 1.0)
    size = float(gradient.abs().max()) / first
    while size >= tol and iteration < max_iter and rho > 0:
        iteration += 1
        # a decrease of ½ρ‖g‖² keeps ρ below the inverse curvature
        slope = float(gradient.square().sum()) / 2
        line = _line(at, point.theta, gradient)
        point, rho = _halve(line, point, slack=point.rounding, rho=2 * rho, slope=slope)
        gradient = problem.gradient(point.theta, point.expected.mean)
        size = float(gradient.abs().max()) / first
    return Solution(point, problem, iteration, size < tol, _verdict(size, tol, iteration))


class PriorSearch:
    """The prior precision δ that maximises the ELBO: a secant method on MacKay's fixed point.

    At the optimum δ = γ/‖θ‖², with γ = P − δ tr Σ the number of parameters that the data determine.
    """

    def __init__(self, start: float) -> None:
        self.bounds = log(start) - log(PRIOR_RANGE), log(start) + log(PRIOR_RANGE)
        self.last: tuple[float, float] | None = None
        self.failure = ""

    def step(self, problem: Problem, point: Gaussian) -> tuple[Problem, Gaussian, float]:
        """A better δ, the point with its objective under it, and how far log δ was off."""
        here = log(problem.prior)
        determined = point.theta.numel() - problem.prior * float(point.covariance.variances().sum())
        missing = (
            log(max(determined, 1e-30) / max(float(point.theta.square().sum()), 1e-300)) - here
        )
        slope = -1.0
        if self.last is not None and here != self.last[0]:
            slope = (missing - self.last[1]) / (here - self.last[0])
        self.last = here, missing
        better = here - missing / min(max(slope, -1.0), -0.2)
        if not self.bounds[0] <= better <= self.bounds[1]:
            self.failure = (
                f"the ELBO asks for a prior_precision beyond {exp(better):.1e}, as when labels do "
                "not depend on the features; give a prior_precision"
            )
            return problem, point, abs(missing)
        changed = replace(problem, prior=exp(better))
        kls = [kl_divergence(point.theta, point.covariance, x.prior) for x in (changed, problem)]
        objective = point.objective + float(kls[0] - kls[1])
        return changed, replace(point, objective=objective), abs(missing)


def _line(at: Callable[[Tensor], P], theta: Tensor, direction: Tensor) -> Callable[[float], P]:
    return lambda rho: at(theta - rho * direction)


def _gaussian_line(
    problem: Problem, here: Gaussian, direction: Tensor, hessian: Covariance
) -> Callable[[float], Gaussian]:
    """VON's step as a function of ρ  (eq:von)."""
    return lambda rho: gaussian_at(
        problem, here.covariance.blend(hessian, rho), here.theta - rho * direction
    )


def _halve(
    line: Callable[[float], P], here: P, slack: float, rho: float = 1.0, slope: float = 0.0
) -> tuple[P, float]:
    """The first of ρ, ρ/2, ρ/4, … that lowers the objective by ρ·slope; (here, 0) if none does."""
    for _ in range(HALVINGS):
        point = line(rho)
        if isfinite(point.objective) and point.objective <= here.objective - rho * slope + slack:
            return point, rho
        rho /= 2
    return here, 0.0


def _rms(squares: Tensor) -> float:
    return float(squares.mean().clamp_min(0).sqrt())


def _verdict(step: float, tol: float, iterations: int) -> str:
    if step < tol:
        return f"converged in {iterations} iterations"
    return (
        f"not converged in {iterations} iterations: the last step was {step:.1e}, to be below "
        f"tol={tol:.1e}; raise max_iter or prior_precision, or standardise the features"
    )
