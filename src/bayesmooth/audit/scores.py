"""Two axes, never mixed up: disagreement with the label, and ambiguity, which is blind to it.

Every disagreement score: higher = the label is more likely wrong.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.transitions import select_confident

QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
AXES = ("Ambiguity (second best class over the best)", "Disagreement with the label")
AMBIGUOUS_FROM = 1 / 4  # from here on no class is four times as likely as the next
# Shares of the predictions of each class, the most confident ones first.
CONFIDENT_SHARES = (0.1, 0.3, 1.0)
NORMAL_95 = 1.96
WARN_ABOVE = 0.5  # share of contradicted labels from which the input is what is wrong


def margin(predictions: Predictions) -> Tensor:
    """max_{k≠y} p_k − p_y of the averaged prediction, −1 … 1: above 0 it prefers another class."""
    return _rival(predictions.probabilities, predictions.labels) - _own(predictions)


def self_confidence(predictions: Predictions) -> Tensor:
    """1 − p_y, 0 … 1: the averaged probability that the label is wrong."""
    return 1 - _own(predictions)


def log_odds(predictions: Predictions) -> Tensor:
    """log max_{k≠y} p_k − log p_y: above 0 another class is preferred; still tells the very certain apart."""
    tiny = torch.finfo(torch.float32).tiny
    rival = _rival(predictions.probabilities, predictions.labels)
    return rival.clamp_min(tiny).log() - _own(predictions).clamp_min(tiny).log()


def root_margin(predictions: Predictions) -> Tensor:
    """√max_{k≠y} p_k − √p_y, −1 … 1, half-way between margin and log-odds: above 0 it prefers another class.

    The default: the best on average, with the log-odds, and it stays within bounds (docs/audit.md).
    """
    rival = _rival(predictions.probabilities, predictions.labels)
    return rival.clamp_min(0).sqrt() - _own(predictions).clamp_min(0).sqrt()


def normalised_margin(predictions: Predictions) -> Tensor:
    """The margin less its mean over the examples of the class: fair to classes that are hard as a whole."""
    values, labels = margin(predictions), predictions.labels
    counts = torch.bincount(labels, minlength=predictions.probabilities.shape[1]).clamp_min(1)
    means = torch.bincount(labels, values, len(counts)) / counts
    return (values - means[labels]).to(values.dtype)


def noise_of_label(predictions: Predictions) -> Tensor:
    """−ε_y: averaging takes certainty from what the mean prefers, so it is positive for other labels."""
    return -predictions.signed_noise().gather(1, predictions.labels[:, None]).squeeze(1)


SCORES: dict[str, Callable[[Predictions], Tensor]] = {
    "root_margin": root_margin,
    "margin": margin,
    "log_odds": log_odds,
    "self_confidence": self_confidence,
    "normalised_margin": normalised_margin,
    "noise_of_label": noise_of_label,
}


def find_threshold(score: str, disagreement: Tensor, predictions: Predictions) -> float:
    """Above it a label counts as contradicted: where the averaged prediction prefers another class.

    For the margins and the log-odds that is 0 by definition. Other scores have no such point: theirs leaves
    the same number of examples above, and with the last of them all that tie with it.
    """
    if score in ("root_margin", "margin", "log_odds"):
        return 0.0
    contradicted = int((margin(predictions) > 0).sum())
    last = float(disagreement.topk(contradicted).values[-1]) if contradicted else float("inf")
    below = disagreement[disagreement < last]
    return float(below.max()) if len(below) else last - 1.0


def ambiguity(predictions: Predictions) -> Tensor:
    """How near the second best class comes to the best, 0 … 1, by the prediction that has not seen the label.

    1 is a coin flip, whatever the number of classes. (The label noise ε is not such a measure: with two classes it
    vanishes where the prediction is even.)
    """
    left_out = predictions.left_out
    return left_out.second / left_out.best.clamp_min(torch.finfo(torch.float32).tiny)


def assign_quadrants(disagreement: Tensor, ambiguity: Tensor, cut: float) -> Tensor:
    """Positions in `QUADRANTS`: contradicted and clear-cut is mislabelled, contradicted and ambiguous hard.

    >>> assign_quadrants(torch.tensor([-1.0, -1.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]), 0.0)
    tensor([0, 1, 2, 3])
    """
    against, unclear = disagreement > cut, ambiguity >= AMBIGUOUS_FROM
    return MISLABELLED * against.long() + AMBIGUOUS * unclear.long()  # both: HARD


class NoiseRate(NamedTuple):
    """The share of wrong labels: an estimate, and an interval that rests on less."""

    estimate: float
    low: float
    high: float


def estimate_noise_rate(left_out: LeftOut, labels: Tensor) -> NoiseRate:
    """How many labels are wrong, from predictions that have not seen them.

    low: how often labels contradict the most confident tenth of the predictions of each class (or three tenths, or all,
    if that is less). Hardly any of these is the model's own error, and labels that were moved by chance are as
    frequent here as anywhere.
    high: how often labels contradict any prediction, the model's own errors included.
    estimate: confident learning (Northcutt et al. 2021), how often labels contradict predictions that are at least as
    sure of their class as they are, on average, of its examples; held within the interval.
    Both ends are widened by 95 % sampling error.
    """
    classes = int(max(labels.max(), left_out.best_class.max())) + 1
    against = (left_out.best_class != labels).double()
    counts = torch.bincount(labels, minlength=classes)
    typical = torch.bincount(labels, left_out.own.double(), classes) / counts.clamp_min(1)
    typical[counts == 0] = 1.0
    confident = left_out.best >= typical[left_out.best_class]
    estimate = float(against[confident].mean()) if bool(confident.any()) else float(against.mean())
    low = min(_low_end(left_out, against, share) for share in CONFIDENT_SHARES)
    high = _wilson(float(against.mean()), len(labels))[1]
    return NoiseRate(min(max(estimate, low), high), low, high)


def warn_if_mostly_contradicted(rate: float) -> str | None:
    """What to say where most labels are contradicted."""
    if rate <= WARN_ABOVE:
        return None
    return (
        f"{rate:.0%} of the labels are contradicted: the input is probably wrong, not the labels. Are rows and "
        "labels in the same order, the columns of probabilities in that of the classes, and do the embeddings fit "
        "the task?"
    )


def _low_end(left_out: LeftOut, against: Tensor, share: float) -> float:
    """The lower end of how often labels contradict the most confident share of each class's predictions."""
    chosen = select_confident(left_out.best, left_out.best_class, share)
    of, counts = left_out.best_class[chosen], torch.bincount(left_out.best_class)
    wrong = torch.bincount(of, against[chosen], len(counts))
    kept = torch.bincount(of, minlength=len(counts)).clamp_min(1)
    rate = float((wrong / kept * counts).sum() / counts.sum())
    return max(0.0, _wilson(rate, int(chosen.sum()))[0])


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in so many (Wilson 1927)."""
    z = NORMAL_95**2 / count
    half = NORMAL_95 * (share * (1 - share) / count + z / (4 * count)) ** 0.5
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


def _own(predictions: Predictions) -> Tensor:
    return predictions.probabilities.gather(1, predictions.labels[:, None]).squeeze(1)


def _rival(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The largest probability of a class other than the label's."""
    return probabilities.scatter(1, labels[:, None], -1.0).amax(1)
