import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bayesmooth.errors import InputError
from bayesmooth.optim.bsam import BSAM
from bayesmooth.randomness import standard_normal
from tests.conftest import make_closure, same, values


def bsam(model, **options):
    settings = {"lr": 0.3, "ess": 100.0, "rho": 0.05, "seed": 3}
    return BSAM(model.named_parameters(), **(settings | options))


@pytest.fixture
def step(task):
    """One step of the task; the weights at which the closure was called, and the loss."""

    def take(model, optimizer):
        calls = []

        def compute():
            calls.append(values(model))
            return cross_entropy(model(task.x.to(calls[0][0].dtype)), task.y)

        return calls, optimizer.step(make_closure(optimizer, compute))

    return take


def loss_at(task, model, at):
    parts = dict(zip(dict(model.named_parameters()), at, strict=True))
    return cross_entropy(torch.func.functional_call(model, parts, task.x.double()), task.y)


def gradient(task, model, at):
    at = [value.clone().requires_grad_() for value in at]
    return torch.autograd.grad(loss_at(task, model, at), at)


def test_five_steps_follow_the_published_update(task, step):
    """Written again from the formulas, one list entry a parameter, in float64."""
    model = task.net(torch.float64)
    N, lr, rho, b1, b2, delta, gamma = 100.0, 0.3, 0.05, 0.8, 0.9, 0.01, 0.2
    optimizer = bsam(model, beta1=b1, beta2=b2, weight_decay=delta, damping=gamma, s_init=0.7)
    w = values(model)
    m, s = [torch.zeros_like(x) for x in w], [torch.full_like(x, 0.7) for x in w]
    for t in range(5):
        noise = [standard_normal(x, seed=3, stream=i, step=t) for i, x in enumerate(w)]
        sample = [x + n / (N * v).sqrt() for x, n, v in zip(w, noise, s, strict=True)]
        g = gradient(task, model, sample)
        far = gradient(task, model, [x + rho * e / v for x, e, v in zip(w, g, s, strict=True)])
        m = [b1 * a + (1 - b1) * (e + delta * x) for a, e, x in zip(m, far, w, strict=True)]
        w = [x - lr * a / v for x, a, v in zip(w, m, s, strict=True)]  # the old s
        new = [v.sqrt() * e.abs() + gamma + delta for v, e in zip(s, g, strict=True)]
        s = [b2 * v + (1 - b2) * n for v, n in zip(s, new, strict=True)]
        step(model, optimizer)
    for ours, theirs in zip(values(model), w, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    for p, v in zip(model.parameters(), s, strict=True):
        torch.testing.assert_close(optimizer.state[p]["precision"], v, rtol=1e-12, atol=0)
    for std, v in zip(optimizer.posterior().std.values(), s, strict=True):
        torch.testing.assert_close(std, 1 / (N * v).sqrt(), rtol=1e-12, atol=0)


def test_on_a_quadratic_the_precision_settles_where_the_formula_says():
    """L = ½hw²: w → 0, then √s|g| = h|n|/√N whatever s is, so E[s] → h√(2/π)/√N + γ + δ."""
    curvature, N = torch.tensor([1.0, 4.0])[:, None], 25.0
    weight = nn.Parameter(torch.ones(2, 2000))
    optimizer = BSAM([weight], lr=0.05, ess=N, rho=0.0, beta1=0.0, beta2=0.95, seed=1)
    closure = make_closure(optimizer, lambda: (curvature * weight**2).sum() / 2)
    for _ in range(200):
        optimizer.step(closure)
    assert weight.abs().max() < 1e-3
    expected = curvature[:, 0] * math.sqrt(2 / math.pi / N) + 0.1 + 1e-4
    found = optimizer.state[weight]["precision"].mean(1)
    # 2000 weights × an average over about 39 steps; |n| has standard deviation 0.6
    deviation = 4 * 0.6 * curvature[:, 0] / math.sqrt(N * 2000 * 39)
    assert ((found - expected).abs() < deviation).all()


def test_the_posterior_is_named_after_the_model(task, step):
    model = task.net()
    optimizer = BSAM(model.parameters(), lr=0.1, ess=10, seed=0)
    step(model, optimizer)
    posterior = optimizer.posterior(model)
    assert list(posterior.mean) == [name for name, _ in model.named_parameters()]
    assert same(posterior.mean.values(), values(model))
    with pytest.raises(InputError, match="names"):
        optimizer.posterior()
