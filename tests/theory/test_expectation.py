import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import (
    Moments,
    covariance_root,
    gaussian_draw,
    gaussian_expectation,
    gaussian_points,
    moments,
    softmax_moments,
)
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson
from bayesmooth.theory.noise import expected_noise


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def integrate(g, mean: torch.Tensor, std: float) -> torch.Tensor:
    """E[g(f)] over a grid that is finer than any rule of ours."""
    x = torch.linspace(-9, 9, 4001 + int(36 * std), dtype=torch.float64)
    weights = torch.exp(-x.square() / 2)
    return g(mean[:, None] + std * x) @ weights / weights.sum()


@given(st.integers(1, 10), st.floats(-3, 3), st.floats(0, 4))
def test_n_hermite_nodes_integrate_polynomials_of_degree_2n_minus_1_exactly(nodes, mean, var):
    degree = 2 * nodes - 1
    value = gaussian_expectation(lambda f: (f - mean) ** (degree - 1), tensor(mean), tensor(var), nodes)
    double_factorial = float(np.prod(np.arange(degree - 2, 0, -2))) if degree > 2 else 1.0
    torch.testing.assert_close(value, tensor(double_factorial * var ** ((degree - 1) / 2)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("std", [0.1, 1.0, 2.0, 10.0, 50.0])
def test_nodes_none_takes_as_many_as_the_variance_needs(std):
    mean = torch.linspace(-20, 20, 9, dtype=torch.float64)
    value = gaussian_expectation(torch.sigmoid, mean, torch.full_like(mean, std**2), nodes=None)
    torch.testing.assert_close(value, integrate(torch.sigmoid, mean, std), rtol=0, atol=1e-7)


def test_the_expectation_broadcasts_and_keeps_shape_dtype_and_chunks():
    mean, var = torch.randn(3, 1, 5), torch.rand(4, 1)
    value = gaussian_expectation(torch.exp, mean, var)
    assert value.shape == (3, 4, 5)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, torch.exp(mean + var / 2))
    many = torch.linspace(-3, 3, 100_001)
    torch.testing.assert_close(gaussian_expectation(torch.exp, many, torch.tensor(0.5)), torch.exp(many + 0.25))


@pytest.mark.parametrize("var", [0.0, 1e-12, 0.7])
def test_derivatives_are_those_of_bonnet_and_price_also_at_zero_variance(var):
    mean, v = tensor(0.3).requires_grad_(), tensor(var).requires_grad_()
    value = gaussian_expectation(torch.sin, mean, v)
    by_mean, by_var = torch.autograd.grad(value, (mean, v))
    damp = np.exp(-var / 2)  # E[sin f] = sin(m) e^{−v/2}
    assert float(by_mean) == pytest.approx(np.cos(0.3) * damp, rel=1e-6)
    assert float(by_var) == pytest.approx(-np.sin(0.3) * damp / 2, rel=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_shared_points_have_mean_zero_and_covariance_one(dim):
    points, weights = gaussian_points(dim, 512, 0)
    assert float(weights.sum()) == pytest.approx(1)
    w = weights.double()
    torch.testing.assert_close(w @ points, torch.zeros(dim, dtype=torch.float64), atol=1e-7, rtol=0)
    covariance = points.T @ (w[:, None] * points)
    torch.testing.assert_close(covariance, torch.eye(dim, dtype=torch.float64), atol=1e-6, rtol=0)


def test_draws_have_the_covariance_and_independent_entries_where_it_is_a_diagonal():
    var = tensor(0.2, 0.5)
    for cov in (var, torch.tensor([[0.2, 0.1], [0.1, 0.5]], dtype=torch.float64)):
        mean = torch.zeros(20_000, 2, dtype=torch.float64)
        draws = gaussian_draw(mean, cov.expand(len(mean), *cov.shape), 7)
        expected = torch.diag(cov) if cov.ndim == 1 else cov
        torch.testing.assert_close(draws.T @ draws / len(draws), expected, atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_expectation(torch.exp, torch.zeros(2), -torch.ones(2)), "must be ≥ 0"),
        (lambda: gaussian_expectation(torch.exp, torch.zeros(1), torch.tensor([torch.nan])), "NaN"),
        (lambda: gaussian_expectation(torch.exp, torch.zeros(2), torch.ones(2), 0), "at least 1"),
        (lambda: gaussian_points(3, 1, 0), "mirrored"),
        (lambda: gaussian_expectation(torch.sin, torch.zeros(1), torch.full((1,), 1e8), None), "reach 1000"),
        (lambda: gaussian_expectation(torch.sin, torch.zeros(1), torch.full((1,), torch.inf)), "inf: .* finite"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_covariance_that_is_none_is_refused_and_a_singular_one_has_a_root():
    singular = torch.ones(3, 3, dtype=torch.float32)
    root = covariance_root(torch.zeros(3), singular)
    torch.testing.assert_close(root @ root.T, singular, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="negative eigenvalues: must be positive semi-definite"):
        covariance_root(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


# ---- the moments of links ----


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def brute(mean: torch.Tensor, std: torch.Tensor, draws: int = 100_000) -> Moments:
    """By many mirrored draws: 1e-3 accurate for std ≤ 1."""
    half = torch.randn(draws // 2, *mean.shape, dtype=torch.float64) * std
    f = torch.cat([mean + half, mean - half])
    p = torch.softmax(f, -1)
    return Moments(*(value.mean(0) for value in (torch.logsumexp(f, -1), p, p * (1 - p))))


@pytest.mark.parametrize(
    ("link", "std"),
    [(Poisson(), 0.8), (Gaussian(), 0.8), *((Bernoulli(), s) for s in (0.8, 6.0, 50.0, 3000.0))],
    ids=lambda value: value if isinstance(value, float) else type(value).__name__,
)
def test_scalar_moments_and_noise_are_expectations_of_the_link_however_wide(link: Link, std):
    mean = tensor(0.0, 0.5, -2.0, 5.0, *([-100.0, 2 * std] if isinstance(link, Bernoulli) else []))
    var = torch.full_like(mean, std**2)
    functions = (link.log_partition, link.mean, link.variance)
    exact = [integrate(g, mean, std) for g in functions]
    for got, wanted in zip(moments(link, mean, var), exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7)
    noise = expected_noise(mean, var, link)
    torch.testing.assert_close(noise, link.mean(mean) - exact[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_shared_points_give_the_moments_of_independent_softmax_logits(scale):
    mean, std = logits(20, 6), scale * (0.5 + torch.rand(20, 6, dtype=torch.float64))
    for got, exact in zip(moments(Categorical(), mean, std.square()), brute(mean, std), strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-6 if scale < 0.2 else 4e-3)


@pytest.mark.parametrize("std", [0.5, 3.0])
def test_two_classes_are_one_sigmoid_of_the_difference(std):
    mean = logits(9, 2)
    var = torch.full_like(mean, std**2)
    var[:, 1] /= 4
    pair = moments(Categorical(), mean, var)
    single = moments(Bernoulli(), mean[:, 0] - mean[:, 1], var.sum(1))
    torch.testing.assert_close(pair.mean[:, 0], single.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(pair.variance[:, 0], single.variance, rtol=0, atol=1e-3)
    torch.testing.assert_close(pair.log_partition, mean[:, 1] + single.log_partition, rtol=0, atol=2e-3)


def test_correlated_logits_with_a_diagonal_covariance_are_independent():
    mean, var = logits(8, 4), torch.rand(8, 4, dtype=torch.float64)
    exact = moments(Categorical(), mean, var)
    sampled = softmax_moments(mean, torch.diag_embed(var), samples=4096)
    torch.testing.assert_close(sampled.mean, exact.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(sampled.log_partition, exact.log_partition, rtol=0, atol=1e-3)
    diagonal = sampled.variance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, exact.variance, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_and_variances_stay_probabilities(dtype):
    mean = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0], [5.0, -5.0, 0.0]], dtype=dtype)
    for var in (0.0, 1e-30, 1e2, 1e8):
        got = moments(Categorical(), mean, torch.full_like(mean, var))
        assert all(part.isfinite().all() for part in got)
        torch.testing.assert_close(got.mean.sum(-1), torch.ones(3, dtype=dtype))
        assert (got.mean >= 0).all()


def test_batch_shapes_are_kept_and_empty_batches_pass():
    mean, var = logits(2, 3, 4), torch.rand(2, 3, 4, dtype=torch.float64)
    got = moments(Categorical(), mean, var)
    assert [tuple(part.shape) for part in got] == [(2, 3), (2, 3, 4), (2, 3, 4)]
    torch.testing.assert_close(got.mean[1, 2], moments(Categorical(), mean[1, 2], var[1, 2]).mean)
    empty = moments(Categorical(), mean[:0], var[:0])
    assert empty.mean.shape == (0, 3, 4)


def test_bonnet_and_price_hold_for_wide_beside_narrow_sigmoids():
    mean = logits(4).requires_grad_()
    var = torch.tensor([0.0, 0.5, 30.0, 300.0], dtype=torch.float64).square().requires_grad_()
    value = moments(Bernoulli(), mean, var)
    by_mean, by_var = torch.autograd.grad(value.log_partition.sum(), (mean, var))
    torch.testing.assert_close(by_mean, value.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(2 * by_var, value.variance, rtol=0, atol=1e-4)


def test_own_draws_average_to_the_moments_and_are_the_same_every_time():
    mean, var = logits(3, 5).repeat(2000, 1), torch.rand(3, 5, dtype=torch.float64).repeat(2000, 1)
    drawn, again = (softmax_moments(mean, var, 8, own=True) for _ in range(2))
    exact = softmax_moments(mean[:3], var[:3], 8192)
    for got, same, wanted in zip(drawn, again, exact, strict=True):
        assert got.equal(same)
        average = got.reshape(2000, 3, -1).mean(0).reshape(wanted.shape)
        torch.testing.assert_close(average, wanted, rtol=0, atol=8e-3)
    with pytest.raises(InputError, match="3 draws: must be even"):
        softmax_moments(mean, var, 3, own=True)
