from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from bayesmooth import metrics
from bayesmooth.errors import InputError

CALIBRATION = (metrics.ece, metrics.adaptive_ece)
ON_PREDICTIONS = (metrics.accuracy, metrics.nll, metrics.brier, *CALIBRATION)
seeds = st.integers(0, 2**31)


def predictions(seed, n=300, classes=5, sharpness=2.0):
    rng = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, classes, generator=rng, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (n,), generator=rng)


@given(seeds)
def test_accuracy_nll_and_brier_agree_with_the_oracles(seed):
    probs, labels = predictions(seed)
    onehot = torch.nn.functional.one_hot(labels, 5)
    oracle = multiclass_accuracy(probs, labels, num_classes=5, average="micro")
    assert metrics.accuracy(probs, labels) == pytest.approx(float(oracle))
    assert metrics.nll(probs, labels) == pytest.approx(sk.log_loss(labels, probs, labels=range(5)))
    per_class = [sk.brier_score_loss(onehot[:, k], probs[:, k]) for k in range(5)]
    assert metrics.brier(probs, labels) == pytest.approx(sum(per_class))


@given(seeds, st.sampled_from([1, 2, 10, 15]))
def test_ece_agrees_with_torchmetrics(seed, bins):
    probs, labels = predictions(seed)
    oracle = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins, norm="l1")
    assert metrics.ece(probs, labels, bins) == pytest.approx(float(oracle), abs=1e-6)


@given(seeds, st.integers(1, 20))
def test_adaptive_bins_split_the_sorted_confidences_evenly(seed, bins):
    probs, labels = predictions(seed, n=97)
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    ends = [-(-97 * b // bins) for b in range(bins + 1)]
    gaps = [
        (predicted == labels)[order[a:b]].double().mean() - confidence[order[a:b]].mean() for a, b in pairwise(ends)
    ]
    sizes = [b - a for a, b in pairwise(ends)]
    expected = sum(abs(float(g)) * n for g, n in zip(gaps, sizes, strict=True)) / 97
    assert metrics.adaptive_ece(probs, labels, bins) == pytest.approx(expected)
    assert metrics.reliability(probs, labels, bins, adaptive=True).count.tolist() == sizes


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=4))
def test_a_calibrated_predictor_has_no_calibration_error(groups):
    """In a group of n with confidence r/n, r are right."""
    probs, labels = [], []
    for right, wrong in groups:
        right, wrong = max(right, wrong), min(right, wrong)
        probs += [[right / (right + wrong), wrong / (right + wrong)]] * (right + wrong)
        labels += [0] * right + [1] * wrong
    for metric in CALIBRATION:
        error = metric(torch.tensor(probs, dtype=torch.float64), torch.tensor(labels))
        assert error == pytest.approx(0, abs=1e-12)


def test_reliability_holds_every_example_in_one_right_closed_bin():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.6, 0.4], [0.75, 0.25]], dtype=torch.float64)
    diagram = metrics.reliability(probs, torch.tensor([0, 0, 1, 0]), bins=4)
    assert diagram.count.tolist() == [0, 1, 2, 1]  # 0.5 closes bin 2, 0.75 closes bin 3
    assert diagram.accuracy[1:].tolist() == [1, 0.5, 1]
    assert diagram.confidence[1:].tolist() == pytest.approx([0.5, 0.675, 1])
    assert diagram.accuracy.isnan().tolist() == [True, False, False, False]


def test_a_confidence_rounded_above_one_counts_in_the_last_bin():
    probs = torch.tensor([[1.003, 0.001]])  # bfloat16 rows sum to one no better than this
    assert metrics.reliability(probs, torch.tensor([0]), bins=3).count.tolist() == [0, 0, 1]


def test_nll_of_an_underflowed_probability_is_large_and_finite():
    assert metrics.nll(torch.eye(2), torch.tensor([1, 1])) == pytest.approx(87.34 / 2, abs=0.01)


GOOD = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("metric", ON_PREDICTIONS)
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (GOOD[:0], LABELS[:0], "must be examples × classes, at least one"),
        (GOOD, LABELS[:1], "must be 2 integers"),
        (GOOD, LABELS.float(), "must be 2 integers"),
        (GOOD, LABELS + 1, "labels from 1 to 2: must lie in 0 … 1"),
        (GOOD, LABELS - 1, "labels from -1 to 0"),
        (GOOD * torch.nan, LABELS, r"probs\[0\] = \[nan, nan\]…, sum nan: must be"),
        (GOOD * 2, LABELS, "sum to one; pass logits.softmax"),
        (torch.tensor([[1.5, -0.5], [0, 1]]), LABELS, "must be ≥ 0"),
        (GOOD[0], LABELS, "must be examples × classes"),
    ],
)
def test_wrong_predictions_get_an_error_that_says_why(metric, probs, labels, message):
    with pytest.raises(InputError, match=message):
        metric(probs, labels)
