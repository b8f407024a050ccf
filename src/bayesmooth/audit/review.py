"""A review is a designed sample: it says how many labels are wrong, and its decisions teach the ranking of the rest.

The queue mixes the most suspicious labels with labels that are drawn at known probabilities from everywhere, in random
order. From the draws follows the share of wrong labels with a valid interval (`estimate_rate`); from all decisions a
small model learns how this labeller errs (`teach`). report/review.js computes the same numbers in the page.

What chose the constants, and what they are worth, stands in docs/evidence-audit.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.decisions import Decision, apply_decisions
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.audit.table import Audit

Array = NDArray[Any]
BUDGET = 100  # labels in a queue where nobody says how many
FROM_TOP = 1 / 3  # of the queue: the most suspicious labels
EVENLY = 0.5  # of the draws go everywhere alike, the rest where the chance is least certain
INTERCEPT, SLOPE = 0.36, 1.4  # of the log-odds to be wrong, in the score, before any review
SPREAD = (1.0, 0.5)  # standard deviations of these two among data sets
CLASS_VARIANCE = 0.5  # of the effect of the given class, and of the other one
SCALES_OF_NUMBERS = (1.0, 0.6, 1.5, 1.0)  # class size, other class size, class contradicted, ambiguity
LEARNED = (1.2, 0.0, 1.9, 0.5)  # effects of these numbers in other data sets
CONFIDENCE = 0.5  # scale of the confidence that somebody has in the label; its effect is unknown
SCALES = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 4), (1, 4))  # variances of the effects, of places
SCORE_ALONE = 0.5  # probability of the first, under which decisions change no rank
PLACES = 16  # numbers that say where an example lies among all
MOST_LEARNED = 400  # decisions that are learned from
STEPS, TOLERANCE = 50, 1e-10  # of Newton's method
LEAST_DRAWN = 10  # draws from which a share is estimated
MOST_WORTH = 2  # draws of a plain sample that a draw may be worth
NORMAL_95 = 1.959963984540054
CONSTANTS = {
    "intercept": INTERCEPT,
    "slope": SLOPE,
    "spread": SPREAD,
    "learned": LEARNED,
    "classVariance": CLASS_VARIANCE,
    "scales": SCALES,
    "scoreAlone": SCORE_ALONE,
    "mostLearned": MOST_LEARNED,
    "leastDrawn": LEAST_DRAWN,
    "mostWorth": MOST_WORTH,
    "normal": NORMAL_95,
}  # as the page knows them


class Traits(NamedTuple):
    """What the small model sees of every label."""

    score: Array
    """log((1 + d)/(1 − d)) of its disagreement d."""
    numbers: Array
    """(N, F): class sizes and the like, and a confidence where there is one; centred and scaled."""
    given: Array
    rival: Array
    """The likeliest other class."""
    places: Array | None
    """(N, P): unit vectors in 127ths; None where there are no embeddings."""


class Rate(NamedTuple):
    """The share of wrong labels, its 95 % interval, and from how many labels it is told."""

    estimate: float
    low: float
    high: float
    draws: int


@dataclass(frozen=True, eq=False)
class Review:
    """The queue of a review, how it was drawn, and what was decided."""

    traits: Traits
    queue: Array
    """Positions of the examples to look at, in this order."""
    drawn: Array
    """(N,): the probability with which each was drawn; 1 for the most suspicious."""
    wrong: Mapping[int, bool] = field(default_factory=dict)
    """Whether the label was wrong, of the examples that were decided on."""
    asked: bool = False
    """Whether somebody asked for so many: the report then opens with the queue."""

    @cached_property
    def prior(self) -> Array:
        """(N,): the chance that each label is wrong, before any review."""
        return _sigmoid(INTERCEPT + SLOPE * self.traits.score.astype(np.float64))

    @cached_property
    def chance(self) -> Array:
        """(N,): the same after the decisions."""
        return teach(self.traits, self.wrong) if self.wrong else self.prior

    def decide(self, wrong: Mapping[int, bool], drawn: Mapping[int, float] | None = None) -> "Review":
        """The review with these decisions; `drawn` are the probabilities of another queue that they were made in."""
        if not drawn:
            return replace(self, wrong=dict(wrong))
        shares = self.drawn.copy()
        shares[list(drawn)] = list(drawn.values())
        return replace(self, wrong=dict(wrong), drawn=shares, queue=np.array([*drawn]))

    def columns(self) -> dict[str, Array]:
        """What audit.csv says of it: the chance to be wrong, the probability to be drawn, the place in the queue."""
        at = np.full(len(self.drawn), "", object)
        at[self.queue] = np.arange(1, len(self.queue) + 1).astype(str)
        return {"chance": self.chance, "drawn": self.drawn, "queue": at}

    def summarise(self, names: Sequence[str]) -> dict[str, Any]:
        """What audit.json says: the share of wrong labels and that of each class, as far as they can be told."""
        told, given = self.rate(), self.traits.given
        if told is None:
            return {}
        classes = {name: self.rate(given == k) for k, name in enumerate(names)}
        each = {name: rate._asdict() for name, rate in classes.items() if rate is not None}
        return {"error_rate": told._asdict(), "error_rates": each}

    @cached_property
    def control(self) -> Array:
        """(N,): the chances that the share is told from: those of the score alone, after the decisions."""
        return fit_model(self.traits, self.wrong, *SCALES[0])[0]

    def rate(self, members: Array | None = None) -> Rate | None:
        """The share of wrong labels among all, or among some, as for a class; None where too few were drawn.

        Its interval is meant for one look, when the queue is finished: whoever stops as soon as it pleases them
        deceives themselves.
        """
        some = np.ones(len(self.drawn), bool) if members is None else members
        seen = np.array([i for i in self.queue if int(i) in self.wrong and some[i]], np.int64)
        verdicts = np.array([self.wrong[int(i)] for i in seen], np.float64)
        if 0 < len(seen) == np.count_nonzero(some):
            share = float(verdicts.mean())
            return Rate(share, share, share, len(seen))
        if np.count_nonzero(self.drawn[seen] < 1) < LEAST_DRAWN:
            return None
        return estimate_rate(verdicts, self.control[seen], self.drawn[seen], self.control[some])


def design(traits: Traits, budget: int | None = None, seed: int = 0, from_top: float = FROM_TOP) -> Review:
    """A queue of `budget` labels: a share are the most suspicious, the rest drawn, in random order.

    A label is drawn with a probability that is half the same for all, half as √(c(1 − c)), where c is the chance that
    it is wrong: that is where a draw tells most of the share of all (Neyman 1934). One pass over the labels in random
    order draws as many as are asked for (Hartley and Rao 1962).
    """
    count, asked = len(traits.score), budget is not None
    budget = min(BUDGET if budget is None else budget, count)
    if budget < 1:
        raise InputError(f"budget={budget}: must be a number of labels to review, from 1")
    if not 0 <= from_top <= 1:
        raise InputError(f"from_top={from_top}: must be a share of the queue, 0 to 1")
    order = np.argsort(-traits.score, kind="stable")
    top, rest = np.split(order, [round(from_top * budget)])
    drawn, random = np.ones(count), np.random.default_rng(seed)
    review = Review(traits, order[:0], drawn, asked=asked)
    weight = np.sqrt(review.prior * (1 - review.prior))[rest]
    spread = EVENLY / max(len(rest), 1) + (1 - EVENLY) * weight / weight.sum()
    drawn[rest] = share_out(spread, budget - len(top))
    mixed = random.permutation(rest[drawn[rest] < 1])
    ends = np.cumsum(drawn[mixed])
    points = random.random() + np.arange(budget - np.count_nonzero(drawn == 1))
    chosen = mixed[np.minimum(np.searchsorted(ends, points, side="right"), len(mixed) - 1)]
    return replace(review, queue=random.permutation(np.concatenate([np.flatnonzero(drawn == 1), chosen])))


def share_out(weight: Array, total: int) -> Array:
    """Probabilities in proportion to the weights that sum to `total`, none above 1.

    >>> share_out(np.array([8.0, 1.0, 1.0]), 2)
    array([1. , 0.5, 0.5])
    """
    sure = np.zeros(len(weight), bool)
    while True:
        left = weight[~sure].sum()
        factor = (total - sure.sum()) / left if left else 0.0
        over = (factor * weight >= 1 - 1e-12) & ~sure
        if not over.any():
            return np.where(sure, 1.0, factor * weight)
        sure |= over


def estimate_rate(wrong: Array, chance: Array, drawn: Array, everywhere: Array) -> Rate:
    """The share of wrong labels: the mean chance everywhere, moved by how far the labels looked at are from theirs.

    `wrong`, `chance` and `drawn` are of the labels that were looked at: whether each is wrong, what was thought of it
    and the probability with which it was drawn. `everywhere` are the chances of all labels of which the share is told.
    The chances need not be right: the draws correct them (difference estimator; Särndal et al. 1992, 6.3). If only a
    part of the queue was looked at, all probabilities shrink alike.

    The interval is Wilson's, of the plain sample that would have the same variance, as Korn and Graubard (1998) do with
    that of Clopper and Pearson; where Student's reaches lower, that is the lower end.

    >>> estimate_rate(np.arange(40) < 10, np.full(40, 0.25), np.full(40, 0.04), np.full(1000, 0.25))
    Rate(estimate=0.25, low=0.112..., high=0.405..., draws=40)
    """
    draws = int((drawn < 1).sum())
    weight, apart = 1 / drawn, wrong - chance
    part = min(weight.sum() / len(everywhere), 1.0)
    mean = (weight * apart).sum() / weight.sum()
    told = float(everywhere.mean() + mean)
    estimate = min(max(told, 0.0), 1.0)
    spread = ((1 - part * drawn) * (weight * (apart - mean)) ** 2).sum() / weight.sum() ** 2
    variance, t = float(spread) * draws / (draws - 1), student_95(draws - 1)
    inside = 0 < estimate < 1 and variance > 0
    size = min(estimate * (1 - estimate) / variance, MOST_WORTH * draws) if inside else draws
    z = t**2 / size
    half = (estimate * (1 - estimate) * z + z * z / 4) ** 0.5
    low = min((estimate + z / 2 - half) / (1 + z), told - t * variance**0.5)
    return Rate(estimate, max(low, 0.0), min((estimate + z / 2 + half) / (1 + z), 1.0), draws)


def student_95(freedom: int) -> float:
    """The 97.5 % point of Student's t, by the expansion of Cornish and Fisher: 0.1 % off from 9 degrees on.

    >>> student_95(20)
    2.0859...
    """
    z, n = NORMAL_95, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / n**3


def teach(traits: Traits, wrong: Mapping[int, bool]) -> Array:
    """(N,): the chance that each label is wrong, after decisions on some.

    Logistic regression with Gaussian priors: on the score and the numbers, whose priors are what other data sets have;
    on the given and the other class; and, for each given class, on where the example lies. Six such models with more
    or less freedom are averaged by their evidence (Laplace's), one of them free in the score alone: where nothing can
    be learned, the ranking stays.
    """
    scales = [(a, e) for a, e in SCALES if traits.places is not None or not e]
    chances, evidence = zip(*(fit_model(traits, wrong, *scale) for scale in scales), strict=True)
    shares = [SCORE_ALONE] + [(1 - SCORE_ALONE) / (len(scales) - 1)] * (len(scales) - 1)
    weights = np.exp(np.array(evidence) - max(evidence)) * shares
    return np.asarray(weights / weights.sum() @ np.array(chances))


def fit_model(traits: Traits, wrong: Mapping[int, bool], effects: float, places: float) -> tuple[Array, float]:
    """The chances (N,) under one of the models, and its log-evidence."""
    every = sorted(wrong)
    count = min(len(every), MOST_LEARNED)
    seen = np.array([every[k * len(every) // count] for k in range(count)])
    verdicts = np.array([wrong[i] for i in seen.tolist()], np.float64)
    prior = INTERCEPT + SLOPE * traits.score.astype(np.float64)
    if effects:
        prior += traits.numbers[:, : len(LEARNED)] @ np.array(LEARNED)
    pull, evidence = _find_mode(prior[seen], _covary(traits, seen, effects, places), verdicts)
    return _sigmoid(prior + _carry_over(traits, seen, effects, places, pull)), evidence


def _covary(traits: Traits, seen: Array, effects: float, places: float) -> Array:
    """(n, n): how the log-odds of the seen labels vary together under the prior."""
    score, given, rival = (traits.score[seen].astype(np.float64), traits.given[seen], traits.rival[seen])
    same = (given[:, None] == given).astype(np.float64)
    found = SPREAD[0] ** 2 + SPREAD[1] ** 2 * np.outer(score, score)
    if effects:
        numbers = traits.numbers[seen].astype(np.float64)
        found += effects * (numbers @ numbers.T)
        found += effects * CLASS_VARIANCE * (same + (rival[:, None] == rival))
    if places and traits.places is not None:
        at = traits.places[seen] / 127
        found += places * same * (at @ at.T)
    return np.asarray(found)


def _carry_over(traits: Traits, seen: Array, effects: float, places: float, pull: Array) -> Array:
    """(N,): how the log-odds of all labels move; the covariance with the seen ones times their pull."""
    score, given, rival = traits.score.astype(np.float64), traits.given, traits.rival
    moved = SPREAD[0] ** 2 * pull.sum() + SPREAD[1] ** 2 * (pull @ score[seen]) * score
    if effects:
        moved += effects * (traits.numbers @ (pull @ traits.numbers[seen].astype(np.float64)))
        for labels in (given, rival):
            by_class = np.bincount(labels[seen], pull, int(labels.max()) + 1)
            moved += effects * CLASS_VARIANCE * by_class[labels]
    if places and traits.places is not None:
        for k in np.unique(given[seen]):
            of, at = given == k, given[seen] == k
            direction = (pull[at] @ (traits.places[seen[at]] / 127)) * places
            moved[of] += traits.places[of] / 127 @ direction
    return np.asarray(moved)


def _find_mode(prior: Array, covariance: Array, wrong: Array) -> tuple[Array, float]:
    """The pull of each label on the log-odds f = prior + covariance · pull at their mode, and the log-evidence.

    Newton's method in the space of the labels (Rasmussen and Williams 2006, 3.1), halving steps that go down.
    """
    n = len(wrong)

    def value(pull: Array, moved: Array) -> float:
        f = prior + moved
        return float((wrong * f - np.logaddexp(0, f)).sum() - pull @ moved / 2)

    pull, moved = np.zeros(n), np.zeros(n)
    best = value(pull, moved)
    for _ in range(STEPS):
        p = _sigmoid(prior + moved)
        root = np.sqrt(p * (1 - p))
        target = p * (1 - p) * moved + wrong - p
        inner = np.eye(n) + root[:, None] * covariance * root
        full = target - root * np.linalg.solve(inner, root * (covariance @ target))
        step, gain = 1.0, -1.0
        while gain < 0 and step > 1e-3:
            tried = pull + step * (full - pull)
            gain = value(tried, covariance @ tried) - best
            step /= 2
        if gain < TOLERANCE:
            break
        pull, moved, best = tried, covariance @ tried, best + gain
    p = _sigmoid(prior + moved)
    root = np.sqrt(p * (1 - p))
    inner = np.eye(n) + root[:, None] * covariance * root
    return pull, best - float(np.linalg.slogdet(inner)[1]) / 2


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def describe(made: "Audit", components: Array | None = None, confidence: Array | None = None) -> Traits:
    """What the small model sees of an audit: also where the examples lie, by the direction of their principal
    `components` (N, P) from the middle, and the `confidence` that somebody has in each label."""
    given, rival = made.pair_labels()
    classes = int(max(given.max(), rival.max())) + 1
    sizes = np.bincount(given, minlength=classes)
    against = np.bincount(given, made.contradicted, classes) / np.maximum(sizes, 1)
    size = np.log(np.maximum(sizes, 1) * classes / len(given))
    columns = (size[given], size[rival], against[given], made.ambiguity)
    numbers = np.stack(columns, 1) * SCALES_OF_NUMBERS
    if confidence is not None:
        p = np.clip(confidence, 0.001, 0.999)
        numbers = np.column_stack([numbers, CONFIDENCE * np.log((1 - p) / p)])
    numbers = (numbers - numbers.mean(0)).astype(np.float32)
    d = np.clip(made.disagreement.astype(np.float64), -0.999, 0.999)
    score = np.log((1 + d) / (1 - d)).astype(np.float32)
    places = None
    if components is not None:
        length = np.linalg.norm(components, axis=1, keepdims=True)
        tiny = np.finfo(np.float32).tiny
        places = np.round(127 * components / np.maximum(length, tiny)).astype(np.int8)
    return Traits(score, numbers, given, rival, places)


def learn(made: "Audit", decisions: Sequence[Decision]) -> "Audit":
    """The table after decisions: corrected, what was decided last, the rest by its chance to be wrong."""
    assert made.review is not None
    source = made.examples
    corrected = apply_decisions(source, decisions)
    at = source.find([row.id for row in decisions])
    wrong = {at[row.id]: row.wrong for row in decisions if row.wrong is not None}
    drawn = {at[row.id]: float(row.drawn) for row in decisions if row.drawn}
    review = made.review.decide(wrong, drawn)
    decided = np.zeros(len(made), bool)
    decided[list(wrong)] = True
    names = tuple(dict.fromkeys([*made.class_names, *corrected.labels.names]))
    number, texts = {name: k for k, name in enumerate(names)}, corrected.labels.texts()
    given, rival = made.given.copy(), made.suggested
    for i in corrected.relabelled:
        given[i] = number[texts[i]]
    if made.tags is None:
        rival = np.where(review.chance > 0.5, review.traits.rival, made.given)
    own = np.where(decided, 1.0, made.given_probability)
    notes = [*made.summary["notes"], f"{len(wrong):,} labels are decided and not asked again"]
    told = review.summarise(made.class_names if made.tags is None else ())
    return replace(
        made,
        class_names=names,
        examples=replace(source, labels=corrected.labels),
        given=given,
        suggested=np.where(decided, given, rival),
        given_probability=own,
        suggested_probability=np.where(decided, own, made.suggested_probability),
        disagreement=np.where(decided, -1.0, 2 * review.chance - 1),
        disagreement_threshold=0.0,
        review=review,
        summary={**made.summary, "notes": notes, **told},
    )
