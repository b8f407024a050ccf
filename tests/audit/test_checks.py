import pytest
import torch

from bayesmooth.audit.checks import check_labels, check_order, check_probabilities
from bayesmooth.errors import InputError

NAMES = ("a", "b", "c")
LABELS = torch.arange(30) % 3
RIGHT = torch.nn.functional.one_hot(LABELS, 3).float()


def test_a_rounding_error_is_taken_out_of_probabilities_and_no_more() -> None:
    torch.testing.assert_close(check_probabilities(1.005 * RIGHT, 30, 3), RIGHT)
    for broken in (1.02 * RIGHT, RIGHT - 0.001, RIGHT / 0):
        with pytest.raises(InputError, match=r"probabilities\[0\] = .*sum to one"):
            check_probabilities(broken, 30, 3)


def test_columns_in_another_order_are_refused_with_the_order_that_fits() -> None:
    check_order(RIGHT, LABELS, NAMES)
    with pytest.raises(InputError, match=r"agree with 0 of 30 labels .* 30 in the order c, a, b"):
        check_order(RIGHT.roll(1, 1), LABELS, NAMES)
    check_order(RIGHT.mean(0).expand(30, 3), LABELS, NAMES)  # no order fits


def test_one_class_is_no_audit() -> None:
    check_labels(LABELS, NAMES)
    with pytest.raises(InputError, match="all 30 labels are 'b'"):
        check_labels(torch.ones_like(LABELS), NAMES)
