import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import (
    Moments,
    moments,
    softmax_moments,
)
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def brute(mean: torch.Tensor, std: torch.Tensor, draws: int = 100_000) -> Moments:
    """By many mirrored draws: 1e-3 accurate for std ≤ 1."""
    half = torch.randn(draws // 2, *mean.shape, dtype=torch.float64) * std
    f = torch.cat([mean + half, mean - half])
    p = torch.softmax(f, -1)
    return Moments(*(value.mean(0) for value in (torch.logsumexp(f, -1), p, p * (1 - p))))


@pytest.mark.parametrize(
    "link", [Bernoulli(), Poisson(), Gaussian()], ids=lambda x: type(x).__name__
)
def test_scalar_moments_are_expectations_of_the_link(link: Link):
    mean, var = torch.linspace(-2, 2, 5, dtype=torch.float64), torch.full((5,), 0.7).double()
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    weights = torch.exp(-grid.square() / 2)
    f = mean[:, None] + var.sqrt()[:, None] * grid
    functions = (link.log_partition, link.mean, link.variance)
    for got, g in zip(moments(link, mean, var), functions, strict=True):
        torch.testing.assert_close(got, g(f) @ weights / weights.sum(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_shared_points_give_the_moments_of_independent_softmax_logits(scale):
    mean, std = logits(20, 6), scale * (0.5 + torch.rand(20, 6, dtype=torch.float64))
    for got, exact in zip(
        moments(Categorical(), mean, std.square()), brute(mean, std), strict=True
    ):
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
    torch.testing.assert_close(
        pair.log_partition, mean[:, 1] + single.log_partition, rtol=0, atol=2e-3
    )


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


@pytest.mark.parametrize("std", [6.0, 50.0, 3000.0])
def test_however_wide_the_moments_of_the_sigmoid_are_right(std):
    mean = torch.tensor([0.0, 5.0, -100.0, 2 * std], dtype=torch.float64)
    x = torch.linspace(-8, 8, int(32 * std) + 1001, dtype=torch.float64)
    weights = torch.exp(-x.square() / 2)
    link, f = Bernoulli(), mean[:, None] + std * x
    functions = (link.log_partition, link.mean, link.variance)
    for got, g in zip(moments(link, mean, torch.full_like(mean, std**2)), functions, strict=True):
        torch.testing.assert_close(got, g(f) @ weights / weights.sum(), rtol=1e-7, atol=1e-7)


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
