import pytest
import torch

from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.scores import (
    MISLABELLED,
    QUADRANTS,
    SCORES,
    ambiguity,
    assign_quadrants,
    find_threshold,
    suggest,
)
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import exact_label_noise


def predictions(count: int = 200, classes: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    noise = exact_label_noise(logits, torch.ones(count, classes))
    labels = torch.randint(classes, (count,), generator=generator)
    return Predictions(labels, noise.averaged, noise.expected, "made up")


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_higher_where_the_prediction_contradicts_the_label(name: str) -> None:
    found = predictions()
    score = SCORES[name](found)
    against = found.probabilities.argmax(1) != found.labels
    assert score[against].mean() > score[~against].mean()
    assert score.isfinite().all()


def test_the_margin_is_positive_exactly_where_another_class_is_preferred() -> None:
    found = predictions()
    against = found.probabilities.argmax(1) != found.labels
    for name in ("root_margin", "margin", "log_odds"):
        assert torch.equal(SCORES[name](found) > 0, against)


@pytest.mark.parametrize("name", SCORES)
def test_the_threshold_leaves_as_many_above_as_are_contradicted(name: str) -> None:
    found = predictions()
    score = SCORES[name](found)
    contradicted = int((found.probabilities.argmax(1) != found.labels).sum())
    against = suggest(score, find_threshold(name, score, found), found) != found.labels
    cells = assign_quadrants(against, ambiguity(found))
    assert int((cells >= MISLABELLED).sum()) == contradicted


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_as_few_as_are_contradicted_are_flagged(wrong: int) -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    found = Predictions(torch.tensor([int(wrong > 0), int(wrong > 1)]), p, None, "")
    score = SCORES["self_confidence"](found)
    assert int((score > find_threshold("self_confidence", score, found)).sum()) == wrong


def test_a_label_that_ties_with_the_last_contradicted_one_is_flagged_with_it() -> None:
    p = torch.tensor([[0.3, 0.4, 0.2, 0.1], [0.3, 0.25, 0.25, 0.2], [0.7, 0.1, 0.1, 0.1]])
    found = Predictions(torch.zeros(3, dtype=torch.int64), p, None, "")
    score = SCORES["self_confidence"](found)
    assert (score > find_threshold("self_confidence", score, found)).tolist() == [True, True, False]


def test_ambiguity_does_not_look_at_the_label() -> None:
    found = predictions()
    other = Predictions((found.labels + 1) % 4, found.probabilities, found.noise, "")
    assert ambiguity(found).equal(ambiguity(other))
    assert not SCORES["margin"](found).equal(SCORES["margin"](other))


def test_a_coin_flip_has_ambiguity_one_whatever_the_number_of_classes() -> None:
    for classes in (2, 3, 50):
        p = torch.full((2, classes), 0.0)
        p[0, :2], p[1, 1] = 0.5, 1.0
        found = Predictions(torch.tensor([0, 1]), p, None, "")
        torch.testing.assert_close(ambiguity(found), torch.tensor([1.0, 0.0]))


def test_without_a_posterior_the_noise_score_says_so() -> None:
    found = Predictions(torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]), None, "")
    with pytest.raises(InputError, match="needs a posterior"):
        SCORES["noise_of_label"](found)


def test_ambiguity_comes_from_the_prediction_without_the_example() -> None:
    p, y = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
    unseen = LeftOut.of(torch.tensor([[0.5, 0.5]]), y)
    assert float(ambiguity(Predictions(y, p, None, "", without_label=unseen))) == 1
    assert float(ambiguity(Predictions(y, p, None, ""))) == pytest.approx(1 / 9)


def test_quadrants_are_named_as_the_report_names_them() -> None:
    cells = assign_quadrants(torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0.0, 1, 0, 1]))
    assert [QUADRANTS[int(i)] for i in cells] == ["clear", "ambiguous", "mislabelled", "hard"]
