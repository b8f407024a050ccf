"""What each formula is in its limits; `test_every_loss.py` holds values, gradients and noise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.losses import (
    ACLS,
    GCE,
    LOSSES,
    SCE,
    Bootstrapping,
    ConfidencePenalty,
    CrossEntropy,
    LabelSmoothing,
    OODSmoothing,
    SelfKnowledgeSmoothing,
)
from bayesmooth.theory import effective_labels

Z, Y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, -1.0]], dtype=torch.float64), torch.tensor([0, 2])
PLAIN = CrossEntropy(reduction="none")(Z, Y)
rates, sizes = st.floats(0, 1), st.integers(2, 9)


def batch(K):
    generator = torch.Generator().manual_seed(K)
    z = torch.randn(5, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (5,), generator=generator)


@pytest.mark.parametrize(
    ("loss", "z"),
    [
        (LabelSmoothing(0.0), Z),
        (ACLS(), torch.tensor([[9.0, -0.5, 3.0]])),  # inside the margin
        (ConfidencePenalty(0.5, threshold=0.9), torch.tensor([[0.3, 0.0, -0.2]])),  # uncertain
        (OODSmoothing(0.0), Z),
        (SelfKnowledgeSmoothing(), Z),  # without a past self
        (SCE(1.0, 0.0), Z),
        (Bootstrapping(1.0), Z),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_label_is_the_given_one_where_nothing_is_to_be_softened(loss, z):
    y = Y[: len(z)]
    torch.testing.assert_close(effective_labels(loss, z, y), F.one_hot(y, 3).to(z.dtype))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ls", {"alpha": 1.1}),
        ("ols", {"num_classes": 3, "alpha": -0.1}),
        ("loras", {"num_classes": 3, "dropout": 1.0}),
        ("als", {"weight": 1, "exclude": "argmax"}),
        ("confidence_penalty", {"threshold": float("nan")}),
        ("gce", {"q": 0}),
        ("sop", {"num_examples": 2, "num_classes": 3, "u_lr": -1}),
    ],
)
def test_an_option_outside_its_range_is_named(name, options):
    last = list(options)[-1]
    with pytest.raises(InputError, match=f"{last}={options[last]!r}: must be"):
        LOSSES[name](**options)


@given(rates, sizes)
def test_smoothing_is_that_of_torch_and_its_forms_differ_by_the_factor_of_their_rates(alpha, K):
    z, y = batch(K)
    uniform, others = LabelSmoothing(alpha), LabelSmoothing(alpha * (K - 1) / K, form="others")
    torch.testing.assert_close(uniform(z, y), F.cross_entropy(z, y, label_smoothing=alpha))
    torch.testing.assert_close(others(z, y), uniform(z, y))


@pytest.mark.parametrize("form", ["uniform", "others"])
def test_rates_by_example_are_each_example_with_its_own_rate(form):
    z, y = batch(4)
    alpha = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    together = LabelSmoothing(form=form, reduction="none")(z, y, alpha=alpha)
    alone = [LabelSmoothing(float(a), form=form)(z[[n]], y[[n]]) for n, a in enumerate(alpha)]
    torch.testing.assert_close(together, torch.stack(alone))
    partner = torch.tensor([1, 2, 3, 4, 0])  # of mixed inputs: its label has its own rate, too
    mixed = LabelSmoothing(form=form, reduction="none")(z, y, alpha=alpha, partner=partner, share=0.7)
    other = LabelSmoothing(form=form, reduction="none")(z, y[partner], alpha=alpha[partner])
    torch.testing.assert_close(mixed, 0.7 * together + 0.3 * other)
    with pytest.raises(InputError, match=r"alpha of shape \(2,\) for 5 examples"):
        LabelSmoothing()(z, y, alpha=alpha[:2])


def test_classes_that_tie_for_the_prediction_all_count_in_acls():
    z, y = torch.tensor([[11.0, 11.0, 3.0]]), torch.tensor([0])
    loss = ACLS(negative=0.0, reduction="sum")
    added = loss(z, y) - CrossEntropy("sum")(z, y)
    assert added.item() == pytest.approx(2 * 0.1 * 1.0, rel=1e-5)
    expected = torch.tensor([[0.8, -0.2, 0.0]])
    torch.testing.assert_close(effective_labels(loss, z, y), expected, rtol=1e-5, atol=1e-6)


def test_the_limits_of_gce_are_cross_entropy_and_the_absolute_error():
    torch.testing.assert_close(GCE(1e-3)(Z, Y), PLAIN.mean(), rtol=5e-3, atol=0)
    absolute = (Z.softmax(1) - torch.eye(3, dtype=Z.dtype)[Y]).abs().sum(1).mean()
    torch.testing.assert_close(GCE(1.0)(Z, Y), absolute / 2)


def test_a_past_of_another_batch_is_refused():
    with pytest.raises(InputError, match=r"past of shape \(1, 3\)"):
        SelfKnowledgeSmoothing()(Z, Y, past=Z[:1].softmax(1))
