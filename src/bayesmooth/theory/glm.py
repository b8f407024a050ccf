"""Fit a generalised linear model: its mode, or the Gaussian over its parameters, and use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson
from bayesmooth.theory.noise import expected_noise
from bayesmooth.theory.solver import Control, descend, evaluate_at, find_posterior
from bayesmooth.theory.updates import COVARIANCES, FULL_LIMIT, Covariance, Full, GLMProblem, logit_spread, moments_at

MAX_ITER = {"gd": 10_000, "newton": 100, "variational_gd": 10_000, "von": 200}
SUM_TOLERANCE = 1e-3  # of the sum of a soft label
T = TypeVar("T")
FAMILIES: dict[str, Link] = {
    "bernoulli": Bernoulli(),
    "categorical": Categorical(),
    "poisson": Poisson(),
    "gaussian": Gaussian(),
}


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
    elbo: float  # of the labels without their base measure (for counts, without −log y!)
    converged: bool
    iterations: int
    message: str

    @property
    def mean(self) -> Tensor:
        """The mean of the parameters, (D, K); (D,) for scalar families."""
        return self._drop(self.theta)

    @property
    def covariance(self) -> Tensor:
        """Their covariance: full (KD, KD) class by class; block (K, D, D); diagonal as the mean."""
        sigma = self.posterior.covariance()
        return sigma[0] if len(sigma) == 1 and sigma.ndim == 3 else self._drop(sigma)

    def logits(self, features: Any) -> tuple[Tensor, Tensor]:
        """Mean (N, K) and variance of the logits: (N, K), or (N, K, K) if they are correlated."""
        matrix = design_matrix(features, self.bias, self.theta.dtype)
        if matrix.shape[1] != len(self.theta):
            wanted = len(self.theta) - self.bias
            raise InputError(f"{matrix.shape[1] - self.bias} features: the model has {wanted}")
        spread = logit_spread(self.link, self.posterior, matrix)
        return self._drop(matrix @ self.theta), self._drop(spread)

    def predict(self, features: Any) -> Tensor:
        """E_q[A′(f)]: class probabilities (N, K); for scalar families the expected label (N,)."""
        mean, cov = self.logits(features)
        return self.link.mean(mean) - expected_noise(mean, cov, self.link)

    def label_noise(self, features: Any) -> Tensor:
        """The expected noise A′(f) − E_q[A′(f)] of every example, signed  (eq:labelnoiseGLMGD)."""
        mean, cov = self.logits(features)
        return expected_noise(mean, cov, self.link)

    def _drop(self, values: Tensor) -> Tensor:
        return values if self.link.vector else values.squeeze(-1)


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
    """Fit by gradient descent, Newton, variational GD or VON; see `docs/theory.md`.

    family: 'categorical' (K classes), 'bernoulli', 'poisson', 'gaussian' (unit noise).
    method: 'von' fits mean and covariance; 'newton' and 'gd' find the mode, and give Laplace's
        covariance there; 'variational_gd' fits the mean under the fixed covariance init_variance·I.
    labels: class numbers, counts or real numbers, one per example; soft labels are rows of probabilities (N, K), for
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
    automatic = prior_precision == "elbo"
    if automatic and method != "von":
        raise InputError("prior_precision='elbo': needs method='von'; give a number")
    prior = 1.0 if prior_precision == "elbo" else positive("prior_precision", prior_precision)
    link, matrix = choose("family", family, FAMILIES), design_matrix(features, bias, dtype)
    if not bool(matrix.any()):
        raise InputError("all features are zero, and there is no bias: nothing to learn from")
    targets = make_targets(labels, matrix, family, classes)
    problem = GLMProblem(matrix, targets, link, prior, check_weights(weights, matrix))
    structure = choose("covariance", covariance, COVARIANCES)
    if structure is Full and (size := problem.origin().numel()) > FULL_LIMIT:
        raise InputError(
            f"covariance='full' with {size:,} parameters: at most {FULL_LIMIT:,}; "
            "use covariance='block' (one block per class) or 'diagonal'"
        )
    limit = choose("method", method, MAX_ITER) if max_iter is None else max_iter
    if draws and (family != "categorical" or structure.matrix or method != "von"):
        raise InputError(f"draws={draws}: serve VON with family='categorical' and independent logits; leave them out")
    control = Control(tol, limit, automatic, draws, on_step)
    if method == "von":
        found = find_posterior(problem, structure, control)
    else:
        theta, fixed = problem.origin(), None
        if method == "variational_gd":
            fixed = structure.isotropic(1 / positive("init_variance", init_variance), theta)
        found = descend(problem, evaluate_at(problem, theta, fixed), structure, control)
        if fixed is None:  # Laplace's covariance
            theta = found.point.theta
            here = moments_at(link, matrix @ theta, structure.matrix)
            laplace = evaluate_at(problem, theta, problem.hessian(structure, here.variance))
            found = replace(found, point=laplace)
    assert found.point.covariance is not None
    return GLMFit(
        link=problem.link,
        theta=found.point.theta,
        posterior=found.point.covariance,
        bias=bias,
        prior_precision=found.problem.prior,
        elbo=-found.point.objective,
        converged=not found.trouble,
        iterations=found.iterations,
        message=found.trouble or f"converged in {found.iterations} iterations",
    )


def noise_by_method(features: Any, labels: Any, **options: Any) -> dict[str, Tensor]:
    """The label noise ε of every example at the fixed point of GD, Newton, variational GD and VON (two structures).

    GD and Newton have no covariance, so no noise. Variational GD has Σ = s I with the s that gives the logits the mean
    variance of VON's: their noise differs by the shape of Σ alone. `options` are those of `fit_glm`.
    """
    fits = {f"VON, {c} Σ": fit_glm(features, labels, covariance=c, **options) for c in ("diagonal", "full")}
    variance = fits["VON, full Σ"].logits(features)[1]
    spread = variance.diagonal(dim1=-2, dim2=-1) if variance.ndim == 3 else variance
    matrix = design_matrix(features, options.get("bias", True), spread.dtype)
    isotropic = float(spread.mean() / matrix.square().sum(1).mean())
    gd = fit_glm(features, labels, method="variational_gd", init_variance=isotropic, **options)
    noise = {"variational GD": gd.label_noise(features)}
    noise |= {name: fit.label_noise(features) for name, fit in fits.items()}
    none = torch.zeros_like(noise["variational GD"])
    return {"GD": none, "Newton": none} | noise


def to_tensor(values: Any) -> Tensor:
    """A tensor as it is; anything else as a tensor on the CPU."""
    return values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")


def design_matrix(features: Any, bias: bool, dtype: torch.dtype) -> Tensor:
    """The features (N, D) as a tensor, with a last column of ones if there is a bias."""
    matrix = to_tensor(features)
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise InputError(f"features of shape {tuple(matrix.shape)}: must be (examples, features)")
    matrix = matrix.detach().to(dtype)
    if not bool(matrix.isfinite().all()):
        row, column = (~matrix.isfinite()).nonzero()[0].tolist()
        value = float(matrix[row, column])
        raise InputError(f"features[{row}, {column}] is {value}: must be finite; drop or fill such examples")
    return F.pad(matrix, (0, 1), value=1.0) if bias else matrix


def choose(argument: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or an error that lists its names."""
    if name not in table:
        raise InputError(f"{argument}={name!r}: must be one of {', '.join(map(repr, table))}")
    return table[name]


def positive(argument: str, value: float) -> float:
    """The value, if it is a positive number."""
    if not 0 < value < float("inf"):
        raise InputError(f"{argument}={value}: must be positive and finite")
    return value


def make_targets(labels: Any, matrix: Tensor, family: str, classes: int | None) -> Tensor:
    """The labels as one column of numbers; those of 'categorical' as rows, one-hot where they are whole numbers."""
    y = to_tensor(labels).to(matrix.device)
    if family == "categorical" and y.ndim == 2:
        return check_soft(y.to(matrix), len(matrix), classes or y.shape[1])
    if y.ndim != 1 or len(y) != len(matrix):
        raise InputError(f"labels of shape {tuple(y.shape)}: must be ({len(matrix)},), one per example")
    if family == "bernoulli" and y.is_floating_point():
        return check_soft(y.unsqueeze(1).to(matrix), len(matrix), 1)
    if family in ("poisson", "gaussian"):
        y = y.double()
        bad = ~y.isfinite() | (y < 0 if family == "poisson" else False)
        if bool(bad.any()):
            rule = "a count ≥ 0" if family == "poisson" else "finite"
            i = int(bad.nonzero()[0])
            raise InputError(f"labels[{i}] is {float(y[i])}: must be {rule}")
        return y.unsqueeze(1).to(matrix)
    if y.is_floating_point() or y.is_complex():
        raise InputError(f"labels of dtype {y.dtype}: must be integers, the classes' numbers, or rows of probabilities")
    top, bottom = int(y.max()), int(y.min())
    count = 2 if family == "bernoulli" else top + 1 if classes is None else classes
    if bottom < 0 or top >= count:
        raise InputError(f"labels from {bottom} to {top}: must lie in 0 … {count - 1}; number the classes from 0")
    if top == bottom:
        raise InputError(f"all labels are {top}: at least two classes must occur")
    return (y.unsqueeze(1) if family == "bernoulli" else F.one_hot(y.long(), count)).to(matrix)


def check_soft(y: Tensor, count: int, classes: int) -> Tensor:
    """Soft labels (N, C) if they are usable; y + ε may leave 0 … 1, and its rows sum to one."""
    if y.shape != (count, classes):
        raise InputError(f"soft labels of shape {tuple(y.shape)}: must be ({count}, {classes})")
    row = y.sum(1) if classes > 1 else torch.ones_like(y[:, 0])
    bad = ~((y > -1) & (y < 2)).all(1) | ((row - 1).abs() > SUM_TOLERANCE)
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        raise InputError(
            f"labels[{i}] is {[round(v, 4) for v in y[i].tolist()]}: must be probabilities, which sum to one"
        )
    return y


def check_weights(weights: Any | None, matrix: Tensor) -> Tensor | None:
    """The weights as a tensor like the features, if they are usable."""
    if weights is None:
        return None
    w = to_tensor(weights).to(matrix)
    if w.shape != matrix.shape[:1]:
        raise InputError(f"weights of shape {tuple(w.shape)}: must be ({len(matrix)},)")
    if not bool((w.isfinite() & (w >= 0)).all()) or not bool(w.any()):
        raise InputError("weights: must be finite, ≥ 0 and not all zero")
    return w
