"""Two axes, never mixed up: disagreement with the label, and ambiguity, which is blind to it."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.transitions import select_confident, weigh_by_label

QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
AXES = ("Ambiguity (second best class over the best)", "Disagreement with the label")
AMBIGUOUS_FROM = 1 / 4  # from here on no class is four times as likely as the next
WARN_ABOVE = 0.5  # share of contradicted labels from which the input is what is wrong
NORMAL_95 = 1.96
CONFIDENT = 0.1  # share of the predictions of each class


def root_margin(predictions: Predictions) -> Tensor:
    """√max_{k≠y} r_k − √r_y, −1 … 1: higher, the label is more likely wrong (docs/evidence-audit.md).

    r is the prediction with the given label as evidence (`weigh_label`).
    """
    own, rival = _split(weigh_label(predictions), predictions.labels)
    return rival.clamp_min(0).sqrt() - own.clamp_min(0).sqrt()


def margin(predictions: Predictions) -> Tensor:
    """max_{k≠y} p_k − p_y of the averaged prediction, −1 … 1: above 0 it prefers another class."""
    own, rival = _split(predictions.probabilities, predictions.labels)
    return rival - own


def _split(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What each row has for its label, and the most that it has for another class."""
    at = labels[:, None]
    return rows.gather(1, at).squeeze(1), rows.scatter(1, at, -1.0).amax(1)


def weigh_label(predictions: Predictions) -> Tensor:
    """r (N, K): the prediction with the given label as evidence, or the prediction itself where no T was learned."""
    if predictions.transitions is None:
        return predictions.probabilities
    return weigh_by_label(predictions.probabilities, predictions.transitions, predictions.labels)


def suggest(disagreement: Tensor, cut: float, predictions: Predictions) -> Tensor:
    """The likeliest other class where the label is contradicted, else the label (N,).

    Equal examples with different labels get the same suggestion, the likeliest class, and never swap their labels.
    """
    labels = predictions.labels
    rival = weigh_label(predictions).scatter(1, labels[:, None], -1.0).argmax(1)
    suggested = torch.where(disagreement > cut, rival, labels)
    if predictions.mixed is None or not predictions.informative:
        return suggested
    return torch.where(predictions.mixed, predictions.probabilities.argmax(1), suggested)


def find_threshold(disagreement: Tensor, predictions: Predictions) -> float:
    """The score above which a label counts as contradicted.

    As many labels lie above it as there are for which the averaged prediction prefers another class.
    """
    if not predictions.informative:  # nobody is accused
        return float(disagreement.max())
    if predictions.transitions is None:
        return 0.0
    return leave_above(disagreement, int((margin(predictions) > 0).sum()))


def leave_above(disagreement: Tensor, count: int) -> float:
    """The threshold that `count` scores exceed, and all that tie with the last of them."""
    last = float(disagreement.topk(count).values[-1]) if count else float("inf")
    below = disagreement[disagreement < last]
    return float(below.max()) if len(below) else last - 1.0


def ambiguity(predictions: Predictions) -> Tensor:
    """How near the second best class comes to the best, 0 … 1, by the prediction that has not seen the label.

    1 is a coin flip, whatever the number of classes. (The label noise ε is not such a measure: with two classes it
    vanishes where the prediction is even.)
    """
    left_out = predictions.left_out
    return left_out.second / left_out.best.clamp_min(torch.finfo(torch.float32).tiny)


def assign_quadrants(against: Tensor, ambiguity: Tensor) -> Tensor:
    """Positions in `QUADRANTS`: contradicted and clear-cut is mislabelled, contradicted and ambiguous hard.

    >>> assign_quadrants(torch.tensor([False, False, True, True]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    tensor([0, 1, 2, 3])
    """
    unclear = ambiguity >= AMBIGUOUS_FROM
    return MISLABELLED * against.long() + AMBIGUOUS * unclear.long()  # both: HARD


def warn_if_mostly_contradicted(rate: float) -> str | None:
    """What to say where most labels are contradicted."""
    if rate <= WARN_ABOVE:
        return None
    return (
        f"{rate:.0%} of the labels are contradicted: the input is probably wrong, not the labels. Are rows and "
        "labels in the same order, the columns of probabilities in that of the classes, and do the embeddings fit "
        "the task?"
    )


class NoiseRate(NamedTuple):
    """The share of wrong labels by the model's own account."""

    estimate: float
    at_least: float


def estimate_noise_rate(left_out: LeftOut, labels: Tensor) -> NoiseRate:
    """How many labels are wrong, from predictions that have not seen them.

    at_least: the mean probability that a label is wrong (`LeftOut.wrong`), or how often labels contradict the most
    confident tenth of the predictions of each class if that is less (hardly any of these is the model's own error),
    less the 95 % sampling error.
    estimate: confident learning (Northcutt et al. 2021), how often labels contradict predictions that are at least as
    sure of their class as they are, on average, of its examples.
    Neither is a bound from above: a model that has learned a systematic error does not contradict it.
    """
    classes = int(max(labels.max(), left_out.best_class.max())) + 1
    against = (left_out.best_class != labels).double()
    counts = torch.bincount(labels, minlength=classes)
    typical = torch.bincount(labels, left_out.own.double(), classes) / counts.clamp_min(1)
    typical[counts == 0] = 1.0
    confident = left_out.best >= typical[left_out.best_class]
    estimate = float((against[confident] if bool(confident.any()) else against).mean())
    sure = select_confident(left_out.best, left_out.best_class, CONFIDENT)
    of, every = left_out.best_class[sure], torch.bincount(left_out.best_class)
    shares = torch.bincount(of, against[sure], len(every)) / torch.bincount(of).clamp_min(1)
    share = float((shares * every).sum() / every.sum())
    wrong = wilson(float(left_out.wrong.double().mean()), len(labels))[0]
    least = max(min(wrong, wilson(share, int(sure.sum()))[0]), 0.0)
    return NoiseRate(max(estimate, least), least)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in so many (Wilson 1927)."""
    z = NORMAL_95**2 / count
    half = NORMAL_95 * (share * (1 - share) / count + z / (4 * count)) ** 0.5
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)
