"""Two axes, never mixed up: disagreement with the label, and ambiguity, which is blind to it.

Every disagreement score: higher = the label is more likely wrong.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayesmooth.audit.predictions import Predictions
from bayesmooth.audit.transitions import weigh_by_label
from bayesmooth.errors import InputError

QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
AXES = ("Ambiguity (second best class over the best)", "Disagreement with the label")
AMBIGUOUS_FROM = 1 / 4  # from here on no class is four times as likely as the next
WARN_ABOVE = 0.5  # share of contradicted labels from which the input is what is wrong


def margin(predictions: Predictions) -> Tensor:
    """max_{k≠y} p_k − p_y of the averaged prediction, −1 … 1: above 0 it prefers another class."""
    own, rival = _split(predictions.probabilities, predictions.labels)
    return rival - own


def self_confidence(predictions: Predictions) -> Tensor:
    """1 − p_y, 0 … 1: the averaged probability that the label is wrong."""
    return 1 - _split(predictions.probabilities, predictions.labels)[0]


def log_odds(predictions: Predictions) -> Tensor:
    """log max_{k≠y} p_k − log p_y: above 0 another class is preferred. It still tells the very certain apart."""
    tiny = torch.finfo(torch.float32).tiny
    own, rival = _split(predictions.probabilities, predictions.labels)
    return rival.clamp_min(tiny).log() - own.clamp_min(tiny).log()


def root_margin(predictions: Predictions) -> Tensor:
    """√max_{k≠y} r_k − √r_y, −1 … 1, half-way between margin and log-odds.

    r is the prediction with the given label as evidence (`weigh_label`). The default: it finds the most
    (docs/evidence-audit.md).
    """
    own, rival = _split(weigh_label(predictions), predictions.labels)
    return rival.clamp_min(0).sqrt() - own.clamp_min(0).sqrt()


def normalised_margin(predictions: Predictions) -> Tensor:
    """The margin less its mean over the examples of the class: fair to classes that are hard as a whole."""
    values, labels = margin(predictions), predictions.labels
    counts = torch.bincount(labels, minlength=predictions.probabilities.shape[1]).clamp_min(1)
    means = torch.bincount(labels, values, len(counts)) / counts
    return (values - means[labels]).to(values.dtype)


def noise_of_label(predictions: Predictions) -> Tensor:
    """−ε_y: averaging takes certainty from what the mean prefers, so it is positive for other labels."""
    if predictions.noise is None:
        raise InputError(
            "score='noise_of_label' needs a posterior; with probabilities alone use 'root_margin'"
        )
    return -_split(predictions.noise, predictions.labels)[0]


def _split(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What each row has for its label, and the most that it has for another class."""
    at = labels[:, None]
    return rows.gather(1, at).squeeze(1), rows.scatter(1, at, -1.0).amax(1)


SCORES: dict[str, Callable[[Predictions], Tensor]] = {
    score.__name__: score
    for score in (root_margin, margin, log_odds, self_confidence, normalised_margin, noise_of_label)
}


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


def find_threshold(score: str, disagreement: Tensor, predictions: Predictions) -> float:
    """The score above which a label counts as contradicted.

    As many labels lie above it as there are for which the averaged prediction prefers another class. For
    the margins of the prediction and the log-odds that is 0 by definition. For other scores `leave_above` finds it.
    """
    if not predictions.informative:  # nobody is accused
        return float(disagreement.max())
    weighed = predictions.transitions is not None
    if score in ("margin", "log_odds") or (score == "root_margin" and not weighed):
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
