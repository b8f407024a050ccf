import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.losses import CrossEntropy, LabelSmoothing

rates, sizes = st.floats(0, 1), st.integers(2, 9)


def batch(K):
    generator = torch.Generator().manual_seed(K)
    z = torch.randn(5, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (5,), generator=generator)


@given(rates, sizes)
def test_uniform_form_is_the_smoothing_of_torch(alpha, K):
    z, y = batch(K)
    torch.testing.assert_close(
        LabelSmoothing(alpha)(z, y), F.cross_entropy(z, y, label_smoothing=alpha)
    )


@given(rates, sizes)
def test_the_forms_differ_by_the_factor_of_their_rates(alpha, K):
    z, y = batch(K)
    others = LabelSmoothing(alpha * (K - 1) / K, form="others")
    torch.testing.assert_close(others(z, y), LabelSmoothing(alpha)(z, y))


@pytest.mark.parametrize("form", ["uniform", "others"])
def test_rates_by_example_are_each_example_with_its_own_rate(form):
    z, y = batch(4)
    alpha = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    together = LabelSmoothing(form=form, reduction="none")(z, y, alpha=alpha)
    alone = [LabelSmoothing(float(a), form=form)(z[[n]], y[[n]]) for n, a in enumerate(alpha)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_rate_zero_is_cross_entropy():
    torch.testing.assert_close(LabelSmoothing(0.0)(*batch(3)), CrossEntropy()(*batch(3)))


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match=r"alpha=1.5: must be in \[0, 1\]"):
        LabelSmoothing(1.5)
    with pytest.raises(InputError, match=r"form='k-1': must be one of 'uniform', 'others'"):
        LabelSmoothing(form="k-1")
    with pytest.raises(
        InputError, match=r"alpha of shape \(5, 1\) for 5 examples: must be one rate"
    ):
        LabelSmoothing()(*batch(3), alpha=torch.zeros(5, 1))
