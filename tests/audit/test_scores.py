import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from bayesmooth.audit.evidence import Evidence
from bayesmooth.audit.scores import (
    CLEAR,
    MISLABELLED,
    QUADRANTS,
    SCORES,
    ambiguity_threshold,
    quadrants,
    threshold,
)
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import exact_label_noise


def evidence(count: int = 200, classes: int = 4, seed: int = 0) -> Evidence:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    noise = exact_label_noise(logits, torch.ones(count, classes))
    labels = torch.randint(classes, (count,), generator=generator)
    return Evidence(labels, noise.averaged, noise.expected, "made up")


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_higher_where_the_prediction_contradicts_the_label(name: str) -> None:
    found = evidence()
    score = SCORES[name](found)
    against = found.probabilities.argmax(1) != found.labels
    assert score[against].mean() > score[~against].mean()
    assert score.isfinite().all()


def test_the_margin_is_positive_exactly_where_another_class_is_preferred() -> None:
    found = evidence()
    against = found.probabilities.argmax(1) != found.labels
    for name in ("root_margin", "margin", "log_odds"):
        assert torch.equal(SCORES[name](found) > 0, against)


@pytest.mark.parametrize("name", SCORES)
def test_the_threshold_leaves_as_many_above_as_are_contradicted(name: str) -> None:
    found = evidence()
    score = SCORES[name](found)
    contradicted = int((found.probabilities.argmax(1) != found.labels).sum())
    cells = quadrants(score, found.ambiguity, (threshold(name, score, found), 0.1))
    assert int((cells >= MISLABELLED).sum()) == contradicted


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_as_few_as_are_contradicted_are_flagged(wrong: int) -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    found = Evidence(torch.tensor([int(wrong > 0), int(wrong > 1)]), p, None, "")
    score = SCORES["self_confidence"](found)
    assert int((score > threshold("self_confidence", score, found)).sum()) == wrong


def test_a_label_that_ties_with_the_last_contradicted_one_is_flagged_with_it() -> None:
    p = torch.tensor([[0.3, 0.4, 0.2, 0.1], [0.3, 0.25, 0.25, 0.2], [0.7, 0.1, 0.1, 0.1]])
    found = Evidence(torch.zeros(3, dtype=torch.int64), p, None, "")
    score = SCORES["self_confidence"](found)
    assert (score > threshold("self_confidence", score, found)).tolist() == [True, True, False]


def test_ambiguity_does_not_look_at_the_label() -> None:
    found = evidence()
    other = Evidence((found.labels + 1) % 4, found.probabilities, found.noise, "")
    assert found.ambiguity.equal(other.ambiguity)
    assert not SCORES["margin"](found).equal(SCORES["margin"](other))


def test_without_a_posterior_entropy_stands_in_and_the_noise_score_says_so() -> None:
    found = Evidence(torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]), None, "")
    torch.testing.assert_close(found.ambiguity, torch.tensor([1.0, 0.0]))
    with pytest.raises(InputError, match="needs a posterior"):
        SCORES["noise_of_label"](found)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(2, 40), st.floats(0.3, 0.9))
def test_two_clumps_of_ambiguity_are_cut_between(low: int, high: int, gap: float) -> None:
    values = torch.cat([torch.linspace(0, 0.1, low), gap + torch.linspace(0, 0.05, high)])
    assert ambiguity_threshold(values[torch.randperm(len(values))]) == pytest.approx(gap)


def test_quadrants_are_named_as_the_report_names_them() -> None:
    cells = quadrants(torch.tensor([-1.0, -1, 1, 1]), torch.tensor([0.0, 1, 0, 1]), (0.0, 0.5))
    assert [QUADRANTS[int(i)] for i in cells] == ["clear", "ambiguous", "mislabelled", "hard"]


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_where_all_are_equally_ambiguous_none_is(value: float) -> None:
    ambiguity = torch.full((5,), value)
    ambiguity[2] += 1e-7  # as rounding does
    cells = quadrants(torch.zeros(5), ambiguity, (0.0, ambiguity_threshold(ambiguity)))
    assert cells.tolist() == [CLEAR] * 5
