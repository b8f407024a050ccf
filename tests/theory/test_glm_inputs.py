import numpy as np
import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.theory.glm import fit_glm

X = torch.tensor([[-1.0, 0.3], [0.0, -0.2], [1.0, 0.1], [2.0, 0.4]])
Y = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("features", "labels", "options", "message"),
    [
        (X, Y, {"family": "binomial"}, "family='binomial': must be one of 'bernoulli'"),
        (X, Y, {"method": "adam"}, "method='adam': must be one of 'gd'"),
        (X, Y, {"covariance": "kron"}, "covariance='kron': must be one of 'full'"),
        (X[0], Y, {}, r"must be \(examples, features\)"),
        (X[:0], Y[:0], {}, r"must be \(examples, features\)"),
        (X[:, :0], Y, {}, r"must be \(examples, features\)"),
        (X / 0 * 0, Y, {}, r"features\[0, 0\] is nan: must be finite"),
        (0 * X, Y, {"bias": False}, "all features are zero"),
        (X, Y[:3], {}, r"labels of shape \(3,\): must be \(4,\)"),
        (X, Y.float(), {}, "labels of dtype torch.float32: must be integers"),
        (X, Y.float() + 1, {"family": "bernoulli"}, r"labels\[2\] is \[2.0\]: must be prob"),
        (X, torch.ones(4, 2), {}, r"labels\[0\] is \[1.0, 1.0\]: must be probabilities"),
        (X, torch.ones(3, 2) / 2, {}, r"soft labels of shape \(3, 2\): must be \(4, 2\)"),
        (X, Y - 1, {}, "labels from -1 to 0: must lie in 0"),
        (X, Y + 2, {"classes": 3}, "labels from 2 to 3: must lie in 0 … 2"),
        (X, 2 * Y, {"family": "bernoulli"}, "labels from 0 to 2: must lie in 0 … 1"),
        (X, 0 * Y, {}, "all labels are 0: at least two classes"),
        (X, Y - 1, {"family": "poisson"}, r"labels\[0\] is -1.0: must be a count"),
        (X, Y / 0.0, {"family": "gaussian"}, r"labels\[0\] is nan: must be finite"),
        (X, Y, {"weights": [1, 1]}, r"weights of shape \(2,\): must be \(4,\)"),
        (X, Y, {"weights": [1, 1, 1, -1]}, "weights: must be finite, ≥ 0"),
        (X, Y, {"weights": [0, 0, 0, 0]}, "not all zero"),
        (X, Y, {"prior_precision": 0}, "prior_precision=0: must be positive"),
        (X, Y, {"prior_precision": "elbo", "method": "newton"}, "needs method='von'"),
        (X.repeat(1, 700), Y, {"classes": 3, "covariance": "full"}, "use covariance='block'"),
    ],
)
def test_errors_give_the_value_the_rule_and_the_way_out(features, labels, options, message):
    with pytest.raises(InputError, match=message):
        fit_glm(features, labels, **options)


def test_numpy_arrays_and_lists_are_welcome():
    expected = fit_glm(X, Y).mean
    assert torch.equal(fit_glm(X.numpy(), np.array([0, 0, 1, 1])).mean, expected)
    assert torch.allclose(fit_glm(X.tolist(), Y.tolist()).mean, expected, atol=1e-6)


def test_a_model_refuses_features_of_another_width():
    with pytest.raises(InputError, match="3 features: the model has 2"):
        fit_glm(X, Y).logits(torch.zeros(1, 3))
