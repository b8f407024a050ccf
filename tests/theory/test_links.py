"""Links are what calculus says, and their Gaussian expectations what a fine grid or many draws say."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.theory.links import (
    Bernoulli,
    Categorical,
    Gaussian,
    Moments,
    covariance_root,
    gaussian_expectation,
    gaussian_points,
    moments,
    softmax_moments,
)
from bayesmooth.theory.noise import expected_noise

SCALAR = [Bernoulli(), Gaussian()]
EVERY = [*SCALAR, Categorical()]


def name(value) -> str:
    return str(value) if isinstance(value, float) else type(value).__name__


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logits(*shape: int) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("link", EVERY, ids=name)
def test_mean_is_the_gradient_of_the_log_partition(link):
    f = logits(6, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(link.log_partition(f).sum(), f)
    torch.testing.assert_close(gradient, link.mean(f))


@pytest.mark.parametrize("link", SCALAR, ids=name)
def test_variance_is_the_second_derivative(link):
    f = logits(7).requires_grad_()
    (second,) = torch.autograd.grad(link.mean(f).sum(), f)
    torch.testing.assert_close(second, link.variance(f))


def test_categorical_variance_is_the_derivative_of_softmax():
    f, link = logits(4), Categorical()
    torch.testing.assert_close(link.variance(f), torch.autograd.functional.jacobian(link.mean, f))


@given(st.floats(-1e4, 1e4) | st.floats(-40, 40), st.sampled_from([torch.float32, torch.float64]))
def test_no_logit_up_to_1e4_loses_a_digit(value, dtype):
    f = torch.tensor(value, dtype=dtype)
    exact = torch.logaddexp(f.double(), torch.zeros((), dtype=torch.float64))
    ours = Bernoulli().log_partition(f).double()
    torch.testing.assert_close(ours, exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-45)
    pair = torch.stack([f, torch.zeros_like(f)]).requires_grad_()
    for part in (Categorical().log_partition(pair), Categorical().mean(pair), Categorical().variance(pair)):
        (gradient,) = torch.autograd.grad(part.sum(), pair)
        assert part.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_variance_of_a_confident_example_does_not_cancel(dtype):
    f = torch.tensor([30.0, 0.0], dtype=dtype)
    small = torch.exp(tensor(-30.0))[0]
    for variance in (Bernoulli().variance(f[0]), Categorical().variance(f)[0, 0]):
        torch.testing.assert_close(variance.double(), small, rtol=1e-5, atol=0.0)


# ---- expectations under a Gaussian ----


@given(st.integers(1, 10), st.floats(-3, 3), st.floats(0, 4))
def test_n_hermite_nodes_integrate_polynomials_of_degree_2n_minus_1_exactly(nodes, mean, var):
    degree = 2 * nodes - 1
    value = gaussian_expectation(lambda f: (f - mean) ** (degree - 1), tensor(mean), tensor(var), nodes)
    double_factorial = float(np.prod(np.arange(degree - 2, 0, -2))) if degree > 2 else 1.0
    torch.testing.assert_close(value, tensor(double_factorial * var ** ((degree - 1) / 2)), rtol=1e-7, atol=1e-9)


def test_the_expectation_broadcasts_and_keeps_shape_and_dtype():
    mean, var = torch.randn(3, 1, 5), torch.rand(4, 1)
    value = gaussian_expectation(torch.exp, mean, var)
    assert (value.shape, value.dtype) == ((3, 4, 5), torch.float32)
    torch.testing.assert_close(value, torch.exp(mean + var / 2))


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
    points = gaussian_points(dim, 512, 0)
    torch.testing.assert_close(points.mean(0), torch.zeros(dim, dtype=torch.float64), atol=1e-7, rtol=0)
    covariance = points.T @ points / 512
    torch.testing.assert_close(covariance, torch.eye(dim, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("var", "nodes", "message"),
    [(-1.0, 32, "must be ≥ 0"), (np.nan, 32, "NaN"), (np.inf, 32, "inf: .* finite"), (1.0, 0, "at least 1")],
)
def test_bad_arguments_are_named(var, nodes, message):
    with pytest.raises(InputError, match=message):
        gaussian_expectation(torch.exp, tensor(0.0), tensor(var), nodes)


def test_a_covariance_that_is_none_is_refused_and_a_singular_one_has_a_root():
    singular = torch.ones(3, 3, dtype=torch.float32)
    root = covariance_root(torch.zeros(3), singular)
    torch.testing.assert_close(root @ root.T, singular, rtol=1e-4, atol=1e-4)
    for bad in ([[1.0, 2.0], [2.0, 1.0]], [[np.nan, 0.0], [0.0, 1.0]]):
        with pytest.raises(InputError, match="must be positive semi-definite"):
            covariance_root(torch.zeros(2), torch.tensor(bad))


# ---- the moments of links ----


def integrate(g, mean: torch.Tensor, std: float) -> torch.Tensor:
    """E[g(f)] over a grid that is finer than any rule of ours."""
    x = torch.linspace(-9, 9, 4001 + int(36 * std), dtype=torch.float64)
    weights = torch.exp(-x.square() / 2)
    return g(mean[:, None] + std * x) @ weights / weights.sum()


def average_draws(mean: torch.Tensor, std: torch.Tensor, draws: int = 100_000) -> Moments:
    """By many mirrored draws: 1e-3 accurate for std ≤ 1."""
    half = torch.randn(draws // 2, *mean.shape, dtype=torch.float64) * std
    f = torch.cat([mean + half, mean - half])
    p = torch.softmax(f, -1)
    return Moments(*(value.mean(0) for value in (torch.logsumexp(f, -1), p, p * (1 - p))))


@pytest.mark.parametrize(
    ("link", "std"),
    [(Gaussian(), 0.8), *((Bernoulli(), s) for s in (0.1, 0.8, 1.45, 1.55, 6.0, 50.0, 3000.0))],
    ids=name,
)
def test_scalar_moments_and_noise_are_expectations_of_the_link_however_wide(link, std):
    mean = tensor(0.0, 0.5, -2.0, 5.0, *([-100.0, 2 * std] if isinstance(link, Bernoulli) else []))
    var = torch.full_like(mean, std**2)
    exact = [integrate(g, mean, std) for g in (link.log_partition, link.mean, link.variance)]
    for got, wanted in zip(moments(link, mean, var), exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(expected_noise(mean, var, link), link.mean(mean) - exact[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_shared_points_give_the_moments_of_independent_softmax_logits(scale):
    mean, std = logits(20, 6), scale * (0.5 + torch.rand(20, 6, dtype=torch.float64))
    for got, exact in zip(moments(Categorical(), mean, std.square()), average_draws(mean, std), strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-6 if scale < 0.2 else 4e-3)


@pytest.mark.parametrize("std", [0.5, 3.0])
@pytest.mark.parametrize("correlation", [None, 0.0, 0.6])
def test_moments_of_two_classes_are_the_integrals_over_the_plane(std, correlation):
    mean, root = logits(9, 2), std * torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
    if correlation:
        root[1] = std / 2 * torch.tensor([correlation, (1 - correlation**2) ** 0.5])
    covariance = (root @ root.T).expand(9, 2, 2)
    axis = torch.linspace(-9, 9, 601, dtype=torch.float64)  # the trapezoidal rule is exact to rounding here
    e = torch.cartesian_prod(axis, axis)
    weight = torch.exp(-e.square().sum(1) / 2)
    f = mean[:, None] + e @ root.T
    p = f.softmax(-1)
    of = lambda values: torch.einsum("s,ns...->n...", weight / weight.sum(), values)  # noqa: E731
    diagonal = correlation is None
    exact = of(f.logsumexp(-1)), of(p), of((p * (1 - p)) if diagonal else Categorical().variance(f))
    given = covariance.diagonal(dim1=-2, dim2=-1) if diagonal else covariance
    for got, wanted in zip(moments(Categorical(), mean, given), exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


def test_correlated_logits_with_a_diagonal_covariance_are_independent():
    mean, var = logits(8, 4), torch.rand(8, 4, dtype=torch.float64)
    exact = moments(Categorical(), mean, var)
    sampled = softmax_moments(mean, torch.diag_embed(var), samples=4096)
    torch.testing.assert_close(sampled.mean, exact.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(sampled.log_partition, exact.log_partition, rtol=0, atol=1e-3)
    torch.testing.assert_close(sampled.variance.diagonal(dim1=-2, dim2=-1), exact.variance, rtol=0, atol=1e-3)


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
    assert moments(Categorical(), mean[:0], var[:0]).mean.shape == (0, 3, 4)


def test_bonnet_and_price_hold_for_wide_beside_narrow_sigmoids():
    mean, var = logits(4).requires_grad_(), tensor(0.0, 0.5, 30.0, 300.0).square().requires_grad_()
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


def test_a_covariance_of_low_rank_has_a_root_in_float32() -> None:
    """Rounding errors are those of the largest variance, so the smaller ones take as much."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        rows, factor = torch.randn(32, 6, generator=generator), torch.randn(18, 1, generator=generator)
        every = (factor @ factor.T).reshape(6, 3, 6, 3)
        cov = torch.einsum("ni,ikjl,nj->nkl", rows, every, rows)
        root = covariance_root(torch.zeros(32, 3), cov)
        scale = cov.diagonal(dim1=1, dim2=2).amax(1)[:, None, None]
        assert ((root @ root.mT - cov).abs() <= 1e-3 * scale).all()
