"""A review is a sample whose probabilities are known: what follows of it is unbiased, covered and learned from."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bayesmooth.audit import Audit, audit
from bayesmooth.audit.review import Review, Traits, design, predict_chance, teach
from bayesmooth.errors import InputError

Array = NDArray[Any]
COUNT = 1500


def make_traits(seed: int, places: bool = True, effect: float = 0.0, turn: float = 0.0) -> tuple[Traits, Array]:
    """Labels of four classes and which of them are wrong: by their score, more often in class 0, and by their place."""
    random = np.random.default_rng(seed)
    score = random.normal(-1.5, 1.5, COUNT).astype(np.float32)
    given, rival = random.integers(0, 4, COUNT), random.integers(0, 4, COUNT)
    at = random.normal(size=(COUNT, 16))
    at /= np.linalg.norm(at, axis=1, keepdims=True)
    odds = 0.8 * score - 0.5 + effect * (given == 0) + turn * at[:, 0]
    wrong = random.random(COUNT) < 1 / (1 + np.exp(-odds))
    rows = np.round(127 * at).astype(np.int8) if places else None
    numbers = random.normal(size=(COUNT, 3)).astype(np.float32)
    return Traits(score, numbers, given, rival, rows), wrong


def judge(review: Review, wrong: Array, looked: int | None = None) -> Review:
    """The review after somebody who knows decided on its queue, or on the first of it."""
    return review.decide({int(i): bool(wrong[i]) for i in review.queue[:looked]})


def precision(score: Array, wrong: Array) -> float:
    """Average precision."""
    hits = wrong[np.argsort(-score, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


@pytest.mark.parametrize("budget", [1, 2, 30, 100, COUNT, 10 * COUNT])
def test_a_queue_has_as_many_labels_as_asked_each_once(budget: int) -> None:
    review = design(make_traits(0)[0], budget)
    assert len(set(review.queue.tolist())) == len(review.queue) == min(budget, COUNT)
    assert review.drawn.sum() == pytest.approx(min(budget, COUNT))
    assert ((review.drawn > 0) & (review.drawn <= 1)).all()


def test_labels_are_drawn_as_often_as_their_probabilities_say_suspicious_ones_more_often() -> None:
    traits, _ = make_traits(0)
    seen, rounds = np.zeros(COUNT), 2000
    for seed in range(rounds):
        review = design(traits, 90, seed)
        seen[review.queue] += 1
    error = np.sqrt(review.drawn * (1 - review.drawn) / rounds)
    assert (np.abs(seen / rounds - review.drawn) <= 5 * error + 1e-9).all()
    assert (np.diff(review.drawn[np.argsort(traits.score)]) >= 0).all()


def covers(reviews: list[Review], wrong: Array, members: Array) -> float:
    """How often the interval holds the true share among some labels."""
    rates = [review.rate(members) for review in reviews]
    return float(np.mean([rate.low <= wrong[members].mean() <= rate.high for rate in rates if rate]))


@pytest.mark.parametrize("looked", [100, 60])
def test_the_interval_covers_the_share_of_wrong_labels_and_of_those_in_a_class(looked: int) -> None:
    traits, wrong = make_traits(1, effect=1.0)
    reviews = [judge(design(traits, 100, seed), wrong, looked) for seed in range(150)]
    every = np.ones(COUNT, bool)
    assert covers(reviews, wrong, every) >= 0.93
    assert covers(reviews, wrong, traits.given == 0) >= 0.93
    estimates = [rate.estimate for review in reviews if (rate := review.rate())]
    assert np.mean(estimates) == pytest.approx(wrong.mean(), abs=4 * np.std(estimates) / 150**0.5)


def test_the_interval_is_narrower_than_that_of_a_plain_sample_where_the_score_tells_something() -> None:
    traits, _ = make_traits(1)
    wrong = np.random.default_rng(0).random(COUNT) < predict_chance(traits)
    rates = [judge(design(traits, 100, seed), wrong).rate() for seed in range(30)]
    plain = 2 * 1.96 * (wrong.mean() * (1 - wrong.mean()) / 100) ** 0.5
    assert np.mean([rate.high - rate.low for rate in rates if rate]) < 0.85 * plain


@pytest.mark.parametrize(("budget", "share"), [(100, 0.01), (50, 0.03)])
def test_hardly_any_wrong_labels_are_covered_too(budget: int, share: float) -> None:
    """Also where the score says little of them."""
    traits, wrong = make_traits(2)
    few = np.random.default_rng(1).random(COUNT) < share * (0.5 + 0.5 * wrong / wrong.mean())
    reviews = [judge(design(traits, budget, seed), few) for seed in range(100)]
    assert covers(reviews, few, np.ones(COUNT, bool)) >= 0.93
    assert np.mean([rate.high for review in reviews if (rate := review.rate())]) < 0.15


def test_what_is_thought_of_a_label_without_its_decision_is_what_the_other_decisions_teach() -> None:
    traits, wrong = make_traits(3, effect=2.0)
    review = judge(design(traits, 60), wrong)
    for i in review.queue[:5].tolist():
        others = {k: v for k, v in review.wrong.items() if k != i}
        assert review.taught.left_out[i] == pytest.approx(teach(traits, others).chance[i], abs=0.03)
    rest = np.setdiff1d(np.arange(COUNT), review.queue)
    np.testing.assert_array_equal(review.taught.left_out[rest], review.chance[rest])


def test_a_share_needs_draws_and_of_all_labels_it_is_exact() -> None:
    traits, wrong = make_traits(3)
    assert design(traits, 100).rate() is None
    with pytest.raises(InputError, match="budget=0"):
        design(traits, 0)
    assert judge(design(traits, 9), wrong).rate() is None
    told = judge(design(traits, COUNT), wrong).rate()
    assert told is not None
    assert told.low == told.estimate == told.high == pytest.approx(wrong.mean())


def test_decisions_beside_the_queue_teach_and_do_not_move_the_share() -> None:
    traits, wrong = make_traits(3, effect=2.0)
    review = judge(design(traits, 60), wrong)
    more = review.decide({**review.wrong, **{i: bool(wrong[i]) for i in range(100)}})
    assert more.rate() == review.rate()
    assert not np.allclose(more.chance, review.chance)


@pytest.mark.parametrize(("places", "effect", "turn"), [(False, 4.0, 0.0), (True, 0.0, 8.0)])
def test_decisions_teach_how_a_labeller_errs(places: bool, effect: float, turn: float) -> None:
    traits, wrong = make_traits(4, places, effect, turn)
    review = judge(design(traits, 150), wrong)
    rest = np.setdiff1d(np.arange(COUNT), review.queue)
    gain = precision(review.chance[rest], wrong[rest]) - precision(traits.score[rest], wrong[rest])
    assert gain > 0.05
    calibrated = np.abs(review.chance[rest].mean() - wrong[rest].mean())
    assert calibrated < np.abs(predict_chance(traits)[rest].mean() - wrong[rest].mean()) + 0.03


def test_where_nothing_can_be_learned_the_ranking_stays() -> None:
    losses = []
    for seed in range(10):
        traits, wrong = make_traits(seed)
        review = judge(design(traits, 100), wrong)
        rest = np.setdiff1d(np.arange(COUNT), review.queue)
        before, after = (precision(s[rest], wrong[rest]) for s in (traits.score, review.chance))
        losses.append(before - after)
    assert np.mean(losses) < 0.02


def test_more_decisions_than_are_learned_from_are_thinned_evenly() -> None:
    traits, wrong = make_traits(5, effect=3.0)
    chance = teach(traits, {i: bool(wrong[i]) for i in range(1000)}).chance
    rest = np.arange(1000, COUNT)
    assert precision(chance[rest], wrong[rest]) > precision(traits.score[rest], wrong[rest])


@pytest.fixture
def noisy(noisy_clouds: Callable[..., Any]) -> tuple[Any, Array]:
    """Clouds with a fifth of their labels moved, and which these are."""
    source = noisy_clouds(0.2)
    return source, (source.labels.numbers != source.clean).numpy()


def write_decisions(path: Path, made: Audit, wrong: Array, drawn: bool = True) -> None:
    """What the report exports when all of the queue was decided on."""
    assert made.review is not None
    head, names = ["id", "given", "decision", "new_label", "drawn"], made.class_names
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head if drawn else head[:-1])
        for i in made.review.queue:
            new = names[made.examples.clean[i]] if wrong[i] else ""
            row = [made.ids[i], names[made.given[i]], "relabel" if wrong[i] else "keep", new]
            writer.writerow([*row, repr(float(made.review.drawn[i]))] if drawn else row)


def test_all_follows_from_the_files_whatever_the_budget_is_now(noisy: tuple[Any, Array], tmp_path: Path) -> None:
    source, wrong = noisy
    made = audit(source, budget=60, quiet=True)
    assert made.review is not None
    write_decisions(tmp_path / "decisions.csv", made, wrong)
    known = judge(made.review, wrong)
    again = audit(source, decisions=tmp_path / "decisions.csv", budget=10, quiet=True)
    assert again.review is not None
    assert again.summary["error_rate"] == pytest.approx(known.rate()._asdict())  # type: ignore[union-attr]
    assert again.summary["error_rate"]["low"] <= wrong.mean() <= again.summary["error_rate"]["high"]
    low = known.rate().low  # type: ignore[union-attr]
    assert [bool(again.find_failures(low + slightly)) for slightly in (-1e-9, 1e-9)] == [True, False]
    np.testing.assert_allclose(again.review.chance, known.chance)
    rest = np.setdiff1d(np.arange(len(made)), made.review.queue)
    np.testing.assert_array_equal(again.contradicted[rest], known.chance[rest] > 0.5)
    assert again.probabilities is not None
    np.testing.assert_array_equal(again.suggested_probability[rest], again.probabilities[rest, again.suggested[rest]])
    table = audit(source, budget=60, quiet=True).columns()
    drawn = [float(table["drawn"][i]) for i in made.review.queue]
    np.testing.assert_allclose(drawn, made.review.drawn[made.review.queue])
    assert sum(place != "" for place in table["queue"]) == 60
    write_decisions(tmp_path / "decisions.csv", made, wrong, drawn=False)  # of no queue: they teach and tell no share
    again = audit(source, decisions=tmp_path / "decisions.csv", budget=1, quiet=True)
    assert "error_rate" not in again.summary
    np.testing.assert_allclose(again.review.chance, known.chance)  # type: ignore[union-attr]
