"""The Newton direction of a GLM, also where the covariance keeps only a part of the Hessian."""

from collections.abc import Callable

import torch
from torch import Tensor

from bayesmooth.theory.glm.covariance import Covariance, Diagonal
from bayesmooth.theory.glm.steps import Problem
from bayesmooth.theory.moments import Moments

CG_TOLERANCE = 0.03
CG_STEPS = 200


def holds_whole_hessian(hessian: Covariance, gradient: Tensor) -> bool:
    """Whether the structure leaves out nothing of the Hessian of this problem."""
    return hessian.matrix or (gradient.shape[1] == 1 and not isinstance(hessian, Diagonal))


def newton_direction(
    problem: Problem, expected: Moments, gradient: Tensor, hessian: Covariance
) -> tuple[Tensor, int]:
    """H⁻¹g and the conjugate-gradient steps it took: none where the structure holds all of H.

    Elsewhere H is softmax-shaped, diag(p) − ppᵀ at p = E[softmax], scaled to the trace of E[A″].
    Its gradients sum to zero over the classes, and so must the steps.
    """
    if holds_whole_hessian(hessian, gradient):
        return hessian.solve(gradient), 0
    scalar = gradient.shape[1] == 1
    p, trace = expected.mean, expected.variance.sum(1, keepdim=True)
    scale = trace / (p * (1 - p)).sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)

    def times(d: Tensor) -> Tensor:
        f = problem.features @ d
        response = trace * f if scalar else scale * p * (f - (p * f).sum(1, keepdim=True))
        return problem.features.mT @ problem.weighted(response) + problem.prior * d

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
