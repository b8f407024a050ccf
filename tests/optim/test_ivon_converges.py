"""IVON reaches the Gaussians that are known to be optimal."""

import torch
from torch import nn

from bayesmooth.optim import IVON

DOUBLE = {"dtype": torch.float64}


def run(params, loss, steps, *, lr, average_from, **settings):
    """Anneals the rate to zero; returns mean and variance, the latter averaged over the tail."""
    optimizer = IVON(params, lr, seed=0, **settings)
    variance, count = [torch.zeros_like(p) for p in params], 0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        if step >= average_from:
            count += 1
            for total, p in zip(variance, params, strict=True):
                scale = settings["ess"] * (optimizer.state[p]["hess"] + settings["weight_decay"])
                total += 1 / scale
    return [p.detach() for p in params], [total / count for total in variance]


def test_on_a_quadratic_the_posterior_is_the_laplace_approximation():
    curvature = torch.tensor([0.5, 1.0, 4.0], **DOUBLE)
    target = torch.tensor([1.0, -2.0, 3.0], **DOUBLE)
    weight = nn.Parameter(torch.zeros(3, **DOUBLE))
    (mean,), (variance,) = run(
        [weight],
        lambda: 0.5 * (curvature * (weight - target).square()).sum(),
        6000,
        lr=0.3,
        ess=100.0,
        weight_decay=0.1,
        beta2=0.999,
        average_from=2000,
    )
    # minimiser of λ·loss + λδ/2·‖w‖², and its inverse Hessian
    assert torch.allclose(mean, curvature * target / (curvature + 0.1), atol=0.01)
    assert torch.allclose(variance, 1 / (100 * (curvature + 0.1)), rtol=0.05)


def test_bayesian_linear_regression_reaches_the_optimal_diagonal_posterior():
    generator = torch.Generator().manual_seed(0)
    n = 200
    features = torch.randn(n, 3, generator=generator, **DOUBLE) @ torch.tensor(
        [[1.0, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]], **DOUBLE
    )
    y = features @ torch.tensor([1.0, -1.0, 0.5], **DOUBLE) + torch.randn(
        n, generator=generator, **DOUBLE
    )
    weight = nn.Parameter(torch.zeros(3, **DOUBLE))
    decay = 0.05
    (mean,), (variance,) = run(
        [weight],
        lambda: 0.5 * (features @ weight - y).square().mean(),
        6000,
        lr=0.2,
        ess=float(n),
        weight_decay=decay,
        beta2=0.999,
        average_from=2000,
    )
    precision = features.T @ features + n * decay * torch.eye(3, **DOUBLE)
    assert torch.allclose(mean, torch.linalg.solve(precision, features.T @ y), atol=0.02)
    # the best diagonal Gaussian has the diagonal of the precision, not of the covariance
    assert torch.allclose(variance, 1 / precision.diagonal(), rtol=0.06)


def test_logistic_regression_agrees_with_the_exact_diagonal_variational_solution():
    from bayesmooth.theory.glm import fit_glm

    generator = torch.Generator().manual_seed(0)
    n, prior = 60, 3.0
    features = torch.randn(n, 3, generator=generator, **DOUBLE)
    y = (torch.rand(n, generator=generator, **DOUBLE) < torch.sigmoid(2 * features[:, 0])).long()
    exact = fit_glm(
        features,
        y,
        family="bernoulli",
        method="von",
        covariance="diagonal",
        prior_precision=prior,
        bias=False,
    )
    weight = nn.Parameter(torch.zeros(3, **DOUBLE))
    bce = nn.functional.binary_cross_entropy_with_logits
    (mean,), (variance,) = run(
        [weight],
        lambda: bce(features @ weight, y.double()),
        12000,
        lr=0.3,
        ess=float(n),
        weight_decay=prior / n,
        beta2=0.9995,
        average_from=4000,
        mc_samples=2,
        antithetic=True,
    )
    assert torch.allclose(mean, exact.mean.flatten(), atol=0.03)
    assert torch.allclose(variance, exact.covariance.flatten(), rtol=0.07)


def test_the_hessian_estimate_is_unbiased():
    """E[ĝ·(θ − m)/σ²] = E[∇²ℓ]: with n draws the mean lies within 4 standard errors of the truth."""
    n, ess, h0 = 40_000, 50.0, 1.0
    weight = nn.Parameter(torch.full((n,), 0.3, **DOUBLE))  # n independent copies of one weight
    optimizer = IVON([weight], 0.0, ess, hess_init=h0, weight_decay=0.0, beta2=0.0, seed=1)

    def closure():
        optimizer.zero_grad()
        loss = weight.cosh().sum()  # ℓ″ = cosh; E over the Gaussian = cosh(m)·exp(σ²/2)
        loss.backward()
        return loss

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
