"""The paper's theorems and the golden numbers of its method, each as a test."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian
from bayesmooth.theory.noise import expected_noise
from bayesmooth.theory.updates import Covariance, Full, GLMProblem, gd_step, newton_step, variational_gd_step, von_step

DOUBLE = {"dtype": torch.float64}
FEATURES = torch.tensor([[1.0, 0], [1, 1], [1, 2], [1, -1]], **DOUBLE)
LABELS = torch.tensor([0.0, 1, 1, 0], **DOUBLE)
LINKS = {"bernoulli": Bernoulli(), "categorical": Categorical()}


def assert_close(actual, expected, atol=5e-7):
    assert torch.allclose(actual, torch.as_tensor(expected, **DOUBLE), rtol=0, atol=atol)


@pytest.fixture
def golden():
    return GLMProblem(FEATURES, LABELS[:, None], Bernoulli(), prior=1.0)


def start(problem, structure=Covariance):
    theta = torch.zeros(2, 1, **DOUBLE)
    return theta, structure.isotropic(1.0, theta)


# ---- Theorem 1 ----


def test_elbo_gradient_is_the_risk_gradient_with_noisy_labels(golden):
    """∇_θ of the variational objective at q = N(θ, I), by autograd over a dense quadrature of its definition."""
    theta = torch.tensor([[0.3], [-0.7]], **DOUBLE, requires_grad=True)
    nodes = torch.linspace(-9, 9, 4001, **DOUBLE)
    mass = torch.exp(-nodes.square() / 2) * (nodes[1] - nodes[0]) / (2 * torch.pi) ** 0.5
    f, std = (FEATURES @ theta).squeeze(-1), FEATURES.norm(dim=1)
    drawn = f[:, None] + std[:, None] * nodes
    losses = (torch.nn.functional.softplus(drawn) - LABELS[:, None] * drawn) @ mass
    q = MultivariateNormal(theta.squeeze(-1), torch.eye(2, **DOUBLE))
    prior = MultivariateNormal(torch.zeros(2, **DOUBLE), torch.eye(2, **DOUBLE))
    (losses.sum() + kl_divergence(q, prior)).backward()

    epsilon = expected_noise(f.detach(), std.square(), Bernoulli())
    noisy = FEATURES.T @ (torch.sigmoid(f.detach()) - (LABELS + epsilon)) + theta.detach().squeeze(-1)
    assert_close(theta.grad.squeeze(-1), noisy, atol=1e-9)


@pytest.mark.parametrize("family", LINKS)
def test_variational_gd_is_gd_with_noisy_labels_for_every_family(family):
    generator = torch.Generator().manual_seed(0)
    link, columns = LINKS[family], 3 if family == "categorical" else 1
    x = torch.randn(20, 4, generator=generator, **DOUBLE)
    y = torch.eye(columns, **DOUBLE)[torch.randint(columns, (20,), generator=generator)]
    theta = 0.3 * torch.randn(4, columns, generator=generator, **DOUBLE)
    problem = GLMProblem(x, y, link)
    q = Covariance.isotropic(2.0, theta)
    spread = x.square().sum(1, keepdim=True).expand(-1, columns) / 2
    epsilon = expected_noise(x @ theta, spread, link)
    assert_close(
        variational_gd_step(problem, theta, q, 0.05), gd_step(GLMProblem(x, y + epsilon, link), theta, 0.05), atol=1e-7
    )


# ---- the appendix's theorem ----


@given(seed=st.integers(0, 1000))
def test_von_with_rho_1_is_newton_with_noisy_labels_and_the_expected_hessian(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=generator, **DOUBLE)
    y = torch.randint(2, (12, 1), generator=generator).double()
    theta = torch.randn(3, 1, generator=generator, **DOUBLE)
    problem = GLMProblem(x, y, Bernoulli())
    _, q = von_step(problem, theta, Covariance.isotropic(1.0, theta), 0.5)
    stepped, updated = von_step(problem, theta, q, 1.0)

    variance = q.logit_covariance(x)
    epsilon = expected_noise(x @ theta, variance, Bernoulli())
    gradient = x.T @ (torch.sigmoid(x @ theta) - (y + epsilon)) + theta
    curvature = problem.moments(theta, q).variance
    hessian = x.T @ (curvature * x) + torch.eye(3, **DOUBLE)
    assert_close(stepped, theta - torch.linalg.solve(hessian, gradient), atol=1e-7)
    assert_close(updated.covariance()[0], torch.linalg.inv(hessian), atol=1e-9)


# ---- golden numbers ----


def test_golden_first_two_von_steps(golden):
    theta, q = von_step(golden, *start(golden))
    assert_close(theta.flatten(), [-0.1754965, 1.0629825])
    assert_close(q.covariance().flatten(), [0.5989316, -0.0877483, -0.0877483, 0.5314913])
    epsilon = expected_noise(FEATURES @ theta, q.logit_covariance(FEATURES), Bernoulli())
    assert_close(epsilon.flatten(), [-0.0051141, 0.0308797, 0.0742901, -0.0462826])
    theta, _ = von_step(golden, theta, q)
    assert_close(theta.flatten(), [-0.1908116, 1.0257013])


def test_golden_von_fixed_point_by_iteration_and_by_the_solver(golden):
    theta, q = start(golden)
    for _ in range(200):
        theta, q = von_step(golden, theta, q, 0.5)
    expected = [0.6062341, -0.0889106, -0.0889106, 0.5573341]
    assert_close(theta.flatten(), [-0.1899868, 1.0293151])
    assert_close(q.covariance().flatten(), expected)
    fit = fit_glm(FEATURES, LABELS.long(), family="bernoulli", bias=False, tol=1e-9)
    assert_close(fit.mean, [-0.1899868, 1.0293151])
    assert_close(fit.covariance.flatten(), expected)


def test_golden_mode_and_variational_gd_fixed_point(golden):
    theta = start(golden)[0]
    for _ in range(20):
        theta = newton_step(golden, theta, Covariance)
    assert_close(theta.flatten(), [-0.2016613, 0.9091814])
    theta, q = start(golden)
    for _ in range(600):
        theta = variational_gd_step(golden, theta, q, 0.1)
    assert_close(theta.flatten(), [-0.1720076, 1.0959502])


def test_the_mode_is_that_of_scikit_learns_logistic_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator, **DOUBLE)
    y = torch.randint(3, (80,), generator=generator)
    ours = fit_glm(x, y, method="newton", prior_precision=0.7, bias=False, tol=1e-9)
    theirs = linear_model.LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-10, max_iter=2000)
    theirs.fit(x.numpy(), y.numpy())
    assert_close(ours.mean.T, theirs.coef_, atol=1e-5)


# ---- the noise curve of the paper's figure ----


def test_the_noise_is_odd_zero_at_zero_and_peaks_where_the_paper_shows_it():
    f = torch.linspace(0, 6, 600_001, **DOUBLE)
    noise = expected_noise(f, torch.ones_like(f), Bernoulli())
    assert float(f[noise.argmax()]) == pytest.approx(1.52894, abs=2e-5)
    assert float(noise.max()) == pytest.approx(0.0390605, abs=5e-8)
    assert abs(float(noise[0])) < 1e-15
    assert_close(noise[[50_000, 100_000, 200_000, 300_000]], [0.020432, 0.034324, 0.036260, 0.021898], 5e-7)
    assert_close(expected_noise(-f, torch.ones_like(f), Bernoulli()), -noise, atol=1e-15)


def test_softmax_noise_pulls_the_confident_class_beyond_its_label():
    noise = expected_noise(torch.tensor([3.0, 0, -1], **DOUBLE), torch.ones(3, **DOUBLE), Categorical())
    assert_close(noise, [0.058, -0.040, -0.018], atol=5e-4)
    assert abs(float(noise.sum())) < 1e-6


@pytest.mark.parametrize("family", LINKS)
def test_for_small_variance_the_expected_noise_is_its_second_order_formula(family):
    mean = torch.tensor([0.4, -1.1, 2.0], **DOUBLE)
    second = torch.func.jacfwd(torch.func.jacfwd(LINKS[family].mean))(mean)  # ∂²A′ᵢ/∂fⱼ∂fₖ
    for variance, bound in ((1e-2, 2e-2), (1e-3, 2e-3)):
        cov = torch.full_like(mean, variance)
        exact = expected_noise(mean, cov, LINKS[family])
        formula = -torch.einsum("ijj,j->i", second, cov) / 2
        assert (exact - formula).abs().max() < bound * formula.abs().max()


def test_a_gaussian_likelihood_has_no_label_noise():
    assert not expected_noise(torch.tensor([1.0]), torch.tensor([4.0]), Gaussian()).any()


@pytest.mark.parametrize("link", [Bernoulli(), Gaussian()], ids=lambda x: type(x).__name__)
def test_with_one_output_a_full_covariance_is_its_only_block(link):
    problem = GLMProblem(FEATURES, LABELS[:, None], link)
    theta, block = start(problem)
    full = Full.isotropic(1.0, theta)
    for _ in range(2):
        moved = [variational_gd_step(problem, theta, q, 0.1) for q in (block, full)]
        assert_close(*moved, atol=1e-12)
        assert_close(newton_step(problem, theta, Full), newton_step(problem, theta, Covariance))
        (theta, block), (other, full) = (von_step(problem, theta, q) for q in (block, full))
        assert_close(theta, other, atol=1e-12)
        assert_close(block.covariance()[0], full.covariance()[0], atol=1e-12)
