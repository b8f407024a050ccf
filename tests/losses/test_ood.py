import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.losses import CrossEntropy, OODSmoothing
from bayesmooth.losses.ood import spread_of_others


def test_spread_has_its_golden_number():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    assert spread_of_others(p, torch.tensor([0]))[0].item() == pytest.approx(0.05, abs=1e-9)


@given(st.integers(2, 40), st.integers(0, 39), st.floats(0, 20))
def test_spread_is_the_standard_deviation_of_the_others(K, k, scale):
    k %= K
    p = (scale * torch.randn(1, K)).softmax(1)
    others = torch.cat([p[0, :k], p[0, k + 1 :]]).double()
    spread, _ = spread_of_others(p, torch.tensor([k]))
    assert spread.item() == pytest.approx(others.std(correction=0).item(), rel=1e-3, abs=2e-6)


def test_the_spread_of_a_confident_prediction_is_not_lost_to_rounding():
    p = torch.tensor([[30.0, 3.0, 0.0, 0.0, 0.0]]).softmax(1)
    exact = p[0, 1:].double().std(correction=0).item()
    assert exact < 1e-11
    assert spread_of_others(p, torch.tensor([0]))[0].item() == pytest.approx(1e-6, rel=1e-3)


def test_the_excluded_class_is_the_prediction_or_the_label():
    z = torch.tensor([[0.7, 0.2, 0.1]]).log()
    y = torch.tensor([2])
    plain = CrossEntropy()(z, y).item()
    assert OODSmoothing(1.0)(z, y).item() - plain == pytest.approx(0.05, abs=1e-6)
    assert OODSmoothing(1.0, exclude="true")(z, y).item() - plain == pytest.approx(0.25, abs=1e-6)


def test_equal_others_are_a_point_of_rest():
    z = torch.tensor([[2.0, 0.0, 0.0, 0.0]], requires_grad=True)
    twin = z.detach().clone().requires_grad_()
    OODSmoothing(5.0)(z, torch.tensor([0])).backward()
    CrossEntropy()(twin, torch.tensor([0])).backward()
    torch.testing.assert_close(z.grad, twin.grad, rtol=1e-3, atol=1e-3)


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match="weight"):
        OODSmoothing()
    with pytest.raises(InputError, match=r"weight=-1: must be in \[0, inf\]; 0 is plain"):
        OODSmoothing(-1)
    with pytest.raises(InputError, match=r"exclude='argmax': must be one of 'predicted', 'true'"):
        OODSmoothing(1, exclude="argmax")
