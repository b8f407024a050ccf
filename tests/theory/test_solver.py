from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from bayesmooth.theory.links import Categorical
from bayesmooth.theory.solver import (
    CG_TOLERANCE,
    Control,
    descend,
    evaluate_at,
    find_posterior,
    newton_direction,
)
from bayesmooth.theory.updates import Covariance, Diagonal, Full, GLMProblem, moments_at

STRUCTURES = [Full, Covariance, Diagonal]


@pytest.fixture
def problem() -> GLMProblem:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    labels = F.one_hot(torch.randint(3, (60,), generator=generator), 3).double()
    return GLMProblem(features, labels, Categorical(), prior=0.5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_newton_direction_solves_the_whole_hessian_whatever_the_structure(problem, structure):
    theta = 0.5 * torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta -= theta.mean(1, keepdim=True)
    here = moments_at(problem.link, problem.features @ theta, structure.matrix)
    gradient = problem.gradient(theta, here.mean)
    hessian = problem.hessian(structure, here.variance)
    direction = newton_direction(problem, here, gradient, hessian)
    whole = moments_at(problem.link, problem.features @ theta, matrix=True)
    exact = problem.hessian(Full, whole.variance).solve(gradient)
    error = (direction - exact).norm() / exact.norm()
    assert error < (1e-12 if structure is Full else 3 * CG_TOLERANCE)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_at_the_mode_the_gradient_vanishes_and_no_step_climbs(problem, structure):
    start = evaluate_at(problem, problem.origin(), None)
    found = descend(problem, start, structure, Control(1e-10, 100))
    gradient = problem.gradient(found.point.theta, found.point.expected.mean)
    assert not found.trouble
    assert gradient.abs().max() < 1e-7
    path = [
        descend(problem, start, structure, Control(1e-12, n)).point.objective for n in range(1, 6)
    ]
    for before, after in pairwise([start.objective, *path]):
        assert after <= before + 1e-12


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_posterior_is_a_minimum_of_the_negative_elbo(problem, structure):
    found = find_posterior(problem, structure, Control(1e-8, 200))
    best = found.point
    assert not found.trouble
    assert problem.gradient(best.theta, best.expected.mean).abs().max() < 1e-5
    hessian = problem.hessian(structure, best.expected.variance)
    torch.testing.assert_close(best.covariance.precision, hessian.precision, rtol=1e-5, atol=1e-5)
    for factor in (0.8, 1.25):
        other = structure(factor * best.covariance.precision)
        assert evaluate_at(problem, best.theta, other).objective > best.objective + 1e-3
        moved = evaluate_at(problem, factor * best.theta, best.covariance)
        assert moved.objective > best.objective
