"""Generalised linear models: the loss, its Gaussian expectation, and the paper's four updates.

The risk is ℓ̄(θ) = Σᵢ wᵢ ℓᵢ(θ) + ½δ‖θ‖² with ℓᵢ = −yᵢᵀfᵢ + A(fᵢ), fᵢ = θᵀφᵢ  (eq:dl, eq:glm_loss),
a sum over examples. Parameters θ are (D, C): one column per class, one column in all for scalar links.
The steps are pure functions, exactly as printed; `fit_glm` in `fit` wraps a robust solver around.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmooth.theory.glm.covariance import Covariance, sum_outer
from bayesmooth.theory.links import Link
from bayesmooth.theory.moments import Moments, moments


@dataclass(frozen=True)
class GLMProblem:
    """Features φ (N, D), labels y (N, C), a link, the prior precision δ, weights (N,)."""

    features: Tensor
    labels: Tensor
    link: Link
    prior: float = 1.0
    weights: Tensor | None = None

    def origin(self) -> Tensor:
        """θ = 0."""
        return self.features.new_zeros(self.features.shape[1], self.labels.shape[1])

    def weighted(self, values: Tensor) -> Tensor:
        """Per-example values times the example weights."""
        if self.weights is None:
            return values
        return values * self.weights.reshape(-1, *[1] * (values.ndim - 1))

    def gradient(self, theta: Tensor, predictions: Tensor) -> Tensor:
        """Σᵢ wᵢ φᵢ (predictionᵢ − yᵢ) + δθ  (eq:expected_grad)."""
        errors = self.weighted(predictions - self.labels)
        return sum_outer(self.features, errors) + self.prior * theta

    def expected_loss(self, logits: Tensor, log_partition: Tensor) -> Tensor:
        """Σᵢ wᵢ (E[A(fᵢ)] − yᵢᵀE[fᵢ])."""
        partition = log_partition if self.link.vector else log_partition.sum(-1)
        return self.weighted(partition - (self.labels * logits).sum(-1)).sum()

    def hessian(self, structure: type[Covariance], curvature: Tensor) -> Covariance:
        """Σᵢ wᵢ A″ᵢ ⊗ φᵢφᵢᵀ + δI, as far as the structure keeps it."""
        return structure.from_curvature(self.features, self.weighted(curvature), self.prior)


def moments_at(link: Link, logits: Tensor, matrix: bool = False) -> Moments:
    """A, A′ and A″ at the logits themselves; A″ as K×K matrices, or their diagonal."""
    probs = link.mean(logits)
    if not link.vector:
        return Moments(link.log_partition(logits), probs, link.variance(logits))
    variance = link.variance(logits) if matrix else probs * (1 - probs)
    return Moments(link.log_partition(logits), probs, variance)


def logit_spread(link: Link, covariance: Covariance, features: Tensor) -> Tensor:
    """ΦΣΦᵀ of every example: (N, C), or (N, C, C) where the logits of one are correlated."""
    spread = covariance.logit_covariance(features)
    return spread if link.vector or spread.ndim == 2 else spread.squeeze(-1)


def expected_moments(problem: GLMProblem, theta: Tensor, covariance: Covariance) -> Moments:
    """E[A], E[A′], E[A″] of every example's logits ~ N(θᵀφ, ΦΣΦᵀ)  (eq:qf_newton)."""
    spread = logit_spread(problem.link, covariance, problem.features)
    return moments(problem.link, problem.features @ theta, spread)


def gd_step(problem: GLMProblem, theta: Tensor, rho: float) -> Tensor:
    """θ − ρ∇ℓ̄(θ)  (eq:gd)."""
    predictions = problem.link.mean(problem.features @ theta)
    return theta - rho * problem.gradient(theta, predictions)


def newton_step(
    problem: GLMProblem, theta: Tensor, structure: type[Covariance], rho: float = 1.0
) -> Tensor:
    """θ − ρ[∇²ℓ̄(θ)]⁻¹∇ℓ̄(θ)  (eq:newton)."""
    here = moments_at(problem.link, problem.features @ theta, structure.matrix)
    hessian = problem.hessian(structure, here.variance)
    return theta - rho * hessian.solve(problem.gradient(theta, here.mean))


def variational_gd_step(
    problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float
) -> Tensor:
    """θ − ρE_q[∇ℓ̄], q = N(θ, Σ) with Σ fixed: GD with labels y + ε  (eq:labelnoiseGD)."""
    expected = expected_moments(problem, theta, covariance)
    return theta - rho * problem.gradient(theta, expected.mean)


def von_step(
    problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float = 1.0
) -> tuple[Tensor, Covariance]:
    """Λ ← (1−ρ)Λ + ρE_q[∇²ℓ̄], then θ ← θ − ρΛ⁻¹E_q[∇ℓ̄]  (eq:von)."""
    expected = expected_moments(problem, theta, covariance)
    hessian = problem.hessian(type(covariance), expected.variance)
    updated = covariance.blend(hessian, rho)
    return theta - rho * updated.solve(problem.gradient(theta, expected.mean)), updated


def kl_divergence(theta: Tensor, covariance: Covariance, prior: float) -> Tensor:
    """KL(N(θ, Σ) ‖ N(0, I/δ))."""
    prior_log_det = theta.numel() * torch.tensor(prior, dtype=torch.float64, device="cpu").log()
    quadratic = prior * (theta.square().sum() + covariance.variances().sum())
    return (quadratic - theta.numel() - prior_log_det + covariance.log_det()) / 2
