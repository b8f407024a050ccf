import math

import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.losses import ConfidencePenalty, CrossEntropy

Y = torch.tensor([0])


def test_a_uniform_prediction_pays_nothing_in_the_hinge_form_and_gains_log_k_in_the_other():
    z = torch.zeros(1, 4)
    plain = CrossEntropy()(z, Y).item()
    assert ConfidencePenalty(0.5)(z, Y).item() == pytest.approx(plain - 0.5 * math.log(4), abs=1e-6)
    assert ConfidencePenalty(0.5, threshold=1.3)(z, Y).item() == pytest.approx(plain)


def test_above_the_threshold_the_gradient_is_that_of_cross_entropy():
    z = torch.tensor([[0.3, 0.0, -0.2]], requires_grad=True)
    twin = z.detach().clone().requires_grad_()
    ConfidencePenalty(0.5, threshold=0.9)(z, Y).backward()
    CrossEntropy()(twin, Y).backward()
    torch.testing.assert_close(z.grad, twin.grad)


def test_a_threshold_above_log_k_is_the_plain_form_and_a_constant():
    z = torch.randn(1, 3)
    hinge, plain = ConfidencePenalty(0.2, threshold=2.0), ConfidencePenalty(0.2)
    torch.testing.assert_close(hinge(z, Y), plain(z, Y) + 0.2 * 2.0)


def test_noise_sums_to_zero():
    z = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    ConfidencePenalty(0.3, reduction="sum")(z, torch.arange(5)).backward()
    torch.testing.assert_close(z.grad.sum(1), torch.zeros(5, dtype=torch.float64))


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match=r"beta=-0.1: must be in \[0, inf\]; 0 is plain"):
        ConfidencePenalty(-0.1)
    with pytest.raises(InputError, match=r"threshold=-1: must be in \[0, inf\]; None penalises"):
        ConfidencePenalty(threshold=-1)
