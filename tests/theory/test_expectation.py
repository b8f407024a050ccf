import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.theory.expectation import (
    covariance_root,
    gaussian_draw,
    gaussian_expectation,
    gaussian_points,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.integers(1, 10), st.floats(-3, 3), st.floats(0, 4))
def test_n_hermite_nodes_integrate_polynomials_of_degree_2n_minus_1_exactly(nodes, mean, var):
    degree = 2 * nodes - 1
    value = gaussian_expectation(
        lambda f: (f - mean) ** (degree - 1), tensor(mean), tensor(var), nodes
    )
    double_factorial = float(np.prod(np.arange(degree - 2, 0, -2))) if degree > 2 else 1.0
    torch.testing.assert_close(
        value, tensor(double_factorial * var ** ((degree - 1) / 2)), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("std", [0.1, 1.0, 2.0, 10.0, 50.0])
def test_nodes_none_takes_as_many_as_the_variance_needs(std):
    mean = torch.linspace(-20, 20, 9, dtype=torch.float64)
    grid = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weights = torch.exp(-grid.square() / 2)
    exact = torch.sigmoid(mean[:, None] + std * grid) @ weights / weights.sum()
    value = gaussian_expectation(torch.sigmoid, mean, torch.full_like(mean, std**2), nodes=None)
    torch.testing.assert_close(value, exact, rtol=0, atol=1e-7)


def test_the_expectation_broadcasts_and_keeps_shape_dtype_and_chunks():
    mean, var = torch.randn(3, 1, 5), torch.rand(4, 1)
    value = gaussian_expectation(torch.exp, mean, var)
    assert value.shape == (3, 4, 5)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, torch.exp(mean + var / 2))
    many = torch.linspace(-3, 3, 100_001)
    torch.testing.assert_close(
        gaussian_expectation(torch.exp, many, torch.tensor(0.5)), torch.exp(many + 0.25)
    )


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
