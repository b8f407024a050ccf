"""Leave-one-out from one fit, held against real refits without the example; the scores; and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesmooth.audit.predictions import (
    MISLABELLED,
    QUADRANTS,
    LeftOut,
    NoiseRate,
    Predictions,
    ambiguity,
    assign_quadrants,
    check_order,
    check_probabilities,
    estimate_noise_rate,
    find_threshold,
    leave_one_out,
    predict_left_out,
    root_margin,
    suggest,
    wilson,
)
from bayesmooth.data.prepare import check_labels
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import exact_label_noise
from bayesmooth.theory.glm import fit_glm

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


def test_the_logits_without_an_example_are_near_those_of_a_refit_without_it(
    problem: tuple[Tensor, Tensor],
) -> None:
    x, y = problem
    fit = fit_glm(x, y, **SETTINGS)
    mean, var = fit.logits(x)
    left, _ = leave_one_out(mean, var, fit.predict(x), y)
    chosen = [0, 1, 10, 20, 30, 40]
    refits = []
    for i in chosen:
        keep = torch.arange(N) != i
        refits.append(fit_glm(x[keep], y[keep], **SETTINGS).logits(x[i : i + 1])[0])
    moved = torch.cat(refits) - mean[chosen]
    error = left[chosen] - torch.cat(refits)
    # logits are known up to a constant per example
    moved, error = (v - v.mean(1, keepdim=True) for v in (moved, error))
    assert float(moved.norm()) > 0.5
    assert float(error.norm()) < 0.45 * float(moved.norm())


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


def test_without_variance_nothing_depends_on_one_example() -> None:
    logits = torch.randn(5, K)
    left, _ = leave_one_out(logits, torch.zeros(5, K), logits.softmax(-1), torch.zeros(5).long())
    assert left.equal(logits)


def test_however_wide_the_posterior_an_example_has_a_leverage_below_one() -> None:
    p = torch.full((1, 2), 0.5)
    mean, var = leave_one_out(torch.zeros(1, 2), torch.full((1, 2), 1e6), p, torch.tensor([0]))
    assert float(var.max()) * 0.25 < 1
    assert mean.abs().max() < 4


def test_the_label_speaks_less_for_itself_once_it_is_left_out() -> None:
    logits, y = torch.randn(50, K), torch.arange(50) % K
    left, _ = leave_one_out(logits, torch.full((50, K), 0.5), logits.softmax(-1), y)
    before = logits.softmax(-1).gather(1, y[:, None])
    assert (left.softmax(-1).gather(1, y[:, None]) < before).all()


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


def predictions(count: int = 200, classes: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    noise = exact_label_noise(logits, torch.ones(count, classes))
    labels = torch.randint(classes, (count,), generator=generator)
    return Predictions(labels, noise.averaged, noise.expected, "made up")


def test_the_score_is_positive_exactly_where_another_class_is_preferred() -> None:
    found = predictions()
    against = found.probabilities.argmax(1) != found.labels
    score = root_margin(found)
    assert torch.equal(score > 0, against)
    suggested = suggest(score, find_threshold(score, found), found)
    assert suggested.equal(found.probabilities.argmax(1))
    cells = assign_quadrants(suggested != found.labels, ambiguity(found))
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
    other = Predictions((found.labels + 1) % 4, found.probabilities, found.noise, "")
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
    rate = estimate_noise_rate(found.left_out, found.labels)
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
