"""Generalised linear models: the loss, its Gaussian expectation, the covariance, and the paper's four updates.

The risk is ℓ̄(θ) = Σᵢ ℓᵢ(θ) + ½δ‖θ‖² with ℓᵢ = −yᵢᵀfᵢ + A(fᵢ), fᵢ = θᵀφᵢ  (eq:dl, eq:glm_loss), a sum over
examples. Parameters θ are (D, C): one column per class, one column in all for scalar links. Their covariance Σ is held
as its inverse Λ = Σᵢ A″ᵢ ⊗ φᵢφᵢᵀ + δI, in three structures of one shape: `Covariance` couples the parameters of a
class, `Full` all D·C of them, `Diagonal` none. The steps are pure functions, exactly as printed; `fit_glm` wraps a
robust solver around them.
"""

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Link, Moments, cholesky, moments


@dataclass(frozen=True)
class Covariance:
    """Σ by its inverse Λ (blocks, size, size), parameters class by class: here one block per class.

    `matrix` says that the logits of an example are correlated, and so is A″.
    """

    precision: Tensor
    matrix: ClassVar[bool] = False

    @classmethod
    def isotropic(cls, precision: float, theta: Tensor) -> Self:
        """Λ = precision · I, for parameters like `theta`: a prior and no examples."""
        return cls.from_curvature(theta.new_zeros(0, len(theta)), theta[:0], precision)

    @classmethod
    def from_curvature(cls, features: Tensor, curvature: Tensor, prior: float) -> Self:
        """Λ = Σᵢ A″ᵢ φᵢφᵢᵀ + δI for every class."""
        weighted = [(features * column[:, None]).mT @ features for column in curvature.unbind(1)]
        return cls(torch.stack(weighted)).shifted(prior)

    def shifted(self, change: float) -> Self:
        """Λ + change · I: another prior precision."""
        precision = self.precision.clone()
        precision.diagonal(dim1=-2, dim2=-1).add_(change)
        return type(self)(precision)

    @cached_property
    def inverse_root(self) -> Tensor:
        """R⁻¹ with Λ = RRᵀ, so that Σ = R⁻ᵀR⁻¹."""
        if self.precision.shape[-1] == 1:
            return self.precision.rsqrt()
        root = cholesky(self.precision, self.precision.diagonal(dim1=-2, dim2=-1))
        if root is None:
            raise InputError(
                "the Hessian is singular to working precision: features are collinear, or overflow, and "
                "the prior is too weak to tell them apart; raise prior_precision or standardise features"
            )
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        inverse: Tensor = torch.linalg.solve_triangular(root, eye, upper=False)
        return inverse

    def solve(self, g: Tensor) -> Tensor:
        """Σg, both (D, C)."""
        columns = g.mT.reshape(*self.precision.shape[:-1], 1)
        return (self.inverse_root.mT @ (self.inverse_root @ columns)).reshape(g.mT.shape).mT

    def variances(self) -> Tensor:
        """diag Σ (C·D,), class by class."""
        return self.inverse_root.square().sum(-2).flatten()

    def covariance(self) -> Tensor:
        """Σ, in the shape of Λ."""
        return self.inverse_root.mT @ self.inverse_root

    def logit_covariance(self, features: Tensor) -> Tensor:
        """φᵀΣφ of every example and class (N, C)."""
        return torch.stack([(features @ r.mT).square().sum(1) for r in self.inverse_root], 1)

    def kl_divergence(self, theta: Tensor, prior: float) -> float:
        """KL(N(θ, Σ) ‖ N(0, I/δ))."""
        quadratic = prior * float(theta.square().sum() + self.variances().sum())
        log_det = -2 * float(self.inverse_root.diagonal(dim1=-2, dim2=-1).log().sum())  # of Λ
        return (quadratic - theta.numel() * (1 + log(prior)) + log_det) / 2


class Full(Covariance):
    """Λ (1, CD, CD): one block couples all parameters."""

    matrix = True

    @classmethod
    def from_curvature(cls, features: Tensor, curvature: Tensor, prior: float) -> Self:
        """Λ = Σᵢ A″ᵢ ⊗ φᵢφᵢᵀ + δI; a curvature (N, C) is the diagonal of A″."""
        matrices = torch.diag_embed(curvature) if curvature.ndim == 2 else curvature
        dim, classes = features.shape[1], matrices.shape[1]
        blocks = features.new_zeros(classes, dim, classes, dim)
        for j in range(classes):
            for k in range(classes):
                blocks[j, :, k] = (features * matrices[:, j, k, None]).mT @ features
        return cls(blocks.reshape(1, classes * dim, classes * dim)).shifted(prior)

    def logit_covariance(self, features: Tensor) -> Tensor:
        """Φ Σ Φᵀ of every example: (N, C, C), or (N, 1) where there is one class."""
        dim = features.shape[1]
        classes = self.precision.shape[-1] // dim
        blocks = self.covariance().reshape(classes, dim, classes, dim)
        rows = [torch.einsum("nd,dke,ne->nk", features, block, features) for block in blocks]
        return torch.stack(rows, 1) if classes > 1 else rows[0]


class Diagonal(Covariance):
    """Λ (C·D, 1, 1): every parameter on its own."""

    @classmethod
    def from_curvature(cls, features: Tensor, curvature: Tensor, prior: float) -> Self:
        """Λ_kd = Σᵢ A″ᵢₖ φᵢd² + δ."""
        return cls((curvature.mT.contiguous() @ features.square()).reshape(-1, 1, 1) + prior)

    def logit_covariance(self, features: Tensor) -> Tensor:
        """φᵀΣφ of every example and class (N, C)."""
        return features.square() @ self.variances().reshape(-1, features.shape[1]).mT


COVARIANCES: dict[str, type[Covariance]] = {"full": Full, "block": Covariance, "diagonal": Diagonal}


# ---- the model and the updates ----


@dataclass(frozen=True)
class GLMProblem:
    """Features φ (N, D), labels y (N, C), a link, the prior precision δ."""

    features: Tensor
    labels: Tensor
    link: Link
    prior: float = 1.0

    def gradient(self, theta: Tensor, errors: Tensor) -> Tensor:
        """Σᵢ φᵢ eᵢᵀ + δθ, where the errors e are predictions less labels  (eq:expected_grad).

        Computed as (EᵀΦ)ᵀ: with few errors per example this order is several times faster than ΦᵀE.
        """
        return (errors.mT.contiguous() @ self.features).mT + self.prior * theta

    def moments(self, theta: Tensor, covariance: Covariance) -> Moments:
        """E[A], E[A′], E[A″] of every example's logits ~ N(θᵀφ, ΦΣΦᵀ)  (eq:qf_newton)."""
        return moments(self.link, self.features @ theta, covariance.logit_covariance(self.features))


def moments_at(link: Link, logits: Tensor, matrix: bool = False) -> Moments:
    """A, A′ and A″ at the logits themselves; A″ as K×K matrices, or their diagonal."""
    probs = link.mean(logits)
    variance = probs * (1 - probs) if link.vector and not matrix else link.variance(logits)
    return Moments(link.log_partition(logits), probs, variance)


def gd_step(problem: GLMProblem, theta: Tensor, rho: float) -> Tensor:
    """θ − ρ∇ℓ̄(θ)  (eq:gd)."""
    predictions = problem.link.mean(problem.features @ theta)
    return theta - rho * problem.gradient(theta, predictions - problem.labels)


def newton_step(problem: GLMProblem, theta: Tensor, structure: type[Covariance], rho: float = 1.0) -> Tensor:
    """θ − ρ[∇²ℓ̄(θ)]⁻¹∇ℓ̄(θ)  (eq:newton)."""
    here = moments_at(problem.link, problem.features @ theta, structure.matrix)
    hessian = structure.from_curvature(problem.features, here.variance, problem.prior)
    return theta - rho * hessian.solve(problem.gradient(theta, here.mean - problem.labels))


def variational_gd_step(problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float) -> Tensor:
    """θ − ρE_q[∇ℓ̄], q = N(θ, Σ) with Σ fixed: GD with labels y + ε  (eq:labelnoiseGD)."""
    expected = problem.moments(theta, covariance)
    return theta - rho * problem.gradient(theta, expected.mean - problem.labels)


def von_step(problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float = 1.0) -> tuple[Tensor, Covariance]:
    """Λ ← (1−ρ)Λ + ρE_q[∇²ℓ̄], then θ ← θ − ρΛ⁻¹E_q[∇ℓ̄]  (eq:von)."""
    expected = problem.moments(theta, covariance)
    hessian = covariance.from_curvature(problem.features, expected.variance, problem.prior)
    updated = type(covariance)(torch.lerp(covariance.precision, hessian.precision, rho))
    return theta - rho * updated.solve(problem.gradient(theta, expected.mean - problem.labels)), updated
