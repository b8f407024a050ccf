"""What the audit tells `fit` of labels."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from bayesmooth.fitting.audited import audit_labels, read_features

DRAW = torch.Generator().manual_seed(0)
CLEAN = torch.randint(0, 3, (600,), generator=DRAW)
X = 3 * one_hot(CLEAN, 3).float() + torch.randn(600, 3, generator=DRAW)
GIVEN = torch.where(torch.rand(600, generator=DRAW) < 0.3, (CLEAN + 1) % 3, CLEAN)
TRAIN, HELD = [(X[:400], GIVEN[:400])], [(X[400:], GIVEN[400:])]
NET = nn.Linear(3, 3)


@pytest.mark.parametrize("learn_held", [True, False])
def test_labels_are_predicted_right_and_their_pairs_are_learned(learn_held):
    found = audit_labels(NET, TRAIN, HELD, learn_held)
    for predicted, clean in ((found.train, CLEAN[:400]), (found.held, CLEAN[400:])):
        assert float((predicted.argmax(1) == clean).double().mean()) > 0.9
    off = found.transitions.clone().fill_diagonal_(0)
    assert torch.equal(off.argmax(1), torch.tensor([1, 2, 0]))


def test_held_out_labels_are_learned_only_if_they_may_be():
    for learn_held in (True, False):
        found, other = (
            audit_labels(NET, TRAIN, [(X[400:], labels)], learn_held) for labels in (GIVEN[400:], CLEAN[400:])
        )
        assert all(torch.equal(one, two) != learn_held for one, two in zip(found, other, strict=True))


def test_a_label_does_not_vote_for_itself():
    moved = GIVEN[400:].clone()
    moved[0] = (moved[0] + 1) % 3
    found, other = (audit_labels(NET, TRAIN, [(X[400:], labels)], True) for labels in (GIVEN[400:], moved))
    own = torch.stack([found.held[0], other.held[0]])
    assert float((own[0] - own[1]).abs().max()) < 0.05


def test_features_that_tell_nothing_are_not_asked():
    noise = torch.randn(600, 3, generator=torch.Generator().manual_seed(1))
    assert audit_labels(NET, [(noise[:400], GIVEN[:400])], [(noise[400:], GIVEN[400:])], True) is None
    assert audit_labels(NET, [(torch.ones(400, 3), GIVEN[:400])], [(torch.ones(200, 3), GIVEN[400:])], True) is None


def test_rows_of_numbers_stand_for_themselves_and_others_are_what_the_last_linear_layer_sees():
    rows, labels, classes = read_features(NET, TRAIN)
    assert torch.equal(rows, X[:400])
    assert torch.equal(labels, GIVEN[:400])
    assert classes == 3
    pictures, network = X[:400, None, :, None], nn.Sequential(nn.Flatten(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        assert torch.equal(read_features(network, [(pictures, GIVEN[:400])])[0], network[:3](pictures))
    assert not any(layer._forward_hooks for layer in network.modules())
    convolution = nn.Sequential(nn.Conv2d(1, 3, (3, 1)), nn.Flatten())
    assert read_features(convolution, [(pictures, GIVEN[:400])])[0] is None
    assert audit_labels(convolution, *[[(pictures, GIVEN[:400])]] * 2, False) is None
