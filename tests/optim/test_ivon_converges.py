"""IVON reaches the Gaussians that are known to be optimal.

Each problem is solved by many independent copies at once: their average has little of the chance in one run.
"""

import pytest
import torch
from torch import nn

from bayesmooth.optim import IVON
from bayesmooth.theory.glm import fit_glm
from tests.conftest import make_closure

pytestmark = pytest.mark.slow
COPIES, STEPS = 64, 4000  # four times the memory of β₂ = 0.999
DOUBLE = {"dtype": torch.float64}


def solve(loss, size, *, lr, ess, weight_decay, hess_init=1.0):
    """Mean and variance after annealing the rate to zero, averaged over the copies."""
    weight = nn.Parameter(torch.zeros(COPIES, size))
    optimizer = IVON([weight], lr, ess, hess_init, beta2=0.999, weight_decay=weight_decay, seed=0)
    closure = make_closure(optimizer, lambda: loss(weight).sum())
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / STEPS)
        optimizer.step(closure)
    variance = 1 / (ess * (optimizer.state[weight]["hess"] + weight_decay))
    return weight.detach().double().mean(0), variance.double().mean(0)


def test_on_a_quadratic_the_posterior_is_the_laplace_approximation():
    curvature, target = torch.tensor([0.5, 1.0, 4.0]), torch.tensor([1.0, -2.0, 3.0])
    mean, variance = solve(
        lambda w: 0.5 * (curvature * (w - target).square()).sum(-1), 3, lr=0.3, ess=100.0, weight_decay=0.1
    )
    # minimiser of λ·loss + λδ/2·‖w‖², and its inverse Hessian
    assert torch.allclose(mean, (curvature * target / (curvature + 0.1)).double(), atol=0.01)
    assert torch.allclose(variance, 1 / (100 * (curvature + 0.1)).double(), rtol=0.04)


def test_bayesian_linear_regression_reaches_the_optimal_diagonal_posterior():
    generator = torch.Generator().manual_seed(0)
    n, decay = 200, 0.05
    mixing = torch.tensor([[1.0, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    x = torch.randn(n, 3, generator=generator) @ mixing
    y = x @ torch.tensor([1.0, -1.0, 0.5]) + torch.randn(n, generator=generator)
    mean, variance = solve(lambda w: 0.5 * (w @ x.T - y).square().mean(-1), 3, lr=0.2, ess=float(n), weight_decay=decay)
    x, y = x.double(), y.double()
    precision = x.T @ x + n * decay * torch.eye(3, **DOUBLE)
    assert torch.allclose(mean, torch.linalg.solve(precision, x.T @ y), atol=0.01)
    # the best diagonal Gaussian has the diagonal of the precision, not of the covariance
    assert torch.allclose(variance, 1 / precision.diagonal(), rtol=0.04)


def test_logistic_regression_agrees_with_the_exact_diagonal_variational_solution():
    generator = torch.Generator().manual_seed(0)
    n, prior = 60, 3.0
    x = torch.randn(n, 3, generator=generator)
    y = (torch.rand(n, generator=generator) < torch.sigmoid(2 * x[:, 0])).float()
    exact = fit_glm(x.double(), y.long(), family="bernoulli", covariance="diagonal", prior_precision=prior, bias=False)
    softplus = nn.functional.softplus
    mean, variance = solve(
        lambda w: (softplus(w @ x.T) - y * (w @ x.T)).mean(-1),
        3,
        lr=0.3,
        ess=float(n),
        weight_decay=prior / n,
        hess_init=0.2,
    )
    assert torch.allclose(mean, exact.mean.flatten(), atol=0.02)
    assert torch.allclose(variance, exact.covariance.flatten(), rtol=0.05)


def test_the_hessian_estimate_is_unbiased():
    """E[ĝ·(θ − m)/σ²] = E[∇²ℓ]: with n draws the mean lies within 4 standard errors of the truth."""
    n, ess, h0 = 40_000, 50.0, 1.0
    weight = nn.Parameter(torch.full((n,), 0.3, **DOUBLE))  # n independent copies of one weight
    optimizer = IVON([weight], 0.0, ess, hess_init=h0, weight_decay=0.0, beta2=0.0, seed=1)
    # ℓ″ = cosh; E over the Gaussian = cosh(m)·exp(σ²/2)
    closure = make_closure(optimizer, lambda: weight.cosh().sum())
    with optimizer.sampled_params(train=True):
        closure()
        theta = weight.detach().clone()
    recorded = weight.grad * (theta - weight.detach()) * ess * h0
    truth = torch.cosh(torch.tensor(0.3)) * torch.exp(torch.tensor(0.5 / (ess * h0)))
    error = recorded.std() / n**0.5
    assert abs(recorded.mean() - truth) < 4 * error
    assert error < 0.1 * truth  # tight enough to mean something
    optimizer.step()
    expected = recorded + 0.5 * (h0 - recorded).square() / h0  # β₂ = 0 in line 4 of the algorithm
    assert torch.allclose(optimizer.state[weight]["hess"], expected)
