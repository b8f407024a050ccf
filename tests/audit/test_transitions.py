"""How true classes turn into given labels."""

import pytest
import torch
from torch import Tensor

from bayesmooth.audit import transitions
from bayesmooth.audit.transitions import (
    learn_transitions,
    predict_true_classes,
    probability_wrong,
    select_confident,
    weigh_by_label,
)
from bayesmooth.data.corrupt import draw_labels, pairflip, symmetric

K, N = 5, 20_000


def labels_of(true: Tensor, matrix: Tensor) -> Tensor:
    return torch.from_numpy(draw_labels(true.numpy(), matrix.double().numpy(), seed=0))


def test_the_matrix_that_made_the_labels_is_learned_from_them() -> None:
    true = torch.arange(N) % K
    for kind in (symmetric, pairflip):
        matrix = torch.from_numpy(kind(K, rate=0.3)).float()
        found = learn_transitions(torch.eye(K)[true], labels_of(true, matrix))
        torch.testing.assert_close(found, matrix, atol=0.04, rtol=0)
        torch.testing.assert_close(found.sum(1), torch.ones(K))


def test_with_few_examples_labels_that_move_anywhere_are_not_taken_for_a_habit() -> None:
    true = torch.arange(300) % 30
    even = torch.from_numpy(symmetric(30, rate=0.2)).float()
    found = learn_transitions(torch.eye(30)[true], labels_of(true, even))
    assert float(found.fill_diagonal_(0).max()) < 0.02
    labels = true.clone()
    labels[:60] = (true[:60] + 1) % 30  # two of ten in every class
    found = learn_transitions(torch.eye(30)[true], labels)
    next_class = (torch.arange(30), (torch.arange(30) + 1) % 30)
    assert float(found[next_class].min()) > 0.1


def test_unsure_predictions_teach_nothing() -> None:
    true = torch.arange(1000) % 2
    predicted = torch.eye(2)[true] * 0.9 + 0.05
    labels = true.clone()
    predicted[:600] = 0.5 + 0.1 * (predicted[:600] - 0.5)  # where it is unsure, labels are wrong
    labels[:600] = 1 - true[:600]
    assert float(learn_transitions(predicted, labels).diagonal().min()) > 0.99


def test_a_model_that_is_never_sure_finds_no_habit_in_its_own_errors() -> None:
    true = torch.arange(900) % 30
    guess = torch.where(torch.arange(900) // 30 % 4 == 0, (true + 1) % 30, true)

    def habit(lead: float) -> float:
        predicted = torch.full((900, 30), (1 - lead) / 30)
        predicted[torch.arange(900), guess] += lead
        found = learn_transitions(predicted, true).fill_diagonal_(0)
        return float(found[(torch.arange(30) + 1) % 30, torch.arange(30)].median())

    assert habit(0.05) < 0.5 * habit(0.9)


def test_a_prediction_of_given_labels_is_taken_back_to_the_true_classes() -> None:
    matrix = torch.from_numpy(pairflip(K, rate=0.3)).float()
    true = torch.distributions.Dirichlet(torch.full((K,), 0.2)).sample((200,))
    given = true @ matrix
    found = predict_true_classes(given, matrix)
    torch.testing.assert_close(found.sum(1), torch.ones(200))
    assert float((found - true).abs().mean()) < 0.6 * float((given - true).abs().mean())
    joint = given[:, :, None] * matrix  # P(k, y), by Bayes' rule with the prediction as the prior
    behind = joint / joint.sum(1, keepdim=True)
    torch.testing.assert_close(found, (behind * given[:, None, :]).sum(2))
    torch.testing.assert_close(predict_true_classes(true, torch.eye(K)), true)


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.rand(50, K).softmax(1)
    matrix = torch.from_numpy(symmetric(K, rate=0.3)).float()
    whole = predict_true_classes(given, matrix)
    monkeypatch.setattr(transitions, "PROBABILITIES_AT_ONCE", 7)
    torch.testing.assert_close(predict_true_classes(given, matrix), whole)


def test_the_select_confident_of_every_class_are_chosen() -> None:
    best, of = torch.rand(300), torch.arange(300) % 3
    chosen = select_confident(best, of, 0.1)
    for k in range(3):
        mine = of == k
        assert int(chosen[mine].sum()) == 10
        assert best[mine & chosen].min() > best[mine & ~chosen].max()


def test_a_label_is_evidence_as_far_as_the_matrix_says() -> None:
    """Cats are called dogs, dogs never cats: with an even prediction the label "cat" is right, "dog" may be a cat."""
    matrix = torch.tensor([[0.7, 0.3], [0.0, 1.0]])
    even, labels = torch.full((2, 2), 0.5), torch.tensor([0, 1])
    weighed = weigh_by_label(even, matrix, labels)
    torch.testing.assert_close(weighed.sum(1), torch.ones(2))
    assert float(weighed[0, 0]) > 0.99
    assert float(weighed[1, 0]) == pytest.approx(0.3**0.25 / (1 + 0.3**0.25))
    wrong = probability_wrong(even, matrix, labels)
    torch.testing.assert_close(wrong, torch.tensor([0.0, 0.3 / 1.3]))
    nothing = weigh_by_label(
        even, torch.full((2, 2), 0.5), labels
    )  # labels drawn blindly say nothing
    torch.testing.assert_close(nothing, even)
