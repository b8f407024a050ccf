"""Two axes, never mixed up: ambiguity (the size of ε, blind to the label) and disagreement with the label.

Every disagreement score: higher = the label is more likely wrong.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayesmooth.audit.evidence import Evidence

QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
AXES = ("Ambiguity (size of ε)", "Disagreement with the label")
SAME = 1e-6  # apart in ambiguity: what rounding alone does


def margin(evidence: Evidence) -> Tensor:
    """max_{k≠y} p_k − p_y of the averaged prediction, −1 … 1: above 0 it prefers another class."""
    return _rival(evidence.probabilities, evidence.labels) - _own(evidence)


def self_confidence(evidence: Evidence) -> Tensor:
    """1 − p_y, 0 … 1: the averaged probability that the label is wrong."""
    return 1 - _own(evidence)


def log_odds(evidence: Evidence) -> Tensor:
    """log max_{k≠y} p_k − log p_y: above 0 another class is preferred; still tells the very certain apart."""
    tiny = torch.finfo(torch.float32).tiny
    rival = _rival(evidence.probabilities, evidence.labels)
    return rival.clamp_min(tiny).log() - _own(evidence).clamp_min(tiny).log()


def root_margin(evidence: Evidence) -> Tensor:
    """√max_{k≠y} p_k − √p_y, −1 … 1, half-way between margin and log-odds: above 0 it prefers another class.

    The default. The margin is best where labels move to one similar class, the log-odds where they move
    anywhere; this is near the better of the two on both, and best on average (docs/audit.md).
    """
    rival = _rival(evidence.probabilities, evidence.labels)
    return rival.clamp_min(0).sqrt() - _own(evidence).clamp_min(0).sqrt()


def normalised_margin(evidence: Evidence) -> Tensor:
    """The margin less its mean over the examples of the class: fair to classes that are hard as a whole."""
    values, labels = margin(evidence), evidence.labels
    counts = torch.bincount(labels, minlength=evidence.probabilities.shape[1]).clamp_min(1)
    means = torch.bincount(labels, values, len(counts)) / counts
    return (values - means[labels]).to(values.dtype)


def noise_of_label(evidence: Evidence) -> Tensor:
    """−ε_y: averaging takes certainty from what the mean prefers, so it is positive for other labels."""
    return -evidence.signed_noise().gather(1, evidence.labels[:, None]).squeeze(1)


SCORES: dict[str, Callable[[Evidence], Tensor]] = {
    "root_margin": root_margin,
    "margin": margin,
    "log_odds": log_odds,
    "self_confidence": self_confidence,
    "normalised_margin": normalised_margin,
    "noise_of_label": noise_of_label,
}


def threshold(score: str, disagreement: Tensor, evidence: Evidence) -> float:
    """Above it a label counts as contradicted: where the averaged prediction prefers another class.

    For the margins and the log-odds that is 0 by definition. Other scores have no such point: theirs leaves
    the same number of examples above, and with the last of them all that tie with it.
    """
    if score in ("root_margin", "margin", "log_odds"):
        return 0.0
    contradicted = int((margin(evidence) > 0).sum())
    last = float(disagreement.topk(contradicted).values[-1]) if contradicted else float("inf")
    below = disagreement[disagreement < last]
    return float(below.max()) if len(below) else last - 1.0


def ambiguity_threshold(ambiguity: Tensor) -> float:
    """Otsu's threshold: the cut with the largest variance between the two sides; from here on it is high.

    Where all values are the same there are no two sides, and it lies above them.
    """
    values = ambiguity.double().sort().values
    if values[-1] - values[0] < SAME:
        return float(values[-1]) + 1.0
    count = torch.arange(1, len(values), dtype=torch.float64)
    below = values.cumsum(0)[:-1]
    above = values.sum() - below
    rest = len(values) - count
    between = count * rest * (below / count - above / rest).square()
    return float(values[int(between.argmax()) + 1])


def quadrants(disagreement: Tensor, ambiguity: Tensor, cuts: tuple[float, float]) -> Tensor:
    """Positions in `QUADRANTS`: contradicted and clear-cut is mislabelled, contradicted and ambiguous hard.

    >>> quadrants(torch.tensor([-1.0, -1.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]), (0.0, 0.5))
    tensor([0, 1, 2, 3])
    """
    against, unclear = disagreement > cuts[0], ambiguity >= cuts[1]
    return MISLABELLED * against.long() + AMBIGUOUS * unclear.long()  # both: HARD


def _own(evidence: Evidence) -> Tensor:
    return evidence.probabilities.gather(1, evidence.labels[:, None]).squeeze(1)


def _rival(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The largest probability of a class other than the label's."""
    return probabilities.scatter(1, labels[:, None], -1.0).amax(1)
