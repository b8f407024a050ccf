"""Generalised linear models: the loss, its Gaussian expectation, the covariance, and the paper's four updates.

The risk is ℓ̄(θ) = Σᵢ wᵢ ℓᵢ(θ) + ½δ‖θ‖² with ℓᵢ = −yᵢᵀfᵢ + A(fᵢ), fᵢ = θᵀφᵢ  (eq:dl, eq:glm_loss), a sum over
examples. Parameters θ are (D, C): one column per class, one column in all for scalar links. Their covariance Σ is held
as its inverse Λ = Σᵢ A″ᵢ ⊗ φᵢφᵢᵀ + δI, in three structures of one shape: `Covariance` couples the parameters of a
class, `Full` all D·C of them, `Diagonal` none. The steps are pure functions, exactly as printed; `fit_glm` wraps a
robust solver around them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import Moments, moments
from bayesmooth.theory.links import Link

FULL_LIMIT = 4_000  # parameters; their covariance has the square of it


def sum_outer(features: Tensor, values: Tensor) -> Tensor:
    """Σᵢ φᵢ vᵢᵀ = (VᵀΦ)ᵀ: with few values per example this order is several times faster than ΦᵀV."""
    return (values.mT.contiguous() @ features).mT


@dataclass(frozen=True)
class Covariance:
    """Σ by its inverse Λ (blocks, size, size): a block per class, so logits of different classes are independent.

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

    def blend(self, other: "Covariance", rho: float) -> "Covariance":
        """(1 − ρ)Λ + ρΛ′  (eq:von)."""
        return other if rho == 1 else type(self)(torch.lerp(self.precision, other.precision, rho))

    def shifted(self, change: float) -> Self:
        """Λ + change · I: another prior precision."""
        precision = self.precision.clone()
        precision.diagonal(dim1=-2, dim2=-1).add_(change)
        return type(self)(precision)

    @cached_property
    def root(self) -> Tensor:
        """The Cholesky factor of Λ, after a rounding error's worth on the diagonal if it takes that."""
        diagonal = self.precision.diagonal(dim1=-2, dim2=-1)
        unit = self.precision.shape[-1] * torch.finfo(self.precision.dtype).eps * diagonal
        for jitter in (0, 1, 100):
            shifted = self.precision + torch.diag_embed(jitter * unit)
            root: Tensor
            root, failed = torch.linalg.cholesky_ex(shifted)
            if not bool(failed.any()) and bool(root.diagonal(dim1=-2, dim2=-1).isfinite().all()):
                return root
        raise InputError(
            "the Hessian is singular to working precision: features are collinear, or overflow, and "
            "the prior is too weak to tell them apart; raise prior_precision or standardise features"
        )

    @cached_property
    def inverse_root(self) -> Tensor:
        """R⁻¹ with Σ = R⁻ᵀR⁻¹."""
        eye = torch.eye(self.root.shape[-1], dtype=self.root.dtype, device=self.root.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.root, eye, upper=False)
        return inverse

    def solve(self, g: Tensor) -> Tensor:
        """Σg, both (D, C)."""
        columns = g.mT.reshape(*self.precision.shape[:-1], 1)
        return torch.cholesky_solve(columns, self.root).reshape(g.mT.shape).mT

    def log_det(self) -> Tensor:
        """log|Λ|."""
        return 2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum()

    def variances(self) -> Tensor:
        """diag Σ, one column per block."""
        return self.inverse_root.square().sum(-2).mT

    def covariance(self) -> Tensor:
        """Σ, in the shape of Λ."""
        return torch.cholesky_inverse(self.root)

    def logit_covariance(self, features: Tensor) -> Tensor:
        """φᵀΣφ of every example and class (N, C)."""
        return torch.stack([(features @ r.mT).square().sum(1) for r in self.inverse_root], 1)


class Full(Covariance):
    """Λ (1, CD, CD): one block, parameters class by class."""

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
        """Φ Σ Φᵀ of every example (N, C, C)."""
        dim = features.shape[1]
        classes = self.precision.shape[-1] // dim
        blocks = self.covariance().reshape(classes, dim, classes, dim)
        return torch.stack([torch.einsum("nd,dke,ne->nk", features, block, features) for block in blocks], 1)


class Diagonal(Covariance):
    """Λ (D, C): every parameter on its own."""

    @classmethod
    def from_curvature(cls, features: Tensor, curvature: Tensor, prior: float) -> Self:
        """Λ_dk = Σᵢ A″ᵢₖ φᵢd² + δ."""
        return cls(sum_outer(features.square(), curvature) + prior)

    def shifted(self, change: float) -> Self:
        """Λ + change · I: another prior precision."""
        return type(self)(self.precision + change)

    def solve(self, g: Tensor) -> Tensor:
        """Σg, both (D, C)."""
        return g / self.precision

    def log_det(self) -> Tensor:
        """log|Λ|."""
        return self.precision.log().sum()

    def variances(self) -> Tensor:
        """diag Σ as (D, C)."""
        return 1 / self.precision

    def covariance(self) -> Tensor:
        """Σ, in the shape of Λ."""
        return self.variances()

    def logit_covariance(self, features: Tensor) -> Tensor:
        """φᵀΣφ of every example and class (N, C)."""
        return features.square() @ self.variances()


COVARIANCES: dict[str, type[Covariance]] = {"full": Full, "block": Covariance, "diagonal": Diagonal}


# ---- the model and the updates ----


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


def newton_step(problem: GLMProblem, theta: Tensor, structure: type[Covariance], rho: float = 1.0) -> Tensor:
    """θ − ρ[∇²ℓ̄(θ)]⁻¹∇ℓ̄(θ)  (eq:newton)."""
    here = moments_at(problem.link, problem.features @ theta, structure.matrix)
    hessian = problem.hessian(structure, here.variance)
    return theta - rho * hessian.solve(problem.gradient(theta, here.mean))


def variational_gd_step(problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float) -> Tensor:
    """θ − ρE_q[∇ℓ̄], q = N(θ, Σ) with Σ fixed: GD with labels y + ε  (eq:labelnoiseGD)."""
    expected = expected_moments(problem, theta, covariance)
    return theta - rho * problem.gradient(theta, expected.mean)


def von_step(problem: GLMProblem, theta: Tensor, covariance: Covariance, rho: float = 1.0) -> tuple[Tensor, Covariance]:
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
