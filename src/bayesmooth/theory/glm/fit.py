"""Fit a generalised linear model: its mode, or the Gaussian over its parameters, and use it."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.glm.covariance import Block, Covariance
from bayesmooth.theory.glm.inputs import (
    as_problem,
    choose,
    covariance_structure,
    design_matrix,
    positive,
)
from bayesmooth.theory.glm.methods import iterate, origin, settle, von
from bayesmooth.theory.links import Link
from bayesmooth.theory.moments import moments
from bayesmooth.theory.noise import expected_noise

MAX_ITER = {"gd": 10_000, "newton": 100, "variational_gd": 10_000, "von": 200}


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
        return (
            sigma[0]
            if isinstance(self.posterior, Block) and not self.link.vector
            else self._drop(sigma)
        )

    def logits(self, features: Any) -> tuple[Tensor, Tensor]:
        """Mean (N, K) and variance of the logits: (N, K), or (N, K, K) if they are correlated."""
        matrix = design_matrix(features, self.bias, self.theta.dtype)
        if matrix.shape[1] != len(self.theta):
            wanted = len(self.theta) - self.bias
            raise InputError(f"{matrix.shape[1] - self.bias} features: the model has {wanted}")
        spread = self.posterior.logit_covariance(matrix)
        return self._drop(matrix @ self.theta), self._drop(spread)

    def predict(self, features: Any) -> Tensor:
        """E_q[A′(f)]: class probabilities (N, K); for scalar families the expected label (N,)."""
        mean, cov = self.logits(features)
        return moments(self.link, mean, cov).mean

    def label_noise(self, features: Any) -> Tensor:
        """The expected noise A′(f) − E_q[A′(f)] of every example, signed  (eq:labelnoiseGLMGD)."""
        mean, cov = self.logits(features)
        return expected_noise(mean, cov, self.link, nodes=None)

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
    step_size: float | None = None,
    init_variance: float = 1.0,
    tol: float = 1e-3,
    max_iter: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> GLMFit:
    """Fit by gradient descent, Newton, variational GD or VON; see `docs/theory.md`.

    family: 'categorical' (K classes), 'bernoulli', 'poisson', 'gaussian' (unit noise).
    method: 'von' fits mean and covariance; 'newton' and 'gd' find the mode, and give Laplace's
        covariance there; 'variational_gd' fits the mean under the fixed covariance init_variance·I.
    covariance: 'full' (up to 4,000 parameters), 'block' (one block a class) or 'diagonal'.
    prior_precision: δ of the prior N(0, I/δ), also of the bias; 'elbo' finds the best (VON only).
    step_size: ρ, to run the paper's iteration as printed. Without it a solver with step control
        goes to the same fixed point, which also stands badly scaled or separable data.
    tol: stop when a step moves the mean by less than this many posterior standard deviations, and
        the logits' variances by less than this part of themselves.

    >>> x, y = torch.tensor([[-1.0], [0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1])
    >>> fit = fit_glm(x, y, family="bernoulli")
    >>> fit.mean, fit.message
    (tensor([ 1.0292, -0.1900], dtype=torch.float64), 'converged in 4 iterations')
    """
    automatic = prior_precision == "elbo"
    if automatic and (method != "von" or step_size is not None):
        raise InputError(
            "prior_precision='elbo': needs method='von' without step_size; give a number"
        )
    prior = 1.0 if prior_precision == "elbo" else positive("prior_precision", prior_precision)
    problem = as_problem(features, labels, family, classes, prior, bias, weights, dtype)
    structure = covariance_structure(covariance, problem)
    limit = choose("method", method, MAX_ITER) if max_iter is None else max_iter
    if method == "von" and step_size is None:
        found = von(problem, structure, tol, limit, automatic)
    else:
        start = structure.isotropic(1 / positive("init_variance", init_variance), origin(problem))
        found = (
            settle(problem, method, start, tol, limit)
            if step_size is None
            else iterate(problem, method, start, positive("step_size", step_size), tol, limit)
        )
    return GLMFit(
        link=problem.link,
        theta=found.point.theta,
        posterior=found.point.covariance,
        bias=bias,
        prior_precision=found.problem.prior,
        elbo=-found.point.objective,
        converged=found.converged,
        iterations=found.iterations,
        message=found.message,
    )
