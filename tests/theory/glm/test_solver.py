import pytest
import torch
from torch.nn import functional as F

from bayesmooth.theory.glm.covariance import Covariance, Diagonal, Full
from bayesmooth.theory.glm.solver import (
    CG_TOLERANCE,
    Control,
    find_mode,
    find_posterior,
    gaussian_at,
    newton_direction,
    point_at,
)
from bayesmooth.theory.glm.steps import GLMProblem, moments_at
from bayesmooth.theory.links import Categorical


@pytest.fixture
def problem() -> GLMProblem:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    labels = F.one_hot(torch.randint(3, (60,), generator=generator), 3).double()
    return GLMProblem(features, labels, Categorical(), prior=0.5)


@pytest.mark.parametrize("structure", [Full, Covariance, Diagonal])
def test_the_newton_direction_solves_the_whole_hessian_whatever_the_structure(problem, structure):
    theta = 0.5 * torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta -= theta.mean(1, keepdim=True)
    here = moments_at(problem.link, problem.features @ theta, structure.matrix)
    gradient = problem.gradient(theta, here.mean)
    direction, work = newton_direction(
        problem, here, gradient, problem.hessian(structure, here.variance)
    )
    whole = moments_at(problem.link, problem.features @ theta, matrix=True)
    exact = problem.hessian(Full, whole.variance).solve(gradient)
    error = (direction - exact).norm() / exact.norm()
    assert error < (1e-12 if structure is Full else 3 * CG_TOLERANCE)
    assert (work == 0) == (structure is Full)


@pytest.mark.parametrize("structure", [Full, Covariance, Diagonal])
def test_at_the_mode_the_gradient_vanishes(problem, structure):
    found = find_mode(problem, structure, Control(1e-10, 100))
    gradient = problem.gradient(found.point.theta, found.point.expected.mean)
    assert not found.trouble
    assert gradient.abs().max() < 1e-7


@pytest.mark.parametrize("structure", [Covariance, Diagonal])
def test_the_posterior_is_a_minimum_of_the_negative_elbo(problem, structure):
    theta = torch.zeros(5, 3, dtype=torch.float64)
    start = gaussian_at(problem, structure.isotropic(10.0, theta), theta)
    found = find_posterior(problem, start, Control(1e-8, 200))
    assert not found.trouble
    best = found.point
    gradient = problem.gradient(best.theta, best.expected.mean)
    assert gradient.abs().max() < 1e-5
    hessian = problem.hessian(structure, best.expected.variance)
    torch.testing.assert_close(best.covariance.precision, hessian.precision, rtol=1e-5, atol=1e-5)
    for factor in (0.8, 1.25):
        other = structure(factor * best.covariance.precision)
        assert gaussian_at(problem, other, best.theta).objective > best.objective + 1e-3
        moved = gaussian_at(problem, best.covariance, factor * best.theta)
        assert moved.objective > best.objective


def test_a_step_never_climbs(problem):
    objectives = [
        find_mode(problem, Covariance, Control(1e-12, steps)).point.objective
        for steps in range(1, 6)
    ]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[0] < point_at(problem, False, problem.origin()).objective
