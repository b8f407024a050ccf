"""The four methods, as printed (with a step size ρ) or under step control (without)."""

from dataclasses import replace
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.glm.covariance import Covariance
from bayesmooth.theory.glm.solver import (
    Gaussian,
    Solution,
    find_descent,
    find_mode,
    find_posterior,
    gaussian_at,
    point_at,
)
from bayesmooth.theory.glm.steps import (
    Problem,
    gd_step,
    moments_at,
    newton_step,
    variational_gd_step,
    von_step,
)

ROUGH = 0.05  # of a posterior standard deviation: where VON takes over from the search for the mode
LARGE = 2e9  # N·D²·C from which most of the way is travelled in float32
FLOAT32_TOLERANCE = 2e-4
WIDE = 10.0  # variance of a logit from which Laplace's covariance may be far too wide
HOPELESS = 1e30  # size of a parameter from which an iteration does not come back


def iterate(
    problem: Problem, method: str, start: Covariance, rho: float, tol: float, max_iter: int
) -> Solution[Gaussian]:
    """The paper's iteration with step size ρ from θ = 0, until a step is below ρ·tol."""
    theta, covariance, moved, iteration = origin(problem), start, float("nan"), 0
    while iteration < max_iter:
        iteration += 1
        before, old = theta, covariance.precision
        theta, covariance = _printed_step(problem, method, theta, covariance, rho)
        if not bool((theta.abs() < HOPELESS).all()):
            trouble = f"diverged in {iteration} iterations: step_size={rho} is too large; halve it"
            stayed = gaussian_at(problem, start, origin(problem))
            return Solution(stayed, problem, iteration, False, trouble)
        moved = max(_relative(theta, before), _relative(covariance.precision, old)) / rho
        if moved < tol:
            return _ended(problem, method, theta, covariance, iteration)
    trouble = f"not converged in {iteration} iterations: moved by {moved:.1e}·ρ; raise max_iter"
    return _ended(problem, method, theta, covariance, iteration, trouble)


def settle(
    problem: Problem, method: str, start: Covariance, tol: float, max_iter: int
) -> Solution[Gaussian]:
    """The fixed point of 'gd', 'newton' or 'variational_gd', under step control."""
    theta, structure = origin(problem), type(start)
    if method == "newton":
        found = find_mode(problem, theta, structure, tol, max_iter)
    else:
        at = (
            partial(point_at, problem, structure.matrix)
            if method == "gd"
            else partial(gaussian_at, problem, start)
        )
        found = find_descent(problem, at, theta, tol, max_iter)
    trouble = "" if found.converged else found.message
    return _ended(problem, method, found.point.theta, start, found.iterations, trouble)


def von(
    problem: Problem, structure: type[Covariance], tol: float, max_iter: int, choose_prior: bool
) -> Solution[Gaussian]:
    """The fixed point of VON, by way of the mode; large problems come near it in float32."""
    if choose_prior:  # start where the prior gives the logits a variance of 100
        problem = replace(problem, prior=float(problem.features.square().sum(1).mean()) / 100)
    n, d = problem.features.shape
    double = problem.features.dtype == torch.float64
    near = None
    if double and n * d * d * problem.labels.shape[1] > LARGE:
        near = _near_in_float32(problem, structure, tol, max_iter, choose_prior)
    if near is None:
        start = _from_mode(problem, structure, tol, max_iter)
        return find_posterior(problem, start, tol, max_iter, choose_prior)
    problem = replace(problem, prior=near.problem.prior)
    covariance = structure(near.point.covariance.precision.double())
    theta, spread = near.point.theta.double(), near.point.spread.double()
    start = gaussian_at(problem, covariance, theta, spread)
    found = find_posterior(problem, start, tol, max_iter, choose_prior)
    count = near.iterations + found.iterations
    message = f"converged in {count} iterations" if found.converged else found.message
    return replace(found, iterations=count, message=message)


def origin(problem: Problem) -> Tensor:
    """θ = 0."""
    return problem.features.new_zeros(problem.features.shape[1], problem.labels.shape[1])


def _near_in_float32(
    problem: Problem, structure: type[Covariance], tol: float, max_iter: int, choose_prior: bool
) -> Solution[Gaussian] | None:
    """The solution to the digits that float32 has; None where it does not carry the problem."""
    small = problem.to(torch.float32)
    try:
        start = _from_mode(small, structure, tol, max_iter)
        near = find_posterior(small, start, max(tol, FLOAT32_TOLERANCE), max_iter, choose_prior)
    except InputError:
        return None
    return near if near.converged else None


def _from_mode(
    problem: Problem, structure: type[Covariance], tol: float, max_iter: int
) -> Gaussian:
    """Laplace's Gaussian at the mode, narrowed while it is wide and that lowers the objective."""
    mode = find_mode(problem, origin(problem), structure, max(tol, ROUGH), max_iter).point
    point = gaussian_at(problem, problem.hessian(structure, mode.expected.variance), mode.theta)
    while float(point.variances().max()) > WIDE:
        covariance = structure(4 * point.covariance.precision)
        narrower = gaussian_at(problem, covariance, mode.theta, point.spread / 4)
        if isfinite(point.objective) and narrower.objective >= point.objective:
            break
        point = narrower
    return point


def _printed_step(
    problem: Problem, method: str, theta: Tensor, covariance: Covariance, rho: float
) -> tuple[Tensor, Covariance]:
    if method == "von":
        return von_step(problem, theta, covariance, rho)
    if method == "variational_gd":
        return variational_gd_step(problem, theta, covariance, rho), covariance
    if method == "newton":
        return newton_step(problem, theta, type(covariance), rho), covariance
    return gd_step(problem, theta, rho), covariance


def _ended(
    problem: Problem,
    method: str,
    theta: Tensor,
    covariance: Covariance,
    iterations: int,
    trouble: str = "",
) -> Solution[Gaussian]:
    """The Gaussian a method ends with: Laplace's for those that find the mode."""
    if method in ("gd", "newton"):
        structure = type(covariance)
        here = moments_at(problem.link, problem.features @ theta, structure.matrix)
        covariance = problem.hessian(structure, here.variance)
    message = trouble or f"converged in {iterations} iterations"
    point = gaussian_at(problem, covariance, theta)
    return Solution(point, problem, iterations, not trouble, message)


def _relative(new: Tensor, old: Tensor) -> float:
    return float((new - old).abs().max() / old.abs().max().clamp_min(1))
