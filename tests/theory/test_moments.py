import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import gaussian_points
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson
from bayesmooth.theory.moments import (
    Moments,
    drawn_softmax_moments,
    likely_softmax_mean,
    moments,
    softmax_moments,
)


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def brute(mean: torch.Tensor, std: torch.Tensor, samples: int = 8192) -> Moments:
    """By many quasi-random points: 1e-4 accurate for std ≤ 1."""
    points, weights = gaussian_points(mean.shape[-1], samples, 1)
    f = mean.unsqueeze(-2) + points * std.unsqueeze(-2)
    p, w = torch.softmax(f, -1), weights.double()
    values = (torch.logsumexp(f, -1), p, p * (1 - p))
    return Moments(w @ values[0].mT if values[0].ndim == 1 else values[0] @ w, *(
        torch.einsum("s,...sk->...k", w, value) for value in values[1:]
    ))  # fmt: skip


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
def test_one_integral_gives_the_moments_of_independent_softmax_logits(scale):
    mean, std = logits(20, 6), scale * (0.5 + torch.rand(20, 6, dtype=torch.float64))
    for got, exact in zip(
        moments(Categorical(), mean, std.square()), brute(mean, std), strict=True
    ):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-6 if scale < 0.2 else 1e-3)


@pytest.mark.parametrize("std", [0.5, 3.0, 10.0])
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


def test_adding_a_constant_to_all_logits_changes_only_the_log_partition():
    mean, var = logits(5, 4), torch.rand(5, 4, dtype=torch.float64)
    here, there = moments(Categorical(), mean, var), moments(Categorical(), mean + 1e4, var)
    torch.testing.assert_close(there.log_partition, here.log_partition + 1e4)
    torch.testing.assert_close(there.mean, here.mean)
    torch.testing.assert_close(there.variance, here.variance)


def test_correlated_logits_with_a_diagonal_covariance_are_independent():
    mean, var = logits(8, 4), torch.rand(8, 4, dtype=torch.float64)
    exact = moments(Categorical(), mean, var)
    sampled = softmax_moments(mean, torch.diag_embed(var), samples=4096)
    torch.testing.assert_close(sampled.mean, exact.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(sampled.log_partition, exact.log_partition, rtol=0, atol=1e-3)
    diagonal = sampled.variance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, exact.variance, rtol=0, atol=1e-3)


def test_a_shared_shift_of_all_logits_is_no_uncertainty():
    mean = logits(5, 3)
    shared = torch.full((5, 3, 3), 4.0, dtype=torch.float64)
    got = moments(Categorical(), mean, shared)
    torch.testing.assert_close(got.mean, torch.softmax(mean, -1), rtol=0, atol=1e-6)


def test_moments_are_differentiable():
    mean = logits(2, 3).requires_grad_()
    var = torch.rand(2, 3, dtype=torch.float64).add_(0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: moments(Categorical(), m, v), (mean, var))


def test_bonnet_the_gradient_of_the_expected_log_partition_is_the_expected_mean():
    mean = logits(6, 5).requires_grad_()
    var = torch.rand(6, 5, dtype=torch.float64).requires_grad_()
    value = moments(Categorical(), mean, var)
    by_mean, by_var = torch.autograd.grad(value.log_partition.sum(), (mean, var))
    torch.testing.assert_close(by_mean, value.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(2 * by_var, value.variance, rtol=0, atol=1e-4)  # Price


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


def over_one_normal(g, mean: torch.Tensor, std: float) -> torch.Tensor:
    """E[g(f)], f ~ N(mean, std²) one by one, by so many points that their distance is half a logit."""
    x = torch.linspace(-8, 8, int(32 * std) + 1001, dtype=torch.float64)
    weights = torch.exp(-x.square() / 2)
    return torch.stack([g(m + std * x) @ weights / weights.sum() for m in mean])


@pytest.mark.parametrize("std", [20.0, 45.0, 100.0, 1e4])
def test_however_wide_one_class_among_points_is_a_sigmoid(std):
    """Where one logit alone varies, softmax is its sigmoid against the others' log-sum-exp, and they share the rest."""
    mean = logits(6, 5)
    mean[:, 0] = torch.tensor([0.0, 3.0, -3.0, std, -std, 2 * std])
    var = torch.zeros_like(mean)
    var[:, 0] = std**2
    rest = torch.logsumexp(mean[:, 1:], -1)
    link = Bernoulli()
    share, slope, partition = (
        over_one_normal(g, mean[:, 0] - rest, std)
        for g in (link.mean, link.variance, link.log_partition)
    )
    got = moments(Categorical(), mean, var)
    others = (1 - share)[:, None] * torch.softmax(mean[:, 1:], -1)
    exact = torch.cat([share[:, None], others], 1)
    torch.testing.assert_close(got.mean, exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.variance[:, 0], slope, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.log_partition, rest + partition, rtol=0, atol=1e-6 * std)


@pytest.mark.parametrize("std", [6.0, 50.0, 3000.0])
def test_however_wide_two_classes_are_one_sigmoid_of_the_difference(std):
    mean = torch.tensor([[0.0, 0.0], [5.0, 0.0], [-100.0, 0.0], [std, -std]], dtype=torch.float64)
    var = torch.tensor([0.64, 0.36], dtype=torch.float64).expand_as(mean) * std**2
    pair = moments(Categorical(), mean, var)
    link, difference = Bernoulli(), mean[:, 0] - mean[:, 1]
    single = moments(link, difference, var.sum(1))
    for got, g in zip(single, (link.log_partition, link.mean, link.variance), strict=True):
        exact = over_one_normal(g, difference, std)
        torch.testing.assert_close(got, exact, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(pair.mean[:, 0], single.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(pair.variance[:, 0], single.variance, rtol=0, atol=1e-6)
    log_partition = mean[:, 1] + single.log_partition
    torch.testing.assert_close(pair.log_partition, log_partition, rtol=0, atol=1e-6 * std)


@pytest.mark.parametrize("link", [Categorical(), Bernoulli()], ids=lambda x: type(x).__name__)
def test_bonnet_and_price_hold_for_wide_beside_narrow_logits(link: Link):
    mean = logits(4, 3).requires_grad_()
    std = torch.tensor([[0.0, 0.5, 30.0], [30.0, 30.0, 300.0], [9.0, 3.9, 4.1], [1.0, 50.0, 0.0]])
    var = std.double().square().requires_grad_()
    value = moments(link, mean, var)
    by_mean, by_var = torch.autograd.grad(value.log_partition.sum(), (mean, var))
    torch.testing.assert_close(by_mean, value.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(2 * by_var, value.variance, rtol=0, atol=1e-4)


@pytest.mark.parametrize("std", [0.3, 1.0, 1.5])
def test_the_likely_classes_and_one_for_the_others_are_within_two_thousandths(std):
    mean, spread = logits(40, 100), std * (0.5 + torch.rand(40, 100, dtype=torch.float64) / 2)
    exact = moments(Categorical(), mean, spread.square()).mean
    got = likely_softmax_mean(mean, spread.square())
    torch.testing.assert_close(got, exact, rtol=0, atol=2e-3)
    torch.testing.assert_close(got.sum(1), torch.ones(40, dtype=torch.float64))


def test_with_few_classes_all_of_them_are_likely():
    mean, var = logits(10, 17), torch.rand(10, 17, dtype=torch.float64)
    torch.testing.assert_close(
        likely_softmax_mean(mean, var), moments(Categorical(), mean, var).mean
    )


def test_draws_average_to_the_moments_and_are_the_same_every_time():
    mean, var = logits(3, 5).repeat(2000, 1), torch.rand(3, 5, dtype=torch.float64).repeat(2000, 1)
    drawn = drawn_softmax_moments(mean, var, 8)
    for got, again, exact in zip(
        drawn,
        drawn_softmax_moments(mean, var, 8),
        moments(Categorical(), mean[:3], var[:3]),
        strict=True,
    ):
        assert got.equal(again)
        average = got.reshape(2000, 3, -1).mean(0).reshape(exact.shape)
        torch.testing.assert_close(average, exact, rtol=0, atol=3e-3)
    with pytest.raises(InputError, match="mirrored pairs"):
        drawn_softmax_moments(mean, var, 3)


def test_the_coarse_rule_has_the_same_moments_to_three_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(200, 10, generator=generator, dtype=torch.float64)
    var = (0.1 + 6 * torch.rand(200, 10, generator=generator, dtype=torch.float64)).square()
    exact, coarse = softmax_moments(mean, var), softmax_moments(mean, var, coarse=True)
    torch.testing.assert_close(coarse.mean, exact.mean, atol=3e-4, rtol=0)
    torch.testing.assert_close(coarse.variance, exact.variance, atol=1e-3, rtol=0)
    torch.testing.assert_close(coarse.log_partition, exact.log_partition, atol=1e-2, rtol=0)
