"""The solver against independent oracles, and on data that breaks solvers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import Bernoulli, Gaussian, moments
from bayesmooth.theory.updates import COVARIANCES, Covariance, Full, GLMProblem, gd_step, variational_gd_step, von_step

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(120, 4, generator=GENERATOR, dtype=torch.float64)
NOISE = torch.randn(120, 3, generator=GENERATOR, dtype=torch.float64)
BINARY = (X[:, 0] + NOISE[:, 0] > 0).long()
CLASSES = (X[:, :3] + NOISE).argmax(1)
SEPARABLE = (X[:, 0] > 0).long()
DATA = {"bernoulli": BINARY, "categorical": CLASSES, "gaussian": X[:, 0] + 1}


def scipy_minimum(function, start):
    """The minimiser by SciPy, with gradients by autograd."""
    optimize = pytest.importorskip("scipy.optimize")

    def value_and_gradient(x):
        theta = torch.tensor(x, requires_grad=True)
        value = function(theta)
        (gradient,) = torch.autograd.grad(value, theta)
        return float(value.detach()), gradient.numpy()

    result = optimize.minimize(value_and_gradient, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-8})
    return torch.tensor(result.x)


def test_the_variational_posterior_is_scipys_minimum_of_the_elbo():
    """Over the mean and a Cholesky factor."""
    rows, columns = torch.tril_indices(4, 4)

    def unpack(x):
        root = torch.zeros(4, 4, dtype=torch.float64).index_put((rows, columns), x[4:])
        return x[:4], root

    def objective(x):
        mean, root = unpack(x)
        f, v = X @ mean, (X @ root).square().sum(1)
        kl = (mean.square().sum() + root.square().sum()) / 2 - root.diagonal().abs().log().sum()
        return (moments(Bernoulli(), f, v).log_partition - BINARY * f).sum() + kl

    start = torch.cat([torch.zeros(4), 0.1 * torch.eye(4)[rows, columns]]).double()
    mean, root = unpack(scipy_minimum(objective, start))
    ours = fit_glm(X, BINARY, family="bernoulli", bias=False, tol=1e-8)
    torch.testing.assert_close(ours.mean, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.covariance, root @ root.T, rtol=0, atol=1e-6)
    assert ours.elbo == pytest.approx(2 - float(objective(torch.cat([mean, root[rows, columns]]))))


def test_a_gaussian_model_is_bayesian_linear_regression_after_one_step():
    y = DATA["gaussian"]
    problem = GLMProblem(X, y[:, None], Gaussian(), prior=2.0)
    zero = torch.zeros(4, 1, dtype=torch.float64)
    theta, q = von_step(problem, zero, Full.isotropic(1.0, zero))
    sigma = torch.linalg.inv(X.T @ X + 2 * torch.eye(4))
    torch.testing.assert_close(q.covariance()[0], sigma)
    torch.testing.assert_close(theta[:, 0], sigma @ X.T @ y)
    fit = fit_glm(X, y, family="gaussian", prior_precision=2.0, bias=False, tol=1e-8)
    torch.testing.assert_close(fit.covariance, sigma)


@pytest.mark.parametrize("family", DATA)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_solver_reaches_the_fixed_point_of_von_as_printed(family, covariance):
    options = {"family": family, "covariance": covariance, "bias": False}
    fit = fit_glm(X, DATA[family], **options, prior_precision=10.0, tol=1e-7)
    assert fit.converged
    y = DATA[family]
    targets = F.one_hot(y, 3).double() if family == "categorical" else y.double()[:, None]
    problem = GLMProblem(X, targets, fit.link, prior=10.0)
    theta = torch.zeros_like(fit.theta)
    q = COVARIANCES[covariance].isotropic(1.0, theta)
    for _ in range(90):
        theta, q = von_step(problem, theta, q, 0.5)
    torch.testing.assert_close(fit.theta, theta, rtol=0, atol=1e-5)
    torch.testing.assert_close(fit.posterior.covariance(), q.covariance(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_no_step_of_von_lowers_the_elbo(covariance):
    short = {"covariance": covariance, "prior_precision": 0.5, "tol": 1e-12}
    path = [fit_glm(X, CLASSES, max_iter=n, **short).elbo for n in range(7)]
    assert all(after > before - 1e-6 * abs(before) for before, after in pairwise(path))
    assert path[-1] > path[0] + 1


@pytest.mark.parametrize("method", ["newton", "variational_gd"])
def test_the_solver_reaches_the_fixed_point_of_gradient_descent_as_printed(method):
    fit = fit_glm(X, BINARY, family="bernoulli", method=method, tol=1e-8, bias=False)
    problem = GLMProblem(X, BINARY.double()[:, None], fit.link)
    theta = torch.zeros_like(fit.theta)
    unit = Covariance.isotropic(1.0, theta)
    for _ in range(400):
        if method == "variational_gd":
            theta = variational_gd_step(problem, theta, unit, 0.04)
        else:
            theta = gd_step(problem, theta, 0.04)
    torch.testing.assert_close(fit.theta, theta, rtol=0, atol=1e-6)


def test_a_fit_over_draws_is_within_a_fraction_of_a_standard_deviation():
    exact = fit_glm(X, CLASSES, covariance="diagonal", prior_precision="elbo")
    drawn = fit_glm(X, CLASSES, covariance="diagonal", prior_precision="elbo", draws=16)
    assert drawn.converged
    assert ((drawn.mean - exact.mean) / exact.covariance.sqrt()).abs().max() < 0.3
    assert drawn.prior_precision == pytest.approx(exact.prior_precision, rel=0.1)
    with pytest.raises(InputError, match="leave them out"):
        fit_glm(X, BINARY, family="bernoulli", draws=8)


def test_categorical_with_two_classes_predicts_as_bernoulli_does_with_half_the_precision():
    """θ₁ = −θ₀ halves the penalty of the difference, so δ of one equals 2δ of the other."""
    two = fit_glm(X, BINARY, prior_precision=2.0, method="newton", tol=1e-9)
    one = fit_glm(X, BINARY, family="bernoulli", prior_precision=1.0, method="newton", tol=1e-9)
    torch.testing.assert_close(two.mean[:, 1] - two.mean[:, 0], one.mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", DATA)
def test_logits_predictions_and_noise_fit_together(family):
    fit = fit_glm(X, DATA[family], family=family)
    mean, var = fit.logits(X[:7])
    sigma = fit.covariance
    phi = F.pad(X[:7], (0, 1), value=1.0)
    expected = torch.einsum("nd,...de,ne->n...", phi, sigma, phi)
    torch.testing.assert_close(mean, phi @ fit.mean)
    torch.testing.assert_close(var, expected)
    torch.testing.assert_close(fit.predict(X[:7]) + fit.label_noise(X[:7]), fit.link.mean(mean), rtol=0, atol=1e-7)


def test_full_covariance_gives_correlated_logits():
    fit = fit_glm(X, CLASSES, covariance="full")
    mean, cov = fit.logits(X[:5])
    assert (mean.shape, cov.shape) == ((5, 3), (5, 3, 3))
    assert fit.covariance.shape == (15, 15)
    assert fit.elbo > fit_glm(X, CLASSES).elbo > fit_glm(X, CLASSES, covariance="diagonal").elbo


@pytest.mark.parametrize("family", ["bernoulli", "categorical"])
@pytest.mark.parametrize("covariance", ["block", "diagonal"])
def test_the_elbo_chooses_the_prior_at_its_maximum(family, covariance):
    options = {"family": family, "covariance": covariance}
    chosen = fit_glm(X, DATA[family], **options, prior_precision="elbo")
    assert chosen.converged
    for factor in (0.7, 1.4):
        other = fit_glm(X, DATA[family], **options, prior_precision=factor * chosen.prior_precision)
        assert other.elbo < chosen.elbo


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
    fit = fit_glm(torch.cat([X, X], 1), BINARY, family="bernoulli", prior_precision=prior, method=method)
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
    assert "give one" in fit.message


@pytest.mark.parametrize("method", ["newton", "variational_gd"])
def test_step_control_arrives_on_bad_scales_and_says_when_it_did_not(method):
    x = X * torch.tensor([1e5, 1.0, 1.0, 1.0])
    assert fit_glm(x, BINARY, family="bernoulli", method=method, init_variance=1e-12).converged
    short = fit_glm(x, BINARY, family="bernoulli", method=method, max_iter=1)
    assert not short.converged
    assert "standardise" in short.message


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_soft_labels_are_the_mean_of_hard_ones(covariance):
    """Two examples with half a label of one class and half of another are one of each."""
    other = CLASSES.roll(1)
    soft = (F.one_hot(CLASSES, 3) + F.one_hot(other, 3)) / 2
    twice = torch.cat([X, X])
    options = {"covariance": covariance, "tol": 1e-6}
    rows = fit_glm(X, F.one_hot(CLASSES, 3), **options)
    torch.testing.assert_close(rows.mean, fit_glm(X, CLASSES, **options).mean)
    fit, hard = (fit_glm(twice, y, **options) for y in (soft.repeat(2, 1), torch.cat([CLASSES, other])))
    torch.testing.assert_close(fit.mean, hard.mean, rtol=0, atol=1e-4)
    one, two = BINARY, BINARY.roll(1)
    fit, hard = (
        fit_glm(twice, y, family="bernoulli", **options) for y in (((one + two) / 2).repeat(2), torch.cat([one, two]))
    )
    torch.testing.assert_close(fit.mean, hard.mean, rtol=0, atol=1e-4)


def test_labels_plus_their_noise_have_their_mode_at_the_variational_mean():
    """y + ε with ε of the posterior: plain risk minimisation then finds the posterior's mean  (theorem 1)."""
    fit = fit_glm(X, BINARY, family="bernoulli", tol=1e-9)
    noisy = BINARY + fit.label_noise(X)
    mode = fit_glm(X, noisy, family="bernoulli", method="newton", tol=1e-9)
    torch.testing.assert_close(mode.mean, fit.mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["bernoulli", "categorical"])
def test_a_learned_covariance_gives_each_example_a_variance_of_its_own(family):
    """With inputs of one length the fixed Σ of variational GD gives all of them the same."""
    unit, options = F.normalize(X * torch.tensor([3.0, 1.0, 1.0, 0.2])), {"family": family, "bias": False}
    learned, fixed = (fit_glm(unit, DATA[family], method=m, **options) for m in ("von", "variational_gd"))
    assert float(fixed.logits(unit)[1].std()) < 1e-6 < float(learned.logits(unit)[1].std())


# ---- what is refused ----

SMALL = torch.tensor([[-1.0, 0.3], [0.0, -0.2], [1.0, 0.1], [2.0, 0.4]])
KINDS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("features", "labels", "options", "message"),
    [
        (SMALL, KINDS, {"family": "binomial"}, "family='binomial': must be one of 'bernoulli'"),
        (SMALL, KINDS, {"method": "adam"}, "method='adam': must be one of 'newton'"),
        (SMALL, KINDS, {"covariance": "kron"}, "covariance='kron': must be one of 'full'"),
        (SMALL[0], KINDS, {}, r"must be \(examples, features\)"),
        (SMALL[:0], KINDS[:0], {}, r"must be \(examples, features\)"),
        (SMALL[:, :0], KINDS, {}, r"must be \(examples, features\)"),
        (SMALL / 0 * 0, KINDS, {}, r"features\[0, 0\] is nan: must be finite"),
        (0 * SMALL, KINDS, {"bias": False}, "all features are zero"),
        (SMALL, KINDS[:3], {}, r"labels of shape \(3,\): must be \(4,\)"),
        (SMALL, KINDS.float(), {}, "labels of dtype torch.float32: must be integers"),
        (SMALL, KINDS.float() + 1, {"family": "bernoulli"}, r"labels\[2\] is \[2.0\]: must be 0, 1"),
        (SMALL, torch.ones(4, 2), {}, r"labels\[0\] is \[1.0, 1.0\]: must be shares"),
        (SMALL, torch.ones(3, 2) / 2, {}, r"labels of shape \(3, 2\): must be \(4,\)"),
        (SMALL, KINDS - 1, {}, "labels from -1 to 0: must lie in 0"),
        (SMALL, KINDS + 2, {"classes": 3}, "labels from 2 to 3: must lie in 0 … 2"),
        (SMALL, 2 * KINDS, {"family": "bernoulli"}, r"labels\[2\] is \[2.0\]: must be 0, 1"),
        (SMALL, 0 * KINDS, {}, "all labels are 0: at least two classes"),
        (SMALL, KINDS / 0.0, {"family": "gaussian"}, r"labels\[0\] is \[nan\]: must be finite"),
        (SMALL, KINDS, {"prior_precision": 0}, "prior_precision=0: must be positive"),
        (SMALL, KINDS, {"prior_precision": "elbo", "method": "newton"}, "needs method='von'"),
        (SMALL.repeat(1, 700), KINDS, {"classes": 3, "covariance": "full"}, "use covariance='block'"),
    ],
)
def test_errors_give_the_value_the_rule_and_the_way_out(features, labels, options, message):
    with pytest.raises(InputError, match=message):
        fit_glm(features, labels, **options)


def test_numpy_arrays_and_lists_are_welcome():
    expected = fit_glm(SMALL, KINDS).mean
    assert torch.equal(fit_glm(SMALL.numpy(), np.array([0, 0, 1, 1])).mean, expected)
    assert torch.allclose(fit_glm(SMALL.tolist(), KINDS.tolist()).mean, expected, atol=1e-6)


def test_a_model_refuses_features_of_another_width():
    with pytest.raises(InputError, match="3 features: the model has 2"):
        fit_glm(SMALL, KINDS).logits(torch.zeros(1, 3))
