"""VON and Newton under step control: to the Gaussian that minimises the negative ELBO, or to the mode.

Each step goes where the paper's goes (eq:newton, eq:von with ρ = 1), except that steps that would climb are halved, and
that the mean moves by the direction of the whole Hessian where Σ ignores the coupling of the parameters: it reaches the
fixed point of eq:von in fewer steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf, isfinite, log

import torch
from torch import Tensor

from bayesmooth.theory.expectation import Moments, moments, softmax_moments
from bayesmooth.theory.updates import (
    Covariance,
    Diagonal,
    GLMProblem,
    kl_divergence,
    logit_spread,
    moments_at,
    sum_outer,
)

HALVINGS = 30
SLACK = 1e-6  # of the negative ELBO: so far the averages of it and of its gradient may disagree
WIDEST = 30.0  # standard deviation of a typical logit that only separable labels reach
PRIOR_RANGE = 1e8  # how far δ may go from where its search starts, either way
LONGEST = 0.8  # ρ of VON: with 1 the variances swing
CG_TOLERANCE = 0.1
CG_STEPS = 200


@dataclass(frozen=True)
class Point:
    """Parameters θ, with the moments and the objective there: ℓ̄, or the negative ELBO of N(θ, Σ) if there is a Σ."""

    theta: Tensor
    covariance: Covariance | None
    spread: Tensor  # of the logits, ΦΣΦᵀ; empty without Σ
    expected: Moments
    objective: float

    def variances(self) -> Tensor:
        """The variance of every logit (N, C)."""
        return self.spread.diagonal(dim1=-2, dim2=-1) if self.spread.ndim == 3 else self.spread


@dataclass(frozen=True)
class Control:
    """When to stop and how to go: `tol` in posterior standard deviations, `draws` (0: exact expectations)."""

    tol: float
    max_iter: int
    choose_prior: bool = False
    draws: int = 0
    on_step: Callable[[float], None] = lambda excess: None
    """Called after every step with its length over `tol`."""


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped, after how many iterations, and why it did not converge (empty if it did)."""

    point: Point
    problem: GLMProblem
    iterations: int
    trouble: str


def evaluate_at(problem: GLMProblem, theta: Tensor, covariance: Covariance | None, draws: int = 0) -> Point:
    """The moments and the objective at θ, or at N(θ, Σ) if there is a Σ."""
    logits = problem.features @ theta
    if covariance is None:
        here = moments_at(problem.link, logits)
        penalty = problem.prior * theta.square().sum() / 2
        spread = logits[:0]
    else:
        spread = logit_spread(problem.link, covariance, problem.features)
        exact = partial(moments, problem.link)
        average = partial(softmax_moments, samples=draws, own=True) if draws else exact
        here = average(logits, spread)
        penalty = kl_divergence(theta, covariance, problem.prior)
    loss = problem.expected_loss(logits, here.log_partition)
    return Point(theta, covariance, spread, here, float(loss + penalty))


def find_posterior(problem: GLMProblem, structure: type[Covariance], control: Control) -> Solution:
    """The Gaussian that minimises the negative ELBO, and with it the prior precision if asked: VON from θ = 0."""
    if control.choose_prior:  # start where the prior gives the logits a variance of 4
        power = problem.features.square().sum(1)
        count = problem.weighted(torch.ones_like(power)).sum()
        problem = replace(problem, prior=float(problem.weighted(power).sum() / count) / 4)
    theta = problem.origin()
    curvature = moments_at(problem.link, problem.features @ theta, structure.matrix).variance
    start = evaluate_at(problem, theta, problem.hessian(structure, curvature), control.draws)
    return descend(problem, start, structure, control, learn=True)


def descend(
    problem: GLMProblem, point: Point, structure: type[Covariance], control: Control, *, learn: bool = False
) -> Solution:
    """Newton steps of the mean, each with VON's step of Σ if it is to `learn` it.

    Until an iteration moves the mean by less than `tol` posterior standard deviations (rms), the variances of the
    logits by less than `tol` of themselves (rms), and log δ is right to `tol`.
    """
    first, rho, change, missing, trouble = log(problem.prior), 1.0, inf, 0.0, ""
    iteration, pace = 0, 1.0
    while iteration < control.max_iter:
        iteration += 1
        expected = point.expected
        if point.covariance is None and structure.matrix:
            expected = moments_at(problem.link, problem.features @ point.theta, matrix=True)
        hessian = problem.hessian(structure, expected.variance)
        if control.choose_prior:
            last = missing
            problem, point, hessian, missing = _improve_prior(problem, point, hessian, pace)
            pace = min(1.3 * pace, 3.0) if missing * last > 0 else pace / 2  # it creeps, or swings
        gradient = problem.gradient(point.theta, expected.mean)
        direction = newton_direction(problem, expected, gradient, hessian)
        before, old = point, point.variances()
        longest = min(2 * rho, LONGEST if learn else 1.0)
        target = hessian if learn else None
        point, rho = _search(problem, point, direction, target, control, longest)
        change = _rms(gradient * direction)
        if learn:
            moved = (point.variances() / old.clamp_min(torch.finfo(old.dtype).tiny) - 1).square()
            share = problem.weighted(torch.ones_like(moved))
            change = max(change, _rms(moved * share / share.mean()) / max(rho, 0.1))
        control.on_step(max(change, abs(missing)) / control.tol)
        trouble = _find_failure(problem, point, first) if learn else ""
        if max(change, abs(missing)) < control.tol or point is before or trouble:
            break
    step = max(change, abs(missing))
    if not trouble and step >= control.tol:
        trouble = (
            f"not converged in {iteration} iterations: the last step was {step:.1e}, to be below "
            f"tol={control.tol:.1e}; raise max_iter or prior_precision, or standardise the features"
        )
    return Solution(point, problem, iteration, trouble)


def _search(
    problem: GLMProblem, here: Point, direction: Tensor, hessian: Covariance | None, control: Control, rho: float
) -> tuple[Point, float]:
    """The point at the first of ρ, ρ/2, ρ/4, … that lowers the objective, and that ρ; (here, 0) if none does.

    The objective may rise by its rounding error, and by the error of averages over points.
    """
    scale = float(here.expected.log_partition.abs().sum()) + abs(here.objective)
    slack = 8 * torch.finfo(here.theta.dtype).eps * scale
    if problem.link.vector and here.covariance is not None:
        slack += SLACK * abs(here.objective)
    for _ in range(HALVINGS):
        covariance = here.covariance
        if hessian is not None and covariance is not None:
            covariance = covariance.blend(hessian, rho)
        point = evaluate_at(problem, here.theta - rho * direction, covariance, control.draws)
        if isfinite(point.objective) and point.objective <= here.objective + slack:
            return point, rho
        rho /= 2
    return here, 0.0


def _improve_prior(
    problem: GLMProblem, point: Point, hessian: Covariance, pace: float
) -> tuple[GLMProblem, Point, Covariance, float]:
    """All three under a δ nearer to MacKay's γ/‖θ‖², and how far log δ was off.

    The data determine γ = P − δ tr Σ of the P parameters.
    """
    determined = point.theta.numel() - problem.prior * float(hessian.variances().sum())
    wanted = max(determined, 1e-9) / max(float(point.theta.square().sum()), 1e-300)
    missing = log(wanted / problem.prior)
    move = min(max(pace * missing, -1.0), 1.0)
    better = replace(problem, prior=problem.prior * exp(move))
    assert point.covariance is not None
    kls = [kl_divergence(point.theta, point.covariance, x.prior) for x in (better, problem)]
    moved = replace(point, objective=point.objective + float(kls[0] - kls[1]))
    return better, moved, hessian.shifted(better.prior - problem.prior), missing


def _find_failure(problem: GLMProblem, point: Point, first: float) -> str:
    """Why there is no posterior to find, or nothing."""
    if abs(log(problem.prior) - first) > log(PRIOR_RANGE):
        return (
            f"the ELBO asks for a prior_precision beyond {problem.prior:.1e}, as when labels do "
            "not depend on the features; give a prior_precision"
        )
    typical = float(point.variances().amax(1).median().sqrt())
    if typical > WIDEST:
        return (
            f"the logits' standard deviation reached {typical:.0f}: the labels are separable, and "
            f"prior_precision={problem.prior:.1e} is too weak to hold the model; raise it"
        )
    return ""


def _rms(squares: Tensor) -> float:
    return float(squares.mean().clamp_min(0).sqrt())


def newton_direction(problem: GLMProblem, expected: Moments, gradient: Tensor, hessian: Covariance) -> Tensor:
    """H⁻¹g, by conjugate gradients where the structure does not hold all of H.

    There H is softmax-shaped, diag(p) − ppᵀ at p = E[softmax], scaled to the trace of E[A″]. Its gradients sum to zero
    over the classes, and so must the steps.
    """
    scalar = gradient.shape[1] == 1
    if hessian.matrix or (scalar and not isinstance(hessian, Diagonal)):
        return hessian.solve(gradient)
    p, trace = expected.mean, expected.variance.sum(1, keepdim=True)
    scale = trace / (p * (1 - p)).sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)

    def times(d: Tensor) -> Tensor:
        f = problem.features @ d
        response = trace * f if scalar else scale * p * (f - (p * f).sum(1, keepdim=True))
        return sum_outer(problem.features, problem.weighted(response)) + problem.prior * d

    def precondition(g: Tensor) -> Tensor:
        d = hessian.solve(g)
        return d if scalar else d - d.mean(1, keepdim=True)

    x, residual = torch.zeros_like(gradient), gradient
    direction = z = precondition(gradient)
    size = first = float((residual * z).sum())
    for _ in range(CG_STEPS):
        if size <= CG_TOLERANCE**2 * first:
            break
        image = times(direction)
        length = size / float((direction * image).sum())
        x, residual = x + length * direction, residual - length * image
        z = precondition(residual)
        previous, size = size, float((residual * z).sum())
        direction = z + (size / previous) * direction
    return x
