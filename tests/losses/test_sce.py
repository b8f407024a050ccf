import pytest
import torch

from bayesmooth.losses import SCE, CrossEntropy

Z, Y = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([1])


def test_the_reverse_term_is_the_cross_entropy_of_the_label_under_the_prediction():
    almost_zero = torch.tensor([[1e-4, 1.0, 1e-4]])
    reverse = -(Z.softmax(1) * almost_zero.log()).sum()
    assert SCE(0.0, 1.0, A=9.2103404)(Z, Y).item() == pytest.approx(reverse.item(), rel=1e-6)
    torch.testing.assert_close(SCE(1.0, 0.0)(Z, Y), CrossEntropy()(Z, Y))
