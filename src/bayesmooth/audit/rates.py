"""How many labels are wrong: what a model can tell of it, and what a person's decisions tell."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut
from bayesmooth.audit.transitions import select_confident
from bayesmooth.errors import InputError

NORMAL_95 = 1.96
CONFIDENT = 0.1  # share of the predictions of each class
ENOUGH = 20  # decisions from which a rate is told, and that stand for one stretch of the ranking


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


class ReviewedRate(NamedTuple):
    """The share of wrong labels by a person's decisions: a 95 % interval, and an estimate where all parts are known."""

    estimate: float | None
    low: float
    high: float


def estimate_reviewed_rate(disagreement: Any, wrong: Any) -> ReviewedRate:
    """From decisions: `wrong` is 1 where a label was judged wrong, 0 where right, and NaN where it was not judged.

    Along the ranking every 20 decisions stand for the examples between them: of N_h with n_h judged, w_h of them wrong,
    w_h + (N_h − n_h) p_h are wrong, p_h = (w_h + ½)/(n_h + 1). What lies below the last decision counts as the last
    stretch if it is no longer than that. Else it is unknown: from none of it may be wrong up to as many as the last 20
    decisions allow, for wrong labels become rarer down the ranking. A review from the top gives a wide interval, a
    review of some examples of all ranks a narrow one.

    >>> score = np.linspace(1, 0, 1000)
    >>> judged = np.where(np.arange(1000) % 10 == 0, score > 0.9, np.nan)
    >>> [round(x, 2) for x in estimate_reviewed_rate(score, judged)]
    [0.11, 0.07, 0.16]
    """
    order = np.argsort(-np.asarray(disagreement, dtype=np.float64), kind="stable")
    judged = np.asarray(wrong, dtype=np.float64)[order]
    places = np.flatnonzero(~np.isnan(judged))
    if len(places) < ENOUGH:
        raise InputError(f"{len(places)} decisions: a rate needs {ENOUGH} at least")
    start = middle = variance = 0.0
    for block in np.array_split(places, len(places) // ENOUGH):
        size, hits = block[-1] + 1 - start, judged[block].sum()
        share, rest = (hits + 0.5) / (len(block) + 1), size - len(block)
        tail = len(judged) - block[-1] - 1
        if block[-1] == places[-1] and tail <= size:
            rest, tail = rest + tail, 0
        middle += hits + rest * share
        variance += share * (1 - share) * (rest**2 / len(block) + rest)
        start = block[-1] + 1
    above = tail * wilson(hits / len(block), len(block))[1]
    half = NORMAL_95 * variance**0.5
    low, high = (max(middle - half, np.nansum(judged)), min(middle + half + above, len(judged)))
    estimate = None if tail else float(middle / len(judged))
    return ReviewedRate(estimate, float(low / len(judged)), float(high / len(judged)))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in so many (Wilson 1927)."""
    z = NORMAL_95**2 / count
    half = NORMAL_95 * (share * (1 - share) / count + z / (4 * count)) ** 0.5
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)
