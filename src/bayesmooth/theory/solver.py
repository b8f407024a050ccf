"""VON and Newton under step control: to the Gaussian that minimises the negative ELBO, or to the mode.

Each step goes where the paper's goes (eq:newton, eq:von with ρ = 1), except that steps that would climb are halved, and
that the mean moves by the direction of the whole Hessian where Σ ignores the coupling of the parameters: it reaches the
fixed point of eq:von in fewer steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log

import torch
from torch import Tensor

from bayesmooth.theory.links import Moments, moments, softmax_moments
from bayesmooth.theory.updates import Covariance, Diagonal, GLMProblem, moments_at

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

    problem: GLMProblem
    theta: Tensor
    covariance: Covariance | None
    variances: Tensor  # of the logits (N, C); none without Σ
    expected: Moments
    objective: float


@dataclass(frozen=True)
class Solver:
    """How to go and when to stop: `tol` in posterior standard deviations, `draws` (0: exact expectations)."""

    structure: type[Covariance]
    learn: bool  # Σ, not only θ
    choose_prior: bool
    tol: float
    max_iter: int
    draws: int
    on_step: Callable[[float], None]
    """Called after every step with its length over `tol`."""

    def start(self, problem: GLMProblem, theta: Tensor) -> Point:
        """θ = 0 with Σ of the Hessian there, and under a prior that gives the logits a variance of 4 if it is free."""
        if self.choose_prior:
            power = problem.features.square().sum(1, keepdim=True)
            count = (problem.weights * torch.ones_like(power)).sum()
            problem = replace(problem, prior=float((problem.weights * power).sum() / count) / 4)
        curvature = problem.link.variance(theta[0])  # the same for every example
        if problem.link.vector and not self.structure.matrix:
            curvature = curvature.diagonal()
        curvature = curvature.expand(len(problem.features), *curvature.shape)
        return self.evaluate(problem, theta, problem.hessian(self.structure, curvature))

    def evaluate(self, problem: GLMProblem, theta: Tensor, covariance: Covariance | None) -> Point:
        """The moments and the objective at θ, or at N(θ, Σ) if there is a Σ."""
        logits = problem.features @ theta
        if covariance is None:
            variances, here = logits[:0], moments_at(problem.link, logits, self.structure.matrix)
            penalty = problem.prior * float(theta.square().sum()) / 2
        else:
            spread = covariance.logit_covariance(problem.features)
            variances = spread.diagonal(dim1=-2, dim2=-1) if spread.ndim == 3 else spread
            if self.draws:
                here = softmax_moments(logits, spread, self.draws, own=True)
            else:
                here = moments(problem.link, logits, spread)
            penalty = covariance.kl_divergence(theta, problem.prior)
        losses = here.log_partition.reshape(-1, 1) - (problem.labels * logits).sum(1, keepdim=True)
        return Point(problem, theta, covariance, variances, here, float((problem.weights * losses).sum()) + penalty)

    def descend(self, point: Point) -> tuple[Point, int, str]:
        """Newton steps of the mean, each with VON's step of Σ if it is to be learned.

        Until an iteration moves the mean by less than `tol` posterior standard deviations (rms), the variances of the
        logits by less than `tol` of themselves (rms), and log δ is right to `tol`. Returns the last point, the number
        of iterations, and why it did not converge (empty if it did).
        """
        first, step, rho, missing, pace, iteration, lost = point.problem.prior, inf, 1.0, 0.0, 1.0, 0, False
        while iteration < self.max_iter and step >= self.tol and not lost:
            iteration += 1
            hessian = point.problem.hessian(self.structure, point.expected.variance)
            if self.choose_prior:
                last = missing
                point, hessian, missing = improve_prior(point, hessian, pace)
                pace = min(1.3 * pace, 3.0) if missing * last > 0 else pace / 2  # it creeps, or swings
            gradient = point.problem.gradient(point.theta, point.expected.mean - point.problem.labels)
            direction = newton_direction(point, gradient, hessian)
            before, longest = point, min(2 * rho, LONGEST if self.learn else 1.0)
            point, rho = self.search(point, direction, hessian, longest)
            step = max(abs(missing), float((gradient * direction).mean().clamp_min(0).sqrt()))
            if self.learn:
                tiny = torch.finfo(point.variances.dtype).tiny
                moved = (point.variances / before.variances.clamp_min(tiny) - 1).square()
                share = point.problem.weights * torch.ones_like(moved)
                step = max(step, float((moved * share).sum() / share.sum()) ** 0.5 / max(rho, 0.1))
                astray = not 1 / PRIOR_RANGE < point.problem.prior / first < PRIOR_RANGE
                lost = astray or float(point.variances.amax(1).median()) > WIDEST**2
            self.on_step(step / self.tol)
            if point is before:
                break
        trouble = self.explain(point, first, step, iteration) if lost or step >= self.tol else ""
        return point, iteration, trouble

    def explain(self, point: Point, first: float, step: float, iteration: int) -> str:
        """Why the solver stopped before it arrived; `first` is δ at the start."""
        prior, typical = point.problem.prior, float(point.variances.amax(1).median().sqrt())
        if not 1 / PRIOR_RANGE < prior / first < PRIOR_RANGE:
            return (
                f"the ELBO asks for a prior_precision beyond {prior:.1e}, as when labels do "
                "not depend on the features; give a prior_precision"
            )
        if self.learn and typical > WIDEST:
            return (
                f"the logits' standard deviation reached {typical:.0f}: the labels are separable, and "
                f"prior_precision={prior:.1e} is too weak to hold the model; raise it"
            )
        return (
            f"not converged in {iteration} iterations: the last step was {step:.1e}, to be below "
            f"tol={self.tol:.1e}; raise max_iter or prior_precision, or standardise the features"
        )

    def search(self, here: Point, direction: Tensor, hessian: Covariance, rho: float) -> tuple[Point, float]:
        """The point at the first of ρ, ρ/2, ρ/4, … that lowers the objective, and that ρ; (here, 0) if none does.

        The objective may rise by its rounding error, and by the error of averages over points.
        """
        scale = float(here.expected.log_partition.abs().sum()) + abs(here.objective)
        slack = 8 * torch.finfo(here.theta.dtype).eps * scale
        if here.problem.link.vector and here.covariance is not None:
            slack += SLACK * abs(here.objective)
        for _ in range(HALVINGS):
            covariance = here.covariance
            if self.learn and covariance is not None:
                covariance = self.structure(torch.lerp(covariance.precision, hessian.precision, rho))  # eq:von
            point = self.evaluate(here.problem, here.theta - rho * direction, covariance)
            if isfinite(point.objective) and point.objective <= here.objective + slack:
                return point, rho
            rho /= 2
        return here, 0.0


def improve_prior(point: Point, hessian: Covariance, pace: float) -> tuple[Point, Covariance, float]:
    """Both under a δ nearer to MacKay's γ/‖θ‖², and how far log δ was off.

    The data determine γ = P − δ tr Σ of the P parameters.
    """
    theta, old, covariance = point.theta, point.problem.prior, point.covariance
    determined = theta.numel() - old * float(hessian.variances().sum())
    wanted = max(determined, 1e-9) / max(float(theta.square().sum()), 1e-300)
    missing = log(wanted / old)
    new = old * exp(min(max(pace * missing, -1.0), 1.0))
    assert covariance is not None
    change = covariance.kl_divergence(theta, new) - covariance.kl_divergence(theta, old)
    moved = replace(point, problem=replace(point.problem, prior=new), objective=point.objective + change)
    return moved, hessian.shifted(new - old), missing


def newton_direction(point: Point, gradient: Tensor, hessian: Covariance) -> Tensor:
    """H⁻¹g, by conjugate gradients where the structure does not hold all of H.

    There H is softmax-shaped, diag(p) − ppᵀ at p = E[softmax], scaled to the trace of E[A″]. Its gradients sum to zero
    over the classes, and so must the steps.
    """
    scalar = gradient.shape[1] == 1
    if hessian.matrix or (scalar and not isinstance(hessian, Diagonal)):
        return hessian.solve(gradient)
    problem, p, trace = point.problem, point.expected.mean, point.expected.variance.sum(1, keepdim=True)
    scale = trace / (p * (1 - p)).sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    x = direction = torch.zeros_like(gradient)
    residual, size, first = gradient, inf, 0.0
    for _ in range(CG_STEPS):
        z = hessian.solve(residual)
        if not scalar:
            z = z - z.mean(1, keepdim=True)
        previous, size = size, float((residual * z).sum())
        first = first or size
        if size <= CG_TOLERANCE**2 * first:
            break
        direction = z + (size / previous) * direction
        f = problem.features @ direction
        image = problem.gradient(direction, trace * f if scalar else scale * p * (f - (p * f).sum(1, keepdim=True)))
        length = size / float((direction * image).sum())
        x, residual = x + length * direction, residual - length * image
    return x
