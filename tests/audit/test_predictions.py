"""Leave-one-out from one fit, held against real refits; the scores; how true classes turn into given labels."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesmooth.audit.predictions import (
    LeftOut,
    Predictions,
    check_probabilities,
    estimate_noise_rate,
    learn_transitions,
    predict_left_out,
    predict_true_classes,
)
from bayesmooth.data.draws import draw_labels, pairflip, symmetric
from bayesmooth.errors import InputError
from bayesmooth.theory import Categorical, expected_noise, fit_glm

N, D, K, PRIOR = 60, 2, 3, 1.0
SETTINGS: dict[str, Any] = {"prior_precision": PRIOR, "classes": K, "tol": 1e-3}
NAMES = ("a", "b", "c")
LABELS = torch.arange(30) % 3
RIGHT = torch.nn.functional.one_hot(LABELS, 3).float()


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor]:
    """Three overlapping clouds, with two labels that are wrong."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % K
    centres = 1.5 * torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    x = centres[y] + torch.randn(N, D, generator=generator)
    y[:2] = (y[:2] + 1) % K
    return x, y


def test_what_is_predicted_without_an_example_is_near_a_refit_without_it(problem: tuple[Tensor, Tensor]) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    mean, var = fit.logits(x)
    left = predict_left_out(mean, var, fit.predict(x), y)
    chosen = [0, 1, 10, 20, 30, 40]
    refits = []
    for i in chosen:
        keep = torch.arange(N) != i
        refits.append(fit_glm(x[keep], y[keep], **SETTINGS).predict(x[i : i + 1]))
    moved = torch.cat(refits) - fit.predict(x[chosen])
    assert float(moved.norm()) > 0.1
    assert float((left[chosen] - torch.cat(refits)).norm()) < 0.5 * float(moved.norm())


def test_held_out_labels_are_as_likely_as_labels_left_out(problem: tuple[Tensor, Tensor]) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    mean, var = fit.logits(x)
    left = predict_left_out(mean, var, fit.predict(x), y)
    held = torch.empty_like(left)
    for fold in range(6):
        out = torch.arange(N) % 6 == fold
        held[out] = fit_glm(x[~out], y[~out], **SETTINGS).predict(x[out])

    def loss(p: Tensor) -> float:
        return float(-p.gather(1, y[:, None]).log().mean())

    assert loss(fit.predict(x)) < loss(left)
    assert loss(left) == pytest.approx(loss(held), abs=0.2)


def test_without_variance_nothing_depends_on_one_example_and_else_its_label_speaks_less_for_itself() -> None:
    logits, y = torch.randn(50, K), torch.arange(50) % K
    seen = logits.softmax(-1)
    torch.testing.assert_close(predict_left_out(logits, torch.zeros(50, K), seen, y), seen)
    for spread in (0.5, 1e6):
        left = predict_left_out(logits, torch.full((50, K), spread), seen, y)
        assert left.isfinite().all()
        assert (left.argmax(1) == y).sum() <= (seen.argmax(1) == y).sum()


def test_a_rounding_error_is_taken_out_of_probabilities_and_no_more() -> None:
    torch.testing.assert_close(check_probabilities(1.005 * RIGHT, 30, 3), RIGHT)
    for broken in (1.02 * RIGHT, RIGHT - 0.001, RIGHT / 0):
        with pytest.raises(InputError, match=r"probabilities\[0\] = .*sum to one"):
            check_probabilities(broken, 30, 3)


def predictions(count: int = 200, classes: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    noise = expected_noise(logits, torch.ones(count, classes), Categorical())
    labels = torch.randint(classes, (count,), generator=generator)
    return Predictions(labels, logits.softmax(1) - noise, noise, "made up")


def test_the_score_is_positive_exactly_where_another_class_is_preferred() -> None:
    found = predictions()
    against = found.probabilities.argmax(1) != found.labels
    assert torch.equal(found.disagreement > 0, against)
    assert found.judge()["suggested"].equal(found.probabilities.argmax(1))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_with_transitions_as_many_are_flagged_as_the_prediction_alone_contradicts(wrong: int) -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    slips = torch.tensor([[0.2, 0.8], [0.1, 0.9]])
    labels = torch.tensor([int(wrong > 0), int(wrong > 1)])
    found = Predictions(labels, p, transitions=slips)
    assert int((found.judge()["suggested"] != labels).sum()) == wrong


def test_ambiguity_is_the_entropy_as_a_share_of_the_largest() -> None:
    for classes in (2, 3, 50):
        p = torch.full((3, classes), 1 / classes)
        p[1], p[2] = 0, 0
        p[1, :2], p[2, 1] = 0.5, 1.0
        found = Predictions(torch.tensor([0, 1, 1]), p)
        expected = torch.tensor([1.0, float(np.log(2) / np.log(classes)), 0.0])
        torch.testing.assert_close(found.left_out.entropy, expected)
        assert found.left_out.close.tolist() == [True, True, False]


def calibrated(errors: float, noise: float, classes: int = 4, count: int = 4000) -> Predictions:
    """A calibrated model that errs on so many examples, the unsure ones, under labels of so much noise."""
    generator = torch.Generator().manual_seed(0)
    best = 1 - 2 * errors * torch.rand(count, generator=generator)
    truth = torch.arange(count) % classes
    right = torch.rand(count, generator=generator) < best
    predicted = torch.where(right, truth, (truth + 1) % classes)
    moved = torch.rand(count, generator=generator) < noise
    shift = torch.randint(1, classes, (count,), generator=generator)
    labels = torch.where(moved, (truth + shift) % classes, truth)
    p = ((1 - best) / (classes - 1))[:, None].repeat(1, classes)
    p[torch.arange(count), predicted] = best
    return Predictions(labels, p)


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.005, 0.05, 0.2, 0.5])
def test_what_is_said_at_least_holds_however_often_the_model_errs(errors: float, noise: float) -> None:
    found = calibrated(errors, noise)
    estimate, least = estimate_noise_rate(found.left_out, found.labels)
    assert 0 <= least <= noise + 0.02  # the most confident predictions err too, a little
    assert least <= estimate <= noise + 1.1 * errors + 0.02
    assert errors or least > 0.7 * noise - 0.005


def test_learned_errors_are_not_counted() -> None:
    """A model that says what the labels say, all of them, contradicts none: the truth may lie far above."""
    labels = torch.arange(100) % 2
    agreed = Predictions(labels, torch.eye(2)[labels])
    assert estimate_noise_rate(agreed.left_out, labels) == (0.0, 0.0)


CLASSES, COUNT = 5, 20_000


def labels_of(true: Tensor, matrix: Tensor) -> Tensor:
    return torch.from_numpy(draw_labels(true.numpy(), matrix.double().numpy(), seed=0))


def test_the_matrix_that_made_the_labels_is_learned_from_them() -> None:
    true = torch.arange(COUNT) % CLASSES
    for kind in (symmetric, pairflip):
        matrix = torch.from_numpy(kind(CLASSES, rate=0.3)).float()
        found = learn_transitions(torch.eye(CLASSES)[true], labels_of(true, matrix))
        torch.testing.assert_close(found, matrix, atol=0.04, rtol=0)
        torch.testing.assert_close(found.sum(1), torch.ones(CLASSES))


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


def test_a_prediction_of_given_labels_is_taken_back_to_the_true_classes() -> None:
    matrix = torch.from_numpy(pairflip(CLASSES, rate=0.3)).float()
    true = torch.distributions.Dirichlet(torch.full((CLASSES,), 0.2)).sample((200,))
    given = true @ matrix
    found = predict_true_classes(given, matrix)
    torch.testing.assert_close(found.sum(1), torch.ones(200))
    assert float((found - true).abs().mean()) < 0.6 * float((given - true).abs().mean())
    joint = given[:, :, None] * matrix  # P(k, y), by Bayes' rule with the prediction as the prior
    behind = joint / joint.sum(1, keepdim=True)
    torch.testing.assert_close(found, (behind * given[:, None, :]).sum(2))
    torch.testing.assert_close(predict_true_classes(true, torch.eye(CLASSES)), true)


def test_a_label_is_evidence_as_far_as_the_matrix_says() -> None:
    """Cats are called dogs, dogs never cats: with an even prediction the label "cat" is right, "dog" may be a cat."""
    matrix = torch.tensor([[0.7, 0.3], [0.0, 1.0]])
    even, labels = torch.full((2, 2), 0.5), torch.tensor([0, 1])
    weighed = Predictions(labels, even, transitions=matrix).weighed
    torch.testing.assert_close(weighed.sum(1), torch.ones(2))
    assert float(weighed[0, 0]) > 0.99
    assert float(weighed[1, 0]) == pytest.approx(0.3**0.25 / (1 + 0.3**0.25))
    wrong = LeftOut.of(even, labels, matrix).wrong
    torch.testing.assert_close(wrong, torch.tensor([0.0, 0.3 / 1.3]))
    blind = torch.full((2, 2), 0.5)  # labels drawn blindly say nothing
    nothing = Predictions(labels, even, transitions=blind).weighed
    torch.testing.assert_close(nothing, even)
