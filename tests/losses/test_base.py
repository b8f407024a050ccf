import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.losses.base import check_range, known_gradient, predictions, within


@given(st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=1, max_size=5))
def test_predictions_are_the_first_maximum(rows):
    z = torch.tensor(rows, dtype=torch.float32)
    assert predictions(z).tolist() == [row.index(max(row)) for row in rows]


def test_known_gradient_is_scaled_by_what_comes_from_above():
    z = torch.randn(3, 2, requires_grad=True)
    gradient = torch.arange(6.0).view(3, 2)
    known_gradient(z, torch.ones(3), gradient).backward(torch.tensor([1.0, -2.0, 0.5]))
    assert z.grad.tolist() == [[0.0, 1.0], [-4.0, -6.0], [2.0, 2.5]]


def test_known_gradient_says_that_it_is_differentiable_once():
    z = torch.randn(3, 2, requires_grad=True)
    value = known_gradient(z, torch.ones(3), torch.ones(3, 2)).sum()
    with pytest.raises(
        InputError, match=r"create_graph=True: .* differentiated once; use CrossEntropy"
    ):
        torch.autograd.grad(value, z, create_graph=True)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_options_outside_their_range_are_refused(value):
    with pytest.raises(InputError, match=r"alpha=.*: must be in \[0, 1\]; 0 is plain"):
        within("alpha", value, 0, 1, "0 is plain cross-entropy")


def test_ranges_include_both_ends():
    check_range("label", torch.tensor([0, 4]), 5, "")
    assert within("alpha", 0.0, 0, 1, "") == 0.0
    assert within("alpha", 1.0, 0, 1, "") == 1.0
