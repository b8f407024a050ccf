"""The paper in code: pure functions on tensors, and a solver for generalised linear models."""

from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, gaussian_expectation
from bayesmooth.theory.noise import (
    effective_labels,
    effective_noise,
    expected_noise,
    linearised_noise,
    linearised_std,
    sam_noise,
    sampled_noise,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "GLMFit",
    "Gaussian",
    "Link",
    "effective_labels",
    "effective_noise",
    "expected_noise",
    "fit_glm",
    "gaussian_expectation",
    "linearised_noise",
    "linearised_std",
    "sam_noise",
    "sampled_noise",
]
