"""How wrong labels are, from predictions and labels that were not learned."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from bayesmooth.fitting.predicted import (
    TEMPERATURES,
    Audited,
    audit_labels,
    estimate_errors,
    predict_labels,
    read_features,
)


def make(share, classes=5, sharpness=3.0, count=4000):
    """Logits of a calibrated network, true labels, and given ones of which a share is wrong."""
    draw = torch.Generator().manual_seed(0)
    logits = sharpness * torch.randn(count, classes, generator=draw)
    true = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    other = (true + torch.randint(1, classes, (count,), generator=draw)) % classes
    return logits, true, torch.where(torch.rand(count, generator=draw) < share, other, true)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("flat", [0.5, 1.0, 2.0])
def test_the_share_of_wrong_labels_and_the_right_probabilities_are_found(share, flat):
    logits, true, given = make(share)
    errors = estimate_errors(logits / flat, given)
    assert float(errors.transitions.diagonal().mean()) == pytest.approx(1 - share, abs=0.05)
    assert TEMPERATURES[int(errors.weights.argmax())] == pytest.approx(1 / flat, rel=0.01)
    nll = cross_entropy(errors.predict(logits / flat).log(), true)
    assert float(nll) == pytest.approx(float(cross_entropy(logits, true)), abs=0.01)


def test_the_likeliest_class_stays_and_probabilities_sum_to_one():
    logits, _, given = make(0.3)
    predicted = estimate_errors(logits, given).predict(logits)
    assert torch.equal(predicted.argmax(1), logits.argmax(1))
    torch.testing.assert_close(predicted.sum(1), torch.ones(len(logits)))


def test_labels_without_information_are_not_taken_for_wrong_ones_by_two_classes():
    logits = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    given = torch.randint(2, (500,), generator=torch.Generator().manual_seed(1))
    assert estimate_errors(logits, given).transitions.diagonal().mean() > 0.5


def test_a_given_label_that_was_not_learned_makes_predictions_better():
    logits, true, given = make(0.2, sharpness=1.0)
    errors = estimate_errors(logits, given)
    alone, both = (cross_entropy(p.log(), true) for p in (errors.predict(logits), errors.correct(logits, given)))
    assert both < alone - 0.3


def test_an_audit_that_says_what_the_networks_say_changes_nothing():
    logits, _, given = make(0.3)
    train, held = logits[:2000].softmax(1), logits[2000:].softmax(1)
    same = Audited(train, held, torch.eye(5))
    alone, both = (predict_labels(train, held, given[2000:], audited) for audited in (None, same))
    for one, two in zip(alone, both, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("pairs", [True, False])
def test_transitions_that_the_audit_has_learned_are_taken_where_held_out_labels_follow_them(pairs):
    logits, true, given = make(0.4)
    moved = torch.rand(len(true), generator=torch.Generator().manual_seed(1)) < 0.4
    if pairs:
        given = torch.where(moved, (true + 1) % 5, true)
    transitions = 0.6 * torch.eye(5) + 0.4 * torch.eye(5).roll(1, 1)
    network = (logits / 2).softmax(1)
    audited = Audited(*logits.softmax(1).split(2000), transitions)
    aware, unaware = (
        predict_labels(*network.split(2000), given[2000:], audited._replace(transitions=t))
        for t in (transitions, torch.eye(5))
    )
    ours, others = (float(cross_entropy(held.log(), true[2000:])) for _, held in (aware, unaware))
    assert ours < others - 0.1 if pairs else ours == pytest.approx(others, abs=1e-6)


# ---- what the audit tells of labels ----

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


@pytest.mark.parametrize("learn_held", [True, False])
def test_held_out_labels_are_learned_only_if_they_may_be(learn_held):
    found = audit_labels(NET, TRAIN, HELD, learn_held)
    other = audit_labels(NET, TRAIN, [(X[400:], CLEAN[400:])], learn_held)
    assert all(torch.equal(one, two) != learn_held for one, two in zip(found, other, strict=True))


def test_a_label_does_not_vote_for_itself():
    moved = GIVEN[400:].clone()
    moved[0] = (moved[0] + 1) % 3
    found, other = (audit_labels(NET, TRAIN, [(X[400:], labels)], True) for labels in (GIVEN[400:], moved))
    assert float((found.held[0] - other.held[0]).abs().max()) < 0.05


def test_features_that_tell_nothing_are_not_asked():
    for rows in (torch.randn(600, 3, generator=torch.Generator().manual_seed(1)), torch.ones(600, 3)):
        assert audit_labels(NET, [(rows[:400], GIVEN[:400])], [(rows[400:], GIVEN[400:])], True) is None


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
