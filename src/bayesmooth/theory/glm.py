"""Fit a generalised linear model: its mode, or the Gaussian over its parameters, and use it.

Each step of the solver is the paper's (eq:newton, eq:von with ρ = 1), except that steps that would climb
are halved, and that the mean moves by the direction of the whole Hessian where Σ ignores the coupling of the
parameters: it reaches the fixed point of eq:von in fewer steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesmooth.errors import InputError, one_of
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Moments, moments, softmax_moments
from bayesmooth.theory.noise import expected_noise
from bayesmooth.theory.updates import COVARIANCES, Covariance, Diagonal, Full, GLMProblem, moments_at

FAMILIES: dict[str, Link] = {"bernoulli": Bernoulli(), "categorical": Categorical(), "gaussian": Gaussian()}
METHODS = ("newton", "variational_gd", "von")
FULL_LIMIT = 4_000  # parameters; their covariance has the square of it
SUM_TOLERANCE = 1e-3  # of the sum of a soft label
HALVINGS = 30
SLACK = 1e-6  # of the negative ELBO: so far the averages of it and of its gradient may disagree
WIDEST = 30.0  # standard deviation of a typical logit that only separable labels reach
PRIOR_RANGE = 1e8  # the largest factor between δ and the start of its search
LONGEST = 0.8  # ρ of VON: with 1 the variances swing
CG_TOLERANCE = 0.1
CG_STEPS = 200


@dataclass(frozen=True)
class GLMFit:
    """A fitted model: N(mean, covariance) over the parameters, and the record of the fit.

    With a bias the last row of the mean is the bias. For scalar families (all but categorical) the
    class axis is dropped everywhere.
    """

    link: Link
    theta: Tensor  # (D, C) in every family
    posterior: Covariance
    bias: bool
    prior_precision: float
    elbo: float  # of the labels without their base measure
    converged: bool
    iterations: int
    message: str

    @property
    def mean(self) -> Tensor:
        """The mean of the parameters, (D, K); (D,) for scalar families."""
        return self.theta if self.link.vector else self.theta.squeeze(-1)

    @property
    def covariance(self) -> Tensor:
        """Their covariance: full (KD, KD) class by class; block (K, D, D); diagonal as the mean."""
        sigma = self.posterior.covariance()
        if isinstance(self.posterior, Diagonal):
            return sigma.reshape(self.theta.mT.shape).mT.reshape(self.mean.shape)
        return sigma.squeeze(0)

    def logits(self, features: Any) -> tuple[Tensor, Tensor]:
        """Mean (N, K) and variance of the logits: (N, K), or (N, K, K) if they are correlated."""
        matrix = design_matrix(features, self.bias, self.theta.dtype)
        if matrix.shape[1] != len(self.theta):
            wanted = len(self.theta) - self.bias
            raise InputError(f"{matrix.shape[1] - self.bias} features: the model has {wanted}")
        spread = self.posterior.logit_covariance(matrix)
        mean = matrix @ self.theta
        return (mean, spread) if self.link.vector else (mean.squeeze(-1), spread.squeeze(-1))

    def predict(self, features: Any) -> Tensor:
        """E_q[A′(f)]: class probabilities (N, K); for scalar families the expected label (N,)."""
        return self.link.mean(self.logits(features)[0]) - self.label_noise(features)

    def label_noise(self, features: Any) -> Tensor:
        """The expected noise A′(f) − E_q[A′(f)] of every example, signed  (eq:labelnoiseGLMGD)."""
        return expected_noise(*self.logits(features), self.link)


def fit_glm(
    features: Any,
    labels: Any,
    *,
    family: str = "categorical",
    method: str = "von",
    covariance: str = "block",
    prior_precision: float | Literal["elbo"] = 1.0,
    bias: bool = True,
    classes: int | None = None,
    init_variance: float = 1.0,
    tol: float = 1e-2,
    max_iter: int = 200,
    draws: int = 0,
    dtype: torch.dtype = torch.float64,
    on_step: Callable[[int], None] = lambda done: None,
) -> GLMFit:
    """Fit by Newton, variational GD or VON; see `docs/theory.md`.

    family: 'categorical' (K classes), 'bernoulli', 'gaussian' (unit noise).
    method: 'von' fits mean and covariance; 'newton' finds the mode, and gives Laplace's covariance there;
        'variational_gd' fits the mean under the fixed covariance init_variance·I.
    labels: class numbers or real numbers, one per example; soft labels are rows of probabilities (N, K), for
        'bernoulli' one probability per example. They may have their noise added, y + ε.
    covariance: 'full' (up to 4,000 parameters), 'block' (one block per class) or 'diagonal'.
    prior_precision: δ of the prior N(0, I/δ), also of the bias; 'elbo' finds the best (VON only).
    draws: 0 takes expectations exactly. A few draws of every example's logits, the same ones in every iteration, cost
        far less and end within a fraction of a posterior standard deviation of the fixed point (VON, categorical,
        independent logits).
    tol: stop when a step moves the mean by less than this many posterior standard deviations, and
        the logits' variances by less than this part of themselves.
    on_step: called after each step with their number so far, to show progress.

    >>> x, y = torch.tensor([[-1.0], [0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1])
    >>> fit = fit_glm(x, y, family="bernoulli")
    >>> fit.mean.round(decimals=2), fit.message
    (tensor([ 1.0300, -0.1900], dtype=torch.float64), 'converged in 5 iterations')
    """
    one_of("family", family, FAMILIES)
    one_of("method", method, METHODS)
    one_of("covariance", covariance, COVARIANCES)
    automatic = prior_precision == "elbo"
    prior = 1.0 if prior_precision == "elbo" else prior_precision  # 1 until the data say more
    if automatic and method != "von":
        raise InputError("prior_precision='elbo': needs method='von'; give a number")
    for argument, value in (("prior_precision", prior), ("init_variance", init_variance)):
        if not 0 < value < inf:
            raise InputError(f"{argument}={value}: must be positive and finite")
    matrix = design_matrix(features, bias, dtype)
    targets = make_targets(labels, matrix, family, classes)
    if automatic:  # the search starts where the logits have a variance of 4
        prior = float(matrix.square().sum(1).mean()) / 4
    problem = GLMProblem(matrix, targets, FAMILIES[family], prior)
    theta, structure = matrix.new_zeros(matrix.shape[1], targets.shape[1]), COVARIANCES[covariance]
    if structure is Full and theta.numel() > FULL_LIMIT:
        raise InputError(
            f"covariance='full' with {theta.numel():,} parameters: at most {FULL_LIMIT:,}; "
            "use covariance='block' (one block per class) or 'diagonal'"
        )
    if draws and (family != "categorical" or structure.matrix or method != "von"):
        raise InputError(f"draws={draws}: serve VON with family='categorical' and independent logits; leave them out")
    solver = Solver(structure, method == "von", automatic, tol, max_iter, draws, on_step)
    first = structure.isotropic(1 / init_variance, theta) if method == "variational_gd" else None
    if method == "von":  # Σ of the Hessian at θ = 0, where all examples have the same A″
        curvature = problem.link.variance(theta[0])
        if curvature.ndim == 2 and not structure.matrix:
            curvature = curvature.diagonal()
        first = structure.from_curvature(matrix, curvature.expand(len(matrix), *curvature.shape), prior)
    end, iterations, trouble = solver.descend(solver.evaluate(problem, theta, first))
    posterior = end.covariance
    if posterior is None:  # Laplace's
        posterior = structure.from_curvature(matrix, end.expected.variance, prior)
        end = solver.evaluate(problem, end.theta, posterior)
    message = trouble or f"converged in {iterations} iterations"
    prior = end.problem.prior
    return GLMFit(problem.link, end.theta, posterior, bias, prior, -end.objective, not trouble, iterations, message)


def design_matrix(features: Any, bias: bool, dtype: torch.dtype) -> Tensor:
    """The features (N, D) as a tensor, with a last column of ones if there is a bias."""
    given = features if isinstance(features, Tensor) else torch.as_tensor(features, device="cpu")
    if given.ndim != 2 or given.numel() == 0:
        raise InputError(f"features of shape {tuple(given.shape)}: must be (examples, features)")
    matrix = given.detach().to(dtype)
    if not bool(matrix.isfinite().all()):
        row, column = (~matrix.isfinite()).nonzero()[0].tolist()
        value = float(matrix[row, column])
        raise InputError(f"features[{row}, {column}] is {value}: must be finite; drop or fill such examples")
    if not bias and not bool(matrix.any()):
        raise InputError("all features are zero, and there is no bias: nothing to learn from")
    return F.pad(matrix, (0, 1), value=1.0) if bias else matrix


def make_targets(labels: Any, matrix: Tensor, family: str, classes: int | None) -> Tensor:
    """The labels as one column of numbers; those of 'categorical' as rows, one-hot where they are whole numbers."""
    given = y = torch.as_tensor(labels, device=matrix.device)
    if family == "categorical" and y.shape == matrix.shape[:1]:
        if y.is_floating_point() or y.is_complex():
            raise InputError(f"labels of dtype {y.dtype}: must be integers, the classes' numbers, or rows of shares")
        low, high = (int(bound) for bound in y.aminmax())
        classes = high + 1 if classes is None else classes
        if low < 0 or high >= classes:
            raise InputError(f"labels from {low} to {high}: must lie in 0 … {classes - 1}; number the classes from 0")
        y = F.one_hot(y.long(), classes)
    columns = (classes or y.shape[-1]) if family == "categorical" else 1
    targets = (y.unsqueeze(1) if y.ndim == 1 else y).to(matrix)
    if targets.shape != (len(matrix), columns):
        raise InputError(
            f"labels of shape {tuple(given.shape)}: must be ({len(matrix)},), one per example, or soft rows"
        )
    near = (targets > -1) & (targets < 2)  # y + ε may leave 0 … 1
    usable, rule = {
        "bernoulli": (near, "0, 1 or between"),
        "categorical": (near & ((targets.sum(1, keepdim=True) - 1).abs() <= SUM_TOLERANCE), "shares that sum to one"),
        "gaussian": (targets.isfinite(), "finite"),
    }[family]
    if not bool(usable.all()):
        row = int((~usable).nonzero()[0, 0])
        raise InputError(f"labels[{row}] is {[round(v, 4) for v in targets[row].tolist()]}: must be {rule}")
    if family in ("bernoulli", "categorical") and bool((targets == targets[0]).all()):
        raise InputError(f"all labels are {given[0].tolist()}: at least two classes must occur")
    return targets


# ---- the solver ----


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
    """The settings of the descent: `tol` in posterior standard deviations, `draws` (0: exact expectations)."""

    structure: type[Covariance]
    learn: bool  # Σ, not only θ
    choose_prior: bool
    tol: float
    max_iter: int
    draws: int
    on_step: Callable[[int], None]

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
        losses = here.log_partition.flatten() - (problem.labels * logits).sum(1)
        return Point(problem, theta, covariance, variances, here, float(losses.sum()) + penalty)

    def descend(self, point: Point) -> tuple[Point, int, str]:
        """Newton steps of the mean, each with VON's step of Σ if it is to be learned.

        Until an iteration moves the mean by less than `tol` posterior standard deviations (rms), the variances of the
        logits by less than `tol` of themselves (rms), and log δ is right to `tol`. Returns the last point, the number
        of iterations, and the reason for not converging (empty if it did).
        """
        first, step, rho, iteration = point.problem.prior, inf, 1.0, 0
        missing, pace, astray, width = 0.0, 1.0, False, 0.0
        while iteration < self.max_iter and step >= self.tol and not astray and width <= WIDEST:
            iteration += 1
            problem = point.problem
            hessian = self.structure.from_curvature(problem.features, point.expected.variance, problem.prior)
            if self.choose_prior:
                last = missing
                point, hessian, missing = improve_prior(point, hessian, pace)
                pace = min(1.3 * pace, 3.0) if missing * last > 0 else pace / 2  # it creeps, or swings
            gradient = point.problem.gradient(point.theta, point.expected.mean - problem.labels)
            direction = newton_direction(point, gradient, hessian)
            before, longest = point, min(2 * rho, LONGEST if self.learn else 1.0)
            point, rho = self.search(point, direction, hessian, longest)
            step = max(abs(missing), float((gradient * direction).mean().clamp_min(0).sqrt()))
            if self.learn:
                tiny = torch.finfo(point.variances.dtype).tiny
                moved = (point.variances / before.variances.clamp_min(tiny) - 1).square()
                step = max(step, float(moved.mean()) ** 0.5 / max(rho, 0.1))
                astray = not 1 / PRIOR_RANGE < point.problem.prior / first < PRIOR_RANGE
                width = float(point.variances.amax(1).median()) ** 0.5
            self.on_step(iteration)
            if point is before:
                break
        prior, trouble = f"prior_precision={point.problem.prior:.1e}", ""
        if astray:
            trouble = f"the ELBO asks for {prior} or beyond, as when labels ignore the features; give one"
        elif width > WIDEST:
            trouble = f"separable labels: the logits have a standard deviation of {width:.0f} under {prior}; raise it"
        elif step >= self.tol:
            trouble = (
                f"not converged in {iteration} iterations: the last step was {step:.1e}, not below tol={self.tol:.1e}; "
                "raise max_iter or prior_precision, or standardise the features"
            )
        return point, iteration, trouble

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
    """Both under a δ nearer to MacKay's γ/‖θ‖², and the error of the old log δ.

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
