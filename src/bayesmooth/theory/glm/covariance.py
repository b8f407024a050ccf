"""The covariance Σ of a Gaussian over a GLM's parameters θ (D, C), held as its inverse Λ = Σ⁻¹.

Three structures with one shape: `Covariance` couples the parameters of a class, `Full` all D·C of them,
`Diagonal` none. Each is made from the curvature A″ of the examples, Λ = Σᵢ A″ᵢ ⊗ φᵢφᵢᵀ + δI, and
yields what VON needs: Σg, the covariance of the logits, log|Λ| and the variances.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesmooth.errors import InputError

FULL_LIMIT = 4_000  # parameters; their covariance has the square of it


def sum_outer(features: Tensor, values: Tensor) -> Tensor:
    """Σᵢ φᵢ vᵢᵀ = (VᵀΦ)ᵀ: with few values per example this order is several times faster than ΦᵀV."""
    return (values.mT.contiguous() @ features).mT


@dataclass(frozen=True)
class Covariance:
    """Σ by its inverse Λ (C, D, D): one block per class, so logits of different classes are independent.

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
        grams = torch.stack(weighted)
        grams.diagonal(dim1=-2, dim2=-1).add_(prior)
        return cls(grams)

    def blend(self, other: "Covariance", rho: float) -> "Covariance":
        """(1 − ρ)Λ + ρΛ′  (eq:von)."""
        return other if rho == 1 else type(self)(torch.lerp(self.precision, other.precision, rho))

    def shifted(self, change: float) -> "Covariance":
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
        return torch.cholesky_solve(g.mT.unsqueeze(-1), self.root).squeeze(-1).mT

    def log_det(self) -> Tensor:
        """log|Λ|."""
        return 2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum()

    def variances(self) -> Tensor:
        """diag Σ as (D, C)."""
        return self.inverse_root.square().sum(-2).mT

    def covariance(self) -> Tensor:
        """Σ, in the shape of Λ."""
        return torch.cholesky_inverse(self.root)

    def logit_covariance(self, features: Tensor) -> Tensor:
        """φᵀΣφ of every example and class (N, C)."""
        return torch.stack([(features @ r.mT).square().sum(1) for r in self.inverse_root], 1)


class Full(Covariance):
    """Λ (CD, CD), parameters class by class."""

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
        precision = blocks.reshape(classes * dim, classes * dim)
        precision.diagonal().add_(prior)
        return cls(precision)

    def solve(self, g: Tensor) -> Tensor:
        """Σg, both (D, C)."""
        flat = torch.cholesky_solve(g.mT.reshape(-1, 1), self.root)
        return flat.reshape(g.shape[1], g.shape[0]).mT

    def variances(self) -> Tensor:
        """diag Σ as one vector."""
        return self.inverse_root.square().sum(-2)

    def logit_covariance(self, features: Tensor) -> Tensor:
        """Φ Σ Φᵀ of every example (N, C, C)."""
        dim = features.shape[1]
        classes = len(self.precision) // dim
        blocks = self.covariance().reshape(classes, dim, classes, dim)
        return torch.stack(
            [torch.einsum("nd,dke,ne->nk", features, block, features) for block in blocks], 1
        )


class Diagonal(Covariance):
    """Λ (D, C): every parameter on its own."""

    @classmethod
    def from_curvature(cls, features: Tensor, curvature: Tensor, prior: float) -> Self:
        """Λ_dk = Σᵢ A″ᵢₖ φᵢd² + δ."""
        return cls(sum_outer(features.square(), curvature) + prior)

    def shifted(self, change: float) -> "Covariance":
        """Λ + change · I: another prior precision."""
        return Diagonal(self.precision + change)

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
