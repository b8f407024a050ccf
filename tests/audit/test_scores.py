import numpy as np
import pytest
import torch

from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.scores import (
    MISLABELLED,
    QUADRANTS,
    NoiseRate,
    ambiguity,
    assign_quadrants,
    estimate_noise_rate,
    find_threshold,
    root_margin,
    suggest,
    wilson,
)
from bayesmooth.labelnoise import exact_label_noise


def predictions(count: int = 200, classes: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    noise = exact_label_noise(logits, torch.ones(count, classes))
    labels = torch.randint(classes, (count,), generator=generator)
    return Predictions(labels, noise.averaged, noise.expected, "made up")


def test_the_score_is_positive_exactly_where_another_class_is_preferred() -> None:
    found = predictions()
    against = found.probabilities.argmax(1) != found.labels.numbers
    score = root_margin(found)
    assert torch.equal(score > 0, against)
    suggested = suggest(score, find_threshold(score, found), found)
    assert suggested.equal(found.probabilities.argmax(1))
    cells = assign_quadrants(suggested != found.labels.numbers, ambiguity(found))
    assert int((cells >= MISLABELLED).sum()) == int(against.sum())


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_with_transitions_as_many_are_flagged_as_the_prediction_alone_contradicts(
    wrong: int,
) -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    slips = torch.tensor([[0.2, 0.8], [0.1, 0.9]])
    labels = torch.tensor([int(wrong > 0), int(wrong > 1)])
    found = Predictions(labels, p, None, "", transitions=slips)
    score = root_margin(found)
    assert int((score > find_threshold(score, found)).sum()) == wrong


def test_ambiguity_does_not_look_at_the_label() -> None:
    found = predictions()
    other = Predictions((found.labels.numbers + 1) % 4, found.probabilities, found.noise, "")
    assert ambiguity(found).equal(ambiguity(other))
    assert not root_margin(found).equal(root_margin(other))


def test_a_coin_flip_has_ambiguity_one_whatever_the_number_of_classes() -> None:
    for classes in (2, 3, 50):
        p = torch.full((2, classes), 0.0)
        p[0, :2], p[1, 1] = 0.5, 1.0
        found = Predictions(torch.tensor([0, 1]), p, None, "")
        torch.testing.assert_close(ambiguity(found), torch.tensor([1.0, 0.0]))


def test_ambiguity_comes_from_the_prediction_without_the_example() -> None:
    p, y = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
    unseen = LeftOut.of(torch.tensor([[0.5, 0.5]]), y)
    assert float(ambiguity(Predictions(y, p, None, "", without_label=unseen))) == 1
    assert float(ambiguity(Predictions(y, p, None, ""))) == pytest.approx(1 / 9)


def test_quadrants_are_named_as_the_report_names_them() -> None:
    cells = assign_quadrants(torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0.0, 1, 0, 1]))
    assert [QUADRANTS[int(i)] for i in cells] == ["clear", "ambiguous", "mislabelled", "hard"]


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
    return Predictions(labels, p, None, "")


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.005, 0.05, 0.2, 0.5])
def test_what_is_said_at_least_holds_however_often_the_model_errs(
    errors: float, noise: float
) -> None:
    found = calibrated(errors, noise)
    rate = estimate_noise_rate(found.left_out, found.labels.numbers)
    assert 0 <= rate.at_least <= noise + 0.02  # the most confident predictions err too, a little
    assert rate.at_least <= rate.estimate <= noise + 1.1 * errors + 0.02
    assert errors or rate.at_least > 0.7 * noise - 0.005


def test_learned_errors_are_not_counted() -> None:
    """A model that says what the labels say, all of them, contradicts none: the truth may lie far above."""
    labels = torch.arange(100) % 2
    agreed = Predictions(labels, torch.eye(2)[labels], None, "")
    rate = estimate_noise_rate(agreed.left_out, labels)
    assert rate == NoiseRate(0.0, 0.0)


def test_wilson_holds_what_a_binomial_draws() -> None:
    seen = np.random.default_rng(0).binomial(50, 0.1, 2000) / 50
    held = [low <= 0.1 <= high for low, high in (wilson(float(share), 50) for share in seen)]
    assert 0.93 < np.mean(held) < 0.99
