"""Fit a generalised linear model: its mode, or the Gaussian over its parameters, and use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link
from bayesmooth.theory.noise import expected_noise
from bayesmooth.theory.solver import Solver
from bayesmooth.theory.updates import COVARIANCES, Covariance, Diagonal, Full, GLMProblem

FAMILIES: dict[str, Link] = {"bernoulli": Bernoulli(), "categorical": Categorical(), "gaussian": Gaussian()}
MAX_ITER = {"newton": 100, "variational_gd": 10_000, "von": 200}
FULL_LIMIT = 4_000  # parameters; their covariance has the square of it
SUM_TOLERANCE = 1e-3  # of the sum of a soft label


@dataclass(frozen=True)
class GLMFit:
    """A fitted model: N(mean, covariance) over the parameters, and how the fit went.

    With a bias the last row of the mean is the bias. For scalar families (all but categorical) the
    class axis is dropped everywhere.
    """

    link: Link
    theta: Tensor  # (D, C), whatever the family
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
    weights: Any | None = None,
    classes: int | None = None,
    init_variance: float = 1.0,
    tol: float = 1e-2,
    max_iter: int | None = None,
    draws: int = 0,
    dtype: torch.dtype = torch.float64,
    on_step: Callable[[float], None] = lambda excess: None,
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
    on_step: called after each of VON's steps with its length over `tol`, to show progress.

    >>> x, y = torch.tensor([[-1.0], [0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1])
    >>> fit = fit_glm(x, y, family="bernoulli")
    >>> fit.mean.round(decimals=2), fit.message
    (tensor([ 1.0300, -0.1900], dtype=torch.float64), 'converged in 5 iterations')
    """
    choices: dict[str, tuple[str, Mapping[str, Any]]] = {
        "family": (family, FAMILIES),
        "method": (method, MAX_ITER),
        "covariance": (covariance, COVARIANCES),
    }
    for argument, (name, table) in choices.items():
        if name not in table:
            raise InputError(f"{argument}={name!r}: must be one of {', '.join(map(repr, table))}")
    automatic = prior_precision == "elbo"
    prior = 1.0 if prior_precision == "elbo" else prior_precision
    if automatic and method != "von":
        raise InputError("prior_precision='elbo': needs method='von'; give a number")
    for argument, value in (("prior_precision", prior), ("init_variance", init_variance)):
        if not 0 < value < inf:
            raise InputError(f"{argument}={value}: must be positive and finite")
    matrix = design_matrix(features, bias, dtype)
    targets = make_targets(labels, matrix, family, classes)
    problem = GLMProblem(matrix, targets, FAMILIES[family], prior)
    if weights is not None:
        problem = replace(problem, weights=check_weights(weights, matrix))
    theta, structure = matrix.new_zeros(matrix.shape[1], targets.shape[1]), COVARIANCES[covariance]
    if structure is Full and theta.numel() > FULL_LIMIT:
        raise InputError(
            f"covariance='full' with {theta.numel():,} parameters: at most {FULL_LIMIT:,}; "
            "use covariance='block' (one block per class) or 'diagonal'"
        )
    if draws and (family != "categorical" or structure.matrix or method != "von"):
        raise InputError(f"draws={draws}: serve VON with family='categorical' and independent logits; leave them out")
    limit = MAX_ITER[method] if max_iter is None else max_iter
    solver = Solver(structure, method == "von", automatic, tol, limit, draws, on_step)
    if method == "von":
        start = solver.start(problem, theta)
    else:
        fixed = structure.isotropic(1 / init_variance, theta) if method == "variational_gd" else None
        start = solver.evaluate(problem, theta, fixed)
    end, iterations, trouble = solver.descend(start)
    posterior = end.covariance
    if posterior is None:  # Laplace's
        posterior = problem.hessian(structure, end.expected.variance)
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


def check_weights(weights: Any, matrix: Tensor) -> Tensor:
    """The weights as a column like the features, if they are usable."""
    w = torch.as_tensor(weights, device=matrix.device).to(matrix)
    if w.shape != matrix.shape[:1]:
        raise InputError(f"weights of shape {tuple(w.shape)}: must be ({len(matrix)},)")
    if not bool((w.isfinite() & (w >= 0)).all()) or not bool(w.any()):
        raise InputError("weights: must be finite, ≥ 0 and not all zero")
    return w.unsqueeze(1)
