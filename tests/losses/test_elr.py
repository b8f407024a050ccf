import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.losses import ELR
from bayesmooth.theory.noise import effective_labels

FIRST, SECOND = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.1, 0.3, 0.6]]).log()
HERE, Y = torch.tensor([1]), torch.tensor([2])


def test_the_average_is_that_of_the_examples_own_predictions():
    loss = ELR(2, 3, beta=0.6)
    loss(FIRST, Y, index=HERE)
    loss(SECOND, Y, index=HERE)
    expected = 0.6 * 0.4 * FIRST.exp() + 0.4 * SECOND.exp()
    torch.testing.assert_close(loss.averages, torch.cat([torch.zeros(1, 3), expected]))


def test_the_label_moves_to_the_class_that_the_model_believed_early():
    loss = ELR(2, 3)
    for _ in range(20):
        loss(FIRST, Y, index=HERE)
    label = effective_labels(loss, SECOND, Y, index=HERE)
    assert label[0, 0] > 0.1
    torch.testing.assert_close(label.sum(1), torch.ones(1))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, r"index of None for 1 examples: ELR needs one per example; pass index="),
        (torch.tensor([0, 1]), r"index of shape \(2,\) and torch.int64"),
        (torch.tensor([2]), r"index 2: must be in 0…1; build the loss with num_examples="),
    ],
)
def test_positions_must_be_given_and_known(index, message):
    with pytest.raises(InputError, match=message):
        ELR(2, 3)(FIRST, Y, index=index)
