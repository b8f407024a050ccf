import numpy as np
import pytest
import torch

from bayesmooth.audit.predictions import Predictions
from bayesmooth.audit.rates import NoiseRate, estimate_noise_rate, estimate_reviewed_rate, wilson
from bayesmooth.errors import InputError


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


def review(
    judge: str, seed: int, count: int = 1000, decisions: int = 80
) -> tuple[float, float, float]:
    """The true rate and the interval of a review of a ranking in which wrong labels become rarer."""
    generator = np.random.default_rng(seed)
    chance = 1 / (1 + np.exp(np.linspace(-2, 8, count)))
    wrong = (generator.random(count) < chance).astype(float)
    every = np.arange(count)
    chosen = (
        every[:decisions] if judge == "top" else generator.choice(every, decisions, replace=False)
    )
    judged = np.where(np.isin(every, chosen), wrong, np.nan)
    mixed = generator.permutation(count)
    rate = estimate_reviewed_rate(-every[mixed], judged[mixed])
    assert (rate.estimate is None) == (judge == "top")
    return wrong.mean(), rate.low, rate.high


@pytest.mark.parametrize("judge", ["top", "any"])
def test_the_interval_of_a_review_holds_the_true_rate_nineteen_times_in_twenty(judge: str) -> None:
    made = np.array([review(judge, seed) for seed in range(200)])
    true, low, high = made.T
    assert ((low <= true) & (true <= high)).mean() >= 0.94
    assert (high - low).mean() < (1.0 if judge == "top" else 0.2)


def test_a_review_of_everything_is_exact_and_one_of_little_is_none() -> None:
    wrong = (np.arange(200) % 4 == 0).astype(float)
    assert estimate_reviewed_rate(np.arange(200), wrong) == pytest.approx((0.25, 0.25, 0.25))
    few = np.where(np.arange(200) < 19, wrong, np.nan)
    with pytest.raises(InputError, match="19 decisions: a rate needs 20"):
        estimate_reviewed_rate(np.arange(200), few)


def test_wilson_holds_what_a_binomial_draws() -> None:
    seen = np.random.default_rng(0).binomial(50, 0.1, 2000) / 50
    held = [low <= 0.1 <= high for low, high in (wilson(float(share), 50) for share in seen)]
    assert 0.93 < np.mean(held) < 0.99
