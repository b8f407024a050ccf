"""Reach the fixed points of the GLM updates, as printed (with a step size ρ) or under step control (without).

Under step control, steps that would climb are halved. The mode, and the mean under a fixed covariance, come from
Newton's method. The variational posterior comes from VON with ρ = 1, except that the mean moves by the coupled Newton
direction where Σ ignores the coupling of the classes: it reaches the fixed point of eq:von in fewer steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, nan
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.glm.covariance import Covariance, Diagonal, sum_outer
from bayesmooth.theory.glm.steps import (
    GLMProblem,
    gd_step,
    kl_divergence,
    moments_at,
    newton_step,
    variational_gd_step,
    von_step,
)
from bayesmooth.theory.moments import Moments, drawn_softmax_moments, moments, softmax_moments

ROUGH = 0.05  # of a posterior standard deviation: where VON takes over from the search for the mode
LARGE = 2e9  # N·D²·C from which most of the way is travelled in float32
FLOAT32_TOLERANCE = 2e-4
WIDE = 10.0  # variance of a logit from which Laplace's covariance may be far too wide
MAX_PARAMETER = 1e30  # size of a parameter from which an iteration does not come back
HALVINGS = 30
STALE = 25  # conjugate-gradient steps after which a new preconditioner pays
SLACK = 1e-6  # of the negative ELBO: so far its quadrature and that of its gradient may disagree
WIDEST = 30.0  # standard deviation of the logits up to which their quadrature is sound
PATIENCE = 5  # iterations beyond it until the labels are called separable
LONGEST_MOVE = 4.0  # of log δ in one iteration
PRIOR_TOLERANCE = 0.01  # of log δ: the ELBO does not feel less
PRIOR_RANGE = 1e8  # how far δ may go from where its search starts, either way
COARSE = -1  # in place of a number of draws: the coarse rule
COARSE_TOLERANCE = 1e-3  # the coarse rule is not smoother than that
MEMORY = 5  # earlier steps that an extrapolation looks at
CREEP = 10  # the error of log δ may be this many times the step that is missing
SHORTEST = 0.02  # step with which an extrapolation begins anew
REGULARISED = 1e-8  # of the squared length of every step
CG_TOLERANCE = 0.1
CG_STEPS = 200


@dataclass(frozen=True)
class Point:
    """Parameters θ, with the moments and the risk ℓ̄ there."""

    theta: Tensor
    expected: Moments
    objective: float


@dataclass(frozen=True)
class GaussianPoint(Point):
    """A Gaussian around θ; its objective is the negative ELBO."""

    covariance: Covariance
    spread: Tensor  # of the logits: ΦΣΦᵀ

    def variances(self) -> Tensor:
        """The variance of every logit (N, C)."""
        matrix = self.covariance.matrix
        return self.spread.diagonal(dim1=-2, dim2=-1) if matrix else self.spread


P = TypeVar("P", bound=Point)


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
class Solution(Generic[P]):
    """Where a solver stopped, after how many iterations, and why it did not converge (empty if it did)."""

    point: P
    problem: GLMProblem
    iterations: int
    trouble: str

    @property
    def message(self) -> str:
        """How it went."""
        return self.trouble or f"converged in {self.iterations} iterations"


def iterate(
    problem: GLMProblem, method: str, start: Covariance, rho: float, tol: float, max_iter: int
) -> Solution[GaussianPoint]:
    """The paper's iteration with step size ρ from θ = 0, until a step is below ρ·tol."""

    def change(new: Tensor, old: Tensor) -> float:
        return float((new - old).abs().max() / old.abs().max().clamp_min(1))

    theta, covariance, moved = problem.origin(), start, nan
    for iteration in range(1, max_iter + 1):
        before, old = theta, covariance.precision
        if method == "von":
            theta, covariance = von_step(problem, theta, covariance, rho)
        elif method == "variational_gd":
            theta = variational_gd_step(problem, theta, covariance, rho)
        elif method == "newton":
            theta = newton_step(problem, theta, type(covariance), rho)
        else:
            theta = gd_step(problem, theta, rho)
        if not bool((theta.abs() < MAX_PARAMETER).all()):
            trouble = f"diverged in {iteration} iterations: step_size={rho} is too large; halve it"
            stayed = gaussian_at(problem, start, problem.origin())
            return Solution(stayed, problem, iteration, trouble)
        moved = max(change(theta, before), change(covariance.precision, old)) / rho
        if moved < tol:
            return _finish(problem, method, theta, covariance, iteration)
    trouble = f"not converged in {max_iter} iterations: moved by {moved:.1e}·ρ; raise max_iter"
    return _finish(problem, method, theta, covariance, max_iter, trouble)


def find_fixed_point(
    problem: GLMProblem, method: str, start: Covariance, tol: float, max_iter: int
) -> Solution[GaussianPoint]:
    """The fixed point of 'gd' and 'newton', which is the mode, or of 'variational_gd', under step control."""
    fixed = start if method == "variational_gd" else None
    found = find_mode(problem, type(start), Control(tol, max_iter), fixed)
    return _finish(problem, method, found.point.theta, start, found.iterations, found.trouble)


def _finish(
    problem: GLMProblem,
    method: str,
    theta: Tensor,
    covariance: Covariance,
    iterations: int,
    trouble: str = "",
) -> Solution[GaussianPoint]:
    """The Gaussian a method ends with: Laplace's for those that find the mode."""
    if method in ("gd", "newton"):
        here = moments_at(problem.link, problem.features @ theta, covariance.matrix)
        covariance = problem.hessian(type(covariance), here.variance)
    return Solution(gaussian_at(problem, covariance, theta), problem, iterations, trouble)


def von(
    problem: GLMProblem,
    structure: type[Covariance],
    control: Control,
    start: tuple[Covariance, Tensor] | None = None,
) -> Solution[GaussianPoint]:
    """The fixed point of VON, by way of the mode or of `start`; large problems come near it in float32."""
    if start is not None:
        return find_posterior(problem, gaussian_at(problem, *start, draws=control.draws), control)
    if control.choose_prior:  # start where the prior gives the logits a variance of 4
        power = problem.features.square().sum(1)
        count = problem.weighted(torch.ones_like(power)).sum()
        problem = replace(problem, prior=float(problem.weighted(power).sum() / count) / 4)
    n, d = problem.features.shape
    near = None
    if problem.features.dtype == torch.float64 and n * d * d * problem.labels.shape[1] > LARGE:
        near = _near_in_float32(problem, structure, control)
    if near is None:
        return find_posterior(problem, _from_mode(problem, structure, control), control)
    problem = replace(problem, prior=near.problem.prior)
    covariance = structure(near.point.covariance.precision.double())
    theta, spread = near.point.theta.double(), near.point.spread.double()
    point = gaussian_at(problem, covariance, theta, spread, control.draws)
    found = find_posterior(problem, point, control)
    return replace(found, iterations=near.iterations + found.iterations)


def _near_in_float32(
    problem: GLMProblem, structure: type[Covariance], control: Control
) -> Solution[GaussianPoint] | None:
    """The solution to the digits that float32 has; None where it does not carry the problem."""
    small = problem.to(torch.float32)
    try:
        start = _from_mode(small, structure, control)
        rough = replace(control, tol=max(control.tol, FLOAT32_TOLERANCE))
        near = find_posterior(small, start, rough)
    except InputError:
        return None
    return None if near.trouble else near


def _from_mode(problem: GLMProblem, structure: type[Covariance], control: Control) -> GaussianPoint:
    """Laplace's Gaussian at the mode, narrowed while it is wide and that lowers the objective."""
    rough = replace(control, tol=max(control.tol, ROUGH))
    mode = find_mode(problem, structure, rough).point
    hessian = problem.hessian(structure, mode.expected.variance)
    point = gaussian_at(problem, hessian, mode.theta, draws=control.draws)
    while float(point.variances().max()) > WIDE:
        covariance = structure(4 * point.covariance.precision)
        narrower = gaussian_at(problem, covariance, mode.theta, point.spread / 4, control.draws)
        if isfinite(point.objective) and narrower.objective >= point.objective:
            break
        point = narrower
    return point


def point_at(problem: GLMProblem, matrix: bool, theta: Tensor) -> Point:
    """The moments and ℓ̄ at θ."""
    logits = problem.features @ theta
    here = moments_at(problem.link, logits, matrix)
    loss = problem.expected_loss(logits, here.log_partition)
    return Point(theta, here, float(loss + problem.prior * theta.square().sum() / 2))


def gaussian_at(
    problem: GLMProblem,
    covariance: Covariance,
    theta: Tensor,
    spread: Tensor | None = None,
    draws: int = 0,
) -> GaussianPoint:
    """The expected moments and the negative ELBO at N(θ, Σ): exact, over draws, or by a coarse rule (`COARSE`).

    `spread` is ΦΣΦᵀ where it is known.
    """
    logits = problem.features @ theta
    if spread is None:
        spread = covariance.logit_covariance(problem.features)
    if draws == COARSE:
        here = softmax_moments(logits, spread, coarse=True)
    elif draws:
        here = drawn_softmax_moments(logits, spread, draws)
    else:
        here = moments(problem.link, logits, spread)
    loss = problem.expected_loss(logits, here.log_partition)
    kl = kl_divergence(theta, covariance, problem.prior)
    return GaussianPoint(theta, here, float(loss + kl), covariance, spread)


def find_mode(
    problem: GLMProblem,
    structure: type[Covariance],
    control: Control,
    fixed: Covariance | None = None,
) -> Solution[Point]:
    """The θ that minimises ℓ̄, or E[ℓ̄] under a `fixed` Σ.

    Newton steps from θ = 0, until one is below `tol` (rms, in posterior standard deviations).
    """

    def at(theta: Tensor, rho: float = 0.0) -> Point:
        if fixed is None:
            return point_at(problem, structure.matrix, theta)
        return gaussian_at(problem, fixed, theta)

    point, step, iteration, work = at(problem.origin()), nan, 0, 0
    while iteration < control.max_iter:
        iteration += 1
        if work == 0 or work > STALE:  # none where the structure holds the whole Hessian
            hessian = problem.hessian(structure, point.expected.variance)
        gradient = problem.gradient(point.theta, point.expected.mean)
        direction, work = newton_direction(problem, point.expected, gradient, hessian)
        step = _rms(gradient * direction)
        point, rho = _descend(problem, point, direction, at)
        control.on_step(step / control.tol)
        if step < control.tol or rho == 0:
            break
    return Solution(point, problem, iteration, _find_trouble(step, control.tol, iteration))


def find_posterior(
    problem: GLMProblem, start: GaussianPoint, control: Control
) -> Solution[GaussianPoint]:
    """The Gaussian that minimises the negative ELBO, and with it the prior precision if asked.

    Until an iteration moves the mean by less than `tol` posterior standard deviations (rms), the
    variances of the logits by less than `tol` of themselves (rms), and δ is right to `tol` or 1 %.
    """
    point, iteration, rho, longest, wide = start, 0, 1.0, 1.0, 0
    change, missing, failure = inf, 0.0, ""
    search = PriorSearch(problem.prior, max(control.tol, PRIOR_TOLERANCE))
    if not control.draws and not start.covariance.matrix:
        near = extrapolate(problem, start, control)
        if not near.trouble:
            return near
        problem, point, iteration = near.problem, near.point, near.iterations
    while iteration < control.max_iter and not failure:
        iteration += 1
        hessian = problem.hessian(type(point.covariance), point.expected.variance)
        if control.choose_prior:
            problem, point, hessian, missing = search.step(problem, point, hessian)
        before = point.objective
        longer = min(longest, 1.5 * rho)
        point, change, rho = _von_step(problem, point, hessian, longer, control.draws)
        control.on_step(max(change, missing) / control.tol)
        if (change < control.tol and missing == 0) or rho == 0:
            break
        if point.objective >= before:
            longest = max(0.7 * longest, 0.2)  # it swings within the slack: shorter steps settle
        typical = float(point.variances().amax(1).median().sqrt())
        wide = wide + 1 if typical > WIDEST else 0
        failure = search.failure
        if wide == PATIENCE and not failure:
            failure = (
                f"the logits' standard deviation reached {typical:.0f}: the labels are separable, and "
                f"prior_precision={problem.prior:.1e} is too weak to hold the model; raise it"
            )
    trouble = failure or _find_trouble(max(change, missing), control.tol, iteration)
    return Solution(point, problem, iteration, trouble)


State = tuple[Tensor, Tensor, float]  # θ, log h, log δ


def extrapolate(
    problem: GLMProblem, start: GaussianPoint, control: Control
) -> Solution[GaussianPoint]:
    """The fixed point of θ, of the curvatures h = E[A″] and of δ by Anderson's acceleration, as far as that goes.

    VON with ρ = 1 maps x = (θ, log h, log δ) to x′. It swings, and it creeps where classes can be separated, as there
    the ELBO hardly feels the scale of θ. The next x is the Σ αᵢ x′ᵢ, Σ αᵢ = 1, of the last steps whose Σ αᵢ (x′ᵢ − xᵢ)
    is shortest. Where the objective rises, it begins anew from the best x with a shorter step. Softmax moments are
    coarse until nothing moves, then exact.
    """
    draws = COARSE if problem.link.vector else 0

    def evaluate(x: State) -> tuple[GLMProblem, GaussianPoint, State]:
        here = replace(problem, prior=exp(x[2]))
        covariance = here.hessian(type(start.covariance), x[1].exp())
        return here, gaussian_at(here, covariance, x[0], draws=draws), x

    x = image = start.theta, _log(start.expected.variance), log(problem.prior)
    best, change, iteration, rho = evaluate(x), inf, 1, 0.5
    new, steps = best, list[tuple[State, Tensor]]()
    while True:
        if new is best:
            image, residual, change = _apply_von(*best, control)
            steps = [*steps[-MEMORY:], (image, residual)]
            control.on_step(change / control.tol)
        else:
            steps, rho = steps[-1:] if len(steps) > 1 else [], rho / 2
        enough = max(control.tol / 4, COARSE_TOLERANCE) if draws else control.tol
        ended = iteration >= control.max_iter or rho < SHORTEST or change < enough
        if ended and not draws:
            break
        iteration += 1
        if ended:
            draws, steps, rho = 0, [], 0.5
            best = new = evaluate(best[2])
            continue
        new = evaluate(_mix(steps) if len(steps) > 1 else _blend(best[2], image, rho))
        best = new if new[1].objective < best[1].objective else best
    trouble = _find_trouble(change, control.tol, iteration)
    return Solution(best[1], best[0], iteration, trouble)


def _apply_von(
    problem: GLMProblem, point: GaussianPoint, x: State, control: Control
) -> tuple[State, Tensor, float]:
    """Where VON takes x, the move in units of the ELBO's curvature, and how far it is from the fixed point."""
    theta, curvature, prior = x
    gradient = problem.gradient(theta, point.expected.mean)
    direction, _ = newton_direction(problem, point.expected, gradient, point.covariance)
    variances = point.covariance.variances()
    missing = _missing_prior(problem.prior, theta, variances) if control.choose_prior else 0.0
    missing = min(max(missing, -1.0), 1.0)
    moved = _log(point.expected.variance) - curvature
    leverage = problem.weighted(curvature.exp() * point.variances())
    weighted = moved * leverage.sqrt()
    scale = float(theta.numel() - problem.prior * variances.sum()) ** 0.5
    parts = -direction / variances.sqrt(), weighted, theta.new_tensor(missing * scale)
    residual = torch.cat([part.reshape(-1) for part in parts])
    change = max(_rms(gradient * direction), _rms(weighted.square()), CREEP * abs(missing))
    return (theta - direction, curvature + moved, prior + missing), residual, change


def _mix(steps: list[tuple[State, Tensor]]) -> State:
    """Anderson's Σ αᵢ x′ᵢ."""
    rows = torch.stack([residual for _, residual in steps]).double()
    gram = rows @ rows.mT
    gram.diagonal().mul_(1 + REGULARISED)
    weights = torch.linalg.solve(gram, torch.ones_like(gram[0]))
    shares = (weights / weights.sum()).tolist()
    theta, curvature, prior = (
        sum(share * part for share, part in zip(shares, parts, strict=True))
        for parts in zip(*(image for image, _ in steps), strict=True)
    )
    return theta, curvature, prior


def _blend(x: State, image: State, rho: float) -> State:
    theta, curvature = torch.lerp(x[0], image[0], rho), torch.lerp(x[1], image[1], rho)
    return theta, curvature, x[2] + rho * (image[2] - x[2])


def _log(curvature: Tensor) -> Tensor:
    return curvature.clamp_min(torch.finfo(curvature.dtype).tiny).log()


def _missing_prior(prior: float, theta: Tensor, variances: Tensor) -> float:
    """How far log δ is from MacKay's γ/‖θ‖², with γ = P − δ tr Σ the number of parameters that the data determine."""
    determined = theta.numel() - prior * float(variances.sum())
    return log(max(determined, 1e-9) / max(float(theta.square().sum()), 1e-300)) - log(prior)


def _von_step(
    problem: GLMProblem, here: GaussianPoint, hessian: Covariance, rho: float, draws: int
) -> tuple[GaussianPoint, float, float]:
    """VON's step with the coupled direction, how far it moves at ρ = 1, and the ρ it took."""
    gradient = problem.gradient(here.theta, here.expected.mean)
    direction, _ = newton_direction(problem, here.expected, gradient, hessian)

    def at(theta: Tensor, rho: float) -> GaussianPoint:
        return gaussian_at(problem, here.covariance.blend(hessian, rho), theta, draws=draws)

    point, rho = _descend(problem, here, direction, at, rho)
    old = here.variances()
    relative = (point.variances() - old) / old.clamp_min(torch.finfo(old.dtype).tiny)
    share = problem.weighted(torch.ones_like(relative))
    moved = _rms(relative.square() * share / share.mean())
    change = max(_rms(gradient * direction), moved / max(rho, 0.1))
    return point, change, rho


class PriorSearch:
    """The prior precision δ that maximises the ELBO: a secant method on MacKay's fixed point."""

    def __init__(self, start: float, tol: float) -> None:
        self.tol = tol
        self.start = log(start)
        self.last: tuple[float, float] | None = None
        self.failure = ""

    def step(
        self, problem: GLMProblem, point: GaussianPoint, hessian: Covariance
    ) -> tuple[GLMProblem, GaussianPoint, Covariance, float]:
        """The problem, point and Hessian under a better δ, and how far log δ was off."""
        here = log(problem.prior)
        missing = _missing_prior(problem.prior, point.theta, hessian.variances())
        if abs(missing) < self.tol:
            return problem, point, hessian, 0.0
        slope = -1.0
        if self.last is not None and here != self.last[0]:
            slope = (missing - self.last[1]) / (here - self.last[0])
        self.last = here, missing
        move = missing / min(max(-slope, 0.4), 1.0)
        better = here + min(max(move, -LONGEST_MOVE), LONGEST_MOVE)
        if abs(better - self.start) > log(PRIOR_RANGE):
            self.failure = (
                f"the ELBO asks for a prior_precision beyond {exp(better):.1e}, as when labels do "
                "not depend on the features; give a prior_precision"
            )
        changed = replace(problem, prior=exp(better))
        kls = [kl_divergence(point.theta, point.covariance, x.prior) for x in (changed, problem)]
        moved = replace(point, objective=point.objective + float(kls[0] - kls[1]))
        return changed, moved, hessian.shifted(changed.prior - problem.prior), abs(missing)


def _descend(
    problem: GLMProblem,
    here: P,
    direction: Tensor,
    at: Callable[[Tensor, float], P],
    rho: float = 1.0,
) -> tuple[P, float]:
    """The point at the first of ρ, ρ/2, ρ/4, … that lowers the objective, and that ρ; (here, 0) if none does.

    `at` takes θ and ρ. The objective may rise by its rounding error, and by the error of a quadrature.
    """
    scale = float(here.expected.log_partition.abs().sum()) + abs(here.objective)
    slack = 8 * torch.finfo(here.theta.dtype).eps * scale
    if problem.link.vector and isinstance(here, GaussianPoint):
        slack += SLACK * abs(here.objective)
    for _ in range(HALVINGS):
        point = at(here.theta - rho * direction, rho)
        if isfinite(point.objective) and point.objective <= here.objective + slack:
            return point, rho
        rho /= 2
    return here, 0.0


def _rms(squares: Tensor) -> float:
    return float(squares.mean().clamp_min(0).sqrt())


def _find_trouble(step: float, tol: float, iterations: int) -> str:
    if step < tol:
        return ""
    return (
        f"not converged in {iterations} iterations: the last step was {step:.1e}, to be below "
        f"tol={tol:.1e}; raise max_iter or prior_precision, or standardise the features"
    )


def newton_direction(
    problem: GLMProblem, expected: Moments, gradient: Tensor, hessian: Covariance
) -> tuple[Tensor, int]:
    """H⁻¹g and the conjugate-gradient steps it took: none where the structure holds all of H.

    Elsewhere H is softmax-shaped, diag(p) − ppᵀ at p = E[softmax], scaled to the trace of E[A″].
    Its gradients sum to zero over the classes, and so must the steps.
    """
    scalar = gradient.shape[1] == 1
    if hessian.matrix or (scalar and not isinstance(hessian, Diagonal)):
        return hessian.solve(gradient), 0
    p, trace = expected.mean, expected.variance.sum(1, keepdim=True)
    scale = trace / (p * (1 - p)).sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)

    def times(d: Tensor) -> Tensor:
        f = problem.features @ d
        response = trace * f if scalar else scale * p * (f - (p * f).sum(1, keepdim=True))
        return sum_outer(problem.features, problem.weighted(response)) + problem.prior * d

    def precondition(g: Tensor) -> Tensor:
        d = hessian.solve(g)
        return d if scalar else d - d.mean(1, keepdim=True)

    return _conjugate_gradients(times, precondition, gradient)


def _conjugate_gradients(
    times: Callable[[Tensor], Tensor], precondition: Callable[[Tensor], Tensor], b: Tensor
) -> tuple[Tensor, int]:
    x, residual = torch.zeros_like(b), b
    direction = z = precondition(b)
    size = first = float((residual * z).sum())
    steps = 0
    while steps < CG_STEPS and size > CG_TOLERANCE**2 * first:
        steps += 1
        image = times(direction)
        length = size / float((direction * image).sum())
        x, residual = x + length * direction, residual - length * image
        z = precondition(residual)
        previous, size = size, float((residual * z).sum())
        direction = z + (size / previous) * direction
    return x, steps
