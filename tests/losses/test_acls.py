import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.losses import ACLS, CrossEntropy

Z = torch.tensor([[12.0, 0.0, -1.0], [3.0, 11.0, 0.5]])
Y = torch.tensor([0, 0])


def term(**options):
    """What the regulariser adds to cross-entropy, over α = 0.1."""
    return (ACLS(**options)(Z, Y) - CrossEntropy()(Z, Y)).item() / 0.1


def test_both_terms_have_their_golden_numbers():
    assert term(positive=1.0, negative=0.0) == pytest.approx(2.5, rel=1e-5)
    assert term(positive=0.0, negative=1.0) == pytest.approx(3.3125, rel=1e-5)


def test_inside_the_margin_it_is_cross_entropy():
    z = torch.tensor([[9.0, -0.5, 3.0]], requires_grad=True)
    twin = z.detach().clone().requires_grad_()
    ACLS()(z, Y[:1]).backward()
    CrossEntropy()(twin, Y[:1]).backward()
    torch.testing.assert_close(z.grad, twin.grad)


def test_classes_that_tie_for_the_prediction_all_count():
    z = torch.tensor([[11.0, 11.0, 3.0]], requires_grad=True)
    loss = ACLS(negative=0.0, reduction="sum")
    plain = CrossEntropy("sum")(z, Y[:1])
    assert (loss(z, Y[:1]) - plain).item() == pytest.approx(2 * 0.1 * 1.0, rel=1e-5)
    loss(z, Y[:1]).backward()
    noise = z.softmax(1).detach() - z.grad - torch.tensor([[1.0, 0.0, 0.0]])
    torch.testing.assert_close(noise, torch.tensor([[-0.2, -0.2, 0.0]]), rtol=1e-5, atol=1e-6)


def test_the_label_of_the_prediction_falls_as_its_logit_grows():
    z = torch.tensor([[11.0, 0.0], [12.0, 0.0], [15.0, 0.0]], requires_grad=True)
    ACLS(reduction="sum")(z, torch.zeros(3, dtype=torch.long)).backward()
    label = (z.softmax(1) - z.grad)[:, 0]
    assert (label.diff() < 0).all()


def test_negative_margins_are_refused():
    with pytest.raises(
        InputError, match=r"margin=-1: must be in \[0, inf\]; the method's own is 10"
    ):
        ACLS(margin=-1)
