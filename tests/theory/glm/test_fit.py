"""The solver against independent oracles, and on data that breaks solvers."""

import pytest
import torch
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.theory.glm import fit_glm, solver
from bayesmooth.theory.glm.fit import MAX_ITER

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(120, 4, generator=GENERATOR, dtype=torch.float64)
NOISE = torch.randn(120, 3, generator=GENERATOR, dtype=torch.float64)
BINARY = (X[:, 0] + NOISE[:, 0] > 0).long()
CLASSES = (X[:, :3] + NOISE).argmax(1)
COUNTS = torch.poisson(torch.exp(0.5 * X[:, 0] + 0.5), generator=GENERATOR)
SEPARABLE = (X[:, 0] > 0).long()
DATA = {"bernoulli": BINARY, "categorical": CLASSES, "poisson": COUNTS, "gaussian": X[:, 0] + 1}


def scipy_minimum(function, start):
    """The minimiser by SciPy, with gradients by autograd."""
    optimize = pytest.importorskip("scipy.optimize")

    def value_and_gradient(x):
        theta = torch.tensor(x, requires_grad=True)
        value = function(theta)
        (gradient,) = torch.autograd.grad(value, theta)
        return float(value.detach()), gradient.numpy()

    result = optimize.minimize(
        value_and_gradient, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    return torch.tensor(result.x)


@pytest.mark.parametrize("method", ["gd", "newton"])
def test_the_poisson_mode_is_scipys(method):
    def risk(theta):
        f = X @ theta
        return (torch.exp(f) - COUNTS * f).sum() + 0.3 * theta.square().sum() / 2

    theirs = scipy_minimum(risk, torch.zeros(4, dtype=torch.float64))
    ours = fit_glm(
        X, COUNTS, family="poisson", method=method, prior_precision=0.3, bias=False, tol=1e-7
    )
    torch.testing.assert_close(ours.mean, theirs, rtol=0, atol=1e-5)


def test_the_variational_poisson_posterior_is_scipys_minimum_of_the_elbo():
    """E[e^f] = e^{m + v/2} in closed form, minimised over the mean and a Cholesky factor."""
    rows, columns = torch.tril_indices(4, 4)

    def unpack(x):
        root = torch.zeros(4, 4, dtype=torch.float64).index_put((rows, columns), x[4:])
        return x[:4], root

    def objective(x):
        mean, root = unpack(x)
        f, v = X @ mean, (X @ root).square().sum(1)
        kl = (mean.square().sum() + root.square().sum()) / 2 - root.diagonal().abs().log().sum()
        return (torch.exp(f + v / 2) - COUNTS * f).sum() + kl

    start = torch.cat([torch.zeros(4), 0.1 * torch.eye(4)[rows, columns]]).double()
    mean, root = unpack(scipy_minimum(objective, start))
    ours = fit_glm(X, COUNTS, family="poisson", bias=False, tol=1e-8)
    torch.testing.assert_close(ours.mean, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.covariance, root @ root.T, rtol=0, atol=1e-6)
    assert ours.elbo == pytest.approx(2 - float(objective(torch.cat([mean, root[rows, columns]]))))


def test_a_gaussian_model_is_bayesian_linear_regression_after_one_step():
    y = DATA["gaussian"]
    fit = fit_glm(
        X, y, family="gaussian", prior_precision=2.0, step_size=1.0, max_iter=1, bias=False
    )
    sigma = torch.linalg.inv(X.T @ X + 2 * torch.eye(4))
    torch.testing.assert_close(fit.covariance, sigma)
    torch.testing.assert_close(fit.mean, sigma @ X.T @ y)


@pytest.mark.parametrize("family", DATA)
@pytest.mark.parametrize("covariance", ["full", "block", "diagonal"])
def test_the_solver_and_the_printed_iteration_share_their_fixed_point(family, covariance):
    options = {"family": family, "covariance": covariance}
    exact = family != "categorical"  # whose quadrature follows the iterates to 1e-6
    tol = 1e-7 if exact else 1e-5
    solved = fit_glm(X, DATA[family], **options, tol=tol)
    walked = fit_glm(X, DATA[family], **options, tol=tol, step_size=0.5, max_iter=400)
    assert solved.converged
    assert walked.converged
    torch.testing.assert_close(solved.mean, walked.mean, rtol=0, atol=1e-5 if exact else 1e-3)
    torch.testing.assert_close(
        solved.covariance, walked.covariance, rtol=0, atol=1e-5 if exact else 1e-3
    )


@pytest.mark.parametrize("method", MAX_ITER)
def test_every_method_reaches_with_step_control_where_it_goes_with_small_steps(method):
    options = {"family": "bernoulli", "method": method, "tol": 1e-7}
    solved = fit_glm(X, BINARY, **options)
    step = 0.5 if method in ("newton", "von") else 0.02
    walked = fit_glm(X, BINARY, **options, step_size=step, max_iter=2000)
    assert solved.converged
    assert walked.converged
    torch.testing.assert_close(solved.mean, walked.mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "method"),
    [("bernoulli", "gd"), ("bernoulli", "variational_gd"), ("categorical", "gd")],
)
def test_gradient_descent_goes_on_where_rounding_hides_the_decrease(family, method):
    fit = fit_glm(X, DATA[family], family=family, method=method, tol=1e-8, max_iter=2000)
    assert fit.converged, fit.message


def test_a_fit_over_draws_is_within_a_fraction_of_a_standard_deviation():
    exact = fit_glm(X, CLASSES, covariance="diagonal", prior_precision="elbo")
    drawn = fit_glm(X, CLASSES, covariance="diagonal", prior_precision="elbo", draws=16)
    assert drawn.converged
    assert ((drawn.mean - exact.mean) / exact.covariance.sqrt()).abs().max() < 0.3
    assert drawn.prior_precision == pytest.approx(exact.prior_precision, rel=0.1)
    with pytest.raises(InputError, match="leave them out"):
        fit_glm(X, BINARY, family="bernoulli", draws=8)


def test_progress_is_told_and_ends_below_the_tolerance():
    told: list[float] = []
    fit_glm(X, CLASSES, on_step=told.append)
    assert told[-1] < 1 < told[0]


def test_categorical_with_two_classes_predicts_as_bernoulli_does_with_half_the_precision():
    """θ₁ = −θ₀ halves the penalty of the difference, so δ of one equals 2δ of the other."""
    two = fit_glm(X, BINARY, prior_precision=2.0, method="newton", tol=1e-9)
    one = fit_glm(X, BINARY, family="bernoulli", prior_precision=1.0, method="newton", tol=1e-9)
    torch.testing.assert_close(two.mean[:, 1] - two.mean[:, 0], one.mean, rtol=0, atol=1e-6)


def test_weights_count_examples():
    weights = torch.ones(120)
    weights[:30] = 2
    twice = torch.cat([X, X[:30]]), torch.cat([CLASSES, CLASSES[:30]])
    a, b = fit_glm(X, CLASSES, weights=weights, tol=1e-6), fit_glm(*twice, tol=1e-6)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-4)
    assert a.elbo == pytest.approx(b.elbo, abs=1e-3)


def test_the_bias_is_a_feature_that_is_one():
    ones = F.pad(X, (0, 1), value=1.0)
    torch.testing.assert_close(fit_glm(X, CLASSES).mean, fit_glm(ones, CLASSES, bias=False).mean)


@pytest.mark.parametrize("family", DATA)
def test_logits_predictions_and_noise_fit_together(family):
    fit = fit_glm(X, DATA[family], family=family)
    mean, var = fit.logits(X[:7])
    sigma = fit.covariance
    phi = F.pad(X[:7], (0, 1), value=1.0)
    expected = torch.einsum("nd,...de,ne->n...", phi, sigma, phi)
    torch.testing.assert_close(mean, phi @ fit.mean)
    torch.testing.assert_close(var, expected)
    torch.testing.assert_close(
        fit.predict(X[:7]) + fit.label_noise(X[:7]), fit.link.mean(mean), rtol=0, atol=1e-7
    )


def test_full_covariance_gives_correlated_logits():
    fit = fit_glm(X, CLASSES, covariance="full")
    mean, cov = fit.logits(X[:5])
    assert (mean.shape, cov.shape) == ((5, 3), (5, 3, 3))
    assert fit.covariance.shape == (15, 15)
    assert fit.elbo > fit_glm(X, CLASSES).elbo > fit_glm(X, CLASSES, covariance="diagonal").elbo


@pytest.mark.parametrize("family", ["bernoulli", "categorical", "poisson"])
@pytest.mark.parametrize("covariance", ["block", "diagonal"])
def test_the_elbo_chooses_the_prior_at_its_maximum(family, covariance):
    options = {"family": family, "covariance": covariance}
    chosen = fit_glm(X, DATA[family], **options, prior_precision="elbo")
    assert chosen.converged
    for factor in (0.7, 1.4):
        other = fit_glm(X, DATA[family], **options, prior_precision=factor * chosen.prior_precision)
        assert other.elbo < chosen.elbo


def test_a_problem_that_starts_in_float32_ends_with_the_digits_of_float64(monkeypatch):
    reference = fit_glm(X, CLASSES, tol=1e-6)
    monkeypatch.setattr(solver, "LARGE", 0)
    fit = fit_glm(X, CLASSES, tol=1e-6)
    assert fit.theta.dtype == torch.float64
    torch.testing.assert_close(fit.mean, reference.mean, rtol=0, atol=1e-4)
    assert fit.elbo == pytest.approx(reference.elbo, abs=1e-5)
    wild = fit_glm(1e25 * X, CLASSES, prior_precision="elbo")  # squares overflow float32
    assert wild.converged


def test_float32_throughout_is_close():
    fit = fit_glm(X, CLASSES, dtype=torch.float32, tol=1e-3)
    assert fit.converged
    assert fit.theta.dtype == torch.float32
    torch.testing.assert_close(fit.mean.double(), fit_glm(X, CLASSES).mean, rtol=0, atol=1e-3)


# ---- data that breaks solvers ----


@pytest.mark.parametrize("family", ["bernoulli", "categorical"])
@pytest.mark.parametrize("method", ["newton", "von"])
def test_badly_scaled_features_converge(family, method):
    scale = torch.tensor([1e8, 1e-8, 1.0, 1e4]).double()
    fit = fit_glm(X * scale, DATA[family], family=family, method=method)
    assert fit.converged
    assert fit.mean.isfinite().all()


@pytest.mark.parametrize("prior", [1.0, 1e-6, 1e-12])
@pytest.mark.parametrize("method", ["newton", "von"])
def test_collinear_features_converge_and_share_their_weight(prior, method):
    fit = fit_glm(
        torch.cat([X, X], 1), BINARY, family="bernoulli", prior_precision=prior, method=method
    )
    assert fit.converged
    torch.testing.assert_close(fit.mean[:4], fit.mean[4:8], rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", ["bernoulli", "categorical"])
def test_separable_classes_converge_under_a_prior_that_holds_them(family):
    for prior in (1.0, 1e-2):
        assert fit_glm(X[:30], SEPARABLE[:30], family=family, prior_precision=prior).converged
    assert fit_glm(X, SEPARABLE, family=family, method="newton", prior_precision=1e-9).converged


@pytest.mark.parametrize("covariance", ["full", "block"])
def test_separable_classes_under_no_prior_say_so(covariance):
    fit = fit_glm(X[:15], SEPARABLE[:15], prior_precision=1e-9, covariance=covariance)
    assert not fit.converged
    assert "separable" in fit.message
    assert "raise" in fit.message


def test_labels_without_relation_to_the_features_leave_the_elbo_without_a_maximum():
    labels = torch.randint(2, (120,), generator=torch.Generator().manual_seed(5))
    fit = fit_glm(1e-3 * X, labels, family="bernoulli", prior_precision="elbo", bias=False)
    assert not fit.converged
    assert "give a prior_precision" in fit.message


def test_counts_in_the_millions_and_none_at_all_converge():
    assert fit_glm(X, 1e6 * COUNTS, family="poisson").converged
    assert fit_glm(X, 0 * COUNTS, family="poisson").converged


@pytest.mark.parametrize("method", ["gd", "newton", "variational_gd"])
def test_step_control_arrives_on_bad_scales_and_says_when_it_did_not(method):
    x = X * torch.tensor([1e5, 1.0, 1.0, 1.0])
    assert fit_glm(x, BINARY, family="bernoulli", method=method, init_variance=1e-12).converged
    short = fit_glm(x, BINARY, family="bernoulli", method=method, max_iter=1)
    assert not short.converged
    assert "standardise" in short.message


def test_a_step_that_is_too_long_says_that_it_diverged():
    fit = fit_glm(100 * X, COUNTS, family="poisson", method="gd", step_size=1.0)
    assert not fit.converged
    assert "step_size=1.0 is too large" in fit.message
    assert fit.mean.isfinite().all()


def test_a_fit_over_draws_is_a_start_from_which_the_exact_one_is_near() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 4, generator=generator)
    y = (x[:, :3] + 0.5 * torch.randn(150, 3, generator=generator)).argmax(1)
    rough = fit_glm(x, y, prior_precision="elbo", draws=16, tol=1e-2)
    prior = rough.prior_precision
    near, far = (fit_glm(x, y, prior_precision=prior, start=s, tol=1e-4) for s in (rough, None))
    torch.testing.assert_close(near.predict(x), far.predict(x), atol=1e-4, rtol=0)
    assert near.converged
    assert near.iterations <= far.iterations
