import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson

SCALAR: list[Link] = [Bernoulli(), Poisson(), Gaussian()]
EVERY: list[Link] = [*SCALAR, Categorical()]


def ids(link: Link) -> str:
    return type(link).__name__


def random_logits(*shape: int) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("link", EVERY, ids=ids)
def test_mean_is_the_gradient_of_the_log_partition(link):
    f = random_logits(6, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(link.log_partition(f).sum(), f)
    torch.testing.assert_close(gradient, link.mean(f))


@pytest.mark.parametrize("link", SCALAR, ids=ids)
def test_variance_is_the_second_derivative_and_curvature_the_third(link):
    f = random_logits(7).requires_grad_()
    (second,) = torch.autograd.grad(link.mean(f).sum(), f, create_graph=True)
    torch.testing.assert_close(second, link.variance(f))
    third = torch.autograd.grad(second.sum(), f)[0] if second.requires_grad else torch.zeros(7)
    torch.testing.assert_close(link.curvature(f, torch.full_like(f, 3.0)), 3 * third.to(f))


def test_categorical_variance_is_the_jacobian_of_softmax():
    f = random_logits(5)
    jacobian = torch.autograd.functional.jacobian(Categorical().mean, f)
    torch.testing.assert_close(Categorical().variance(f), jacobian)


def test_categorical_curvature_contracts_the_second_derivatives_of_softmax():
    f, root = random_logits(4), random_logits(4, 4)
    cov = root @ root.T
    expected = torch.stack(
        [(torch.autograd.functional.hessian(lambda z, k=k: torch.softmax(z, -1)[k], f) * cov).sum() for k in range(4)]
    )
    torch.testing.assert_close(Categorical().curvature(f, cov), expected)
    diagonal = cov.diagonal()
    torch.testing.assert_close(Categorical().curvature(f, diagonal), Categorical().curvature(f, torch.diag(diagonal)))


@pytest.mark.parametrize("link", EVERY, ids=ids)
def test_variance_times_needs_no_matrix(link):
    f, d = random_logits(3, 5), random_logits(3, 5).flip(0)
    variance = link.variance(f)
    product = (variance @ d.unsqueeze(-1)).squeeze(-1) if link.vector else variance * d
    torch.testing.assert_close(link.variance_times(f, d), product)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("link", [Bernoulli(), Categorical(), Gaussian()], ids=ids)
def test_values_and_gradients_are_finite_for_logits_up_to_1e4(link, dtype):
    f = torch.tensor([-1e4, -1e2, 0.0, 1e2, 1e4], dtype=dtype, requires_grad=True)
    for function in (link.log_partition, link.mean, link.variance):
        value = function(f).sum()
        (gradient,) = (
            torch.autograd.grad(value, f, allow_unused=True, retain_graph=True) if value.requires_grad else (f,)
        )
        assert value.isfinite()
        assert gradient is None or gradient.isfinite().all()


@given(st.floats(-1e4, 1e4) | st.floats(-40, 40), st.sampled_from([torch.float32, torch.float64]))
def test_bernoulli_log_partition_keeps_every_digit(value, dtype):
    f = torch.tensor(value, dtype=dtype)
    exact = torch.logaddexp(f.double(), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(
        Bernoulli().log_partition(f).double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-45
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_variance_of_a_confident_example_does_not_cancel(dtype):
    f = torch.tensor([30.0, 0.0], dtype=dtype)
    small = torch.exp(torch.tensor(-30.0, dtype=torch.float64))
    for variance in (Bernoulli().variance(f[0]), Categorical().variance(f)[0, 0]):
        torch.testing.assert_close(variance.double(), small, rtol=1e-5, atol=0.0)
