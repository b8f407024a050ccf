"""A review is a designed sample: it gives the share of wrong labels, and its decisions teach the ranking of the rest.

Every label may come into the queue, with a known probability that rises with its chance to be wrong. From the decisions
a small model learns the errors of this labeller (`teach`); it and the probabilities give the share of wrong labels
and a valid interval (`estimate_rate`). report/review.js computes the same numbers in the page.

The choice of the constants, and their effect, are in docs/evidence-audit.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayesmooth.audit.decisions import Decision, apply_decisions
from bayesmooth.audit.predictions import NORMAL_95
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.audit.table import Audit

Array = NDArray[Any]
BUDGET = 100  # labels in a queue by default
EVENLY = 0.5  # of the draws go everywhere alike, the rest where labels are likely wrong
INTERCEPT, SLOPE = 0.36, 1.4  # of the log-odds to be wrong, in the score, before any review
SPREAD = (1.0, 0.5)  # standard deviations of these two among data sets
SCALES_OF_NUMBERS = (1.0, 1.5, 1.0)  # size of the class, share of it that is contradicted, ambiguity
LEARNED = (1.2, 1.7, 0.2)  # effects of these numbers in other data sets
OF_CLASS, OF_PLACE = 0.7, 2.0  # standard deviations of the effects of a class, and of places in a class
MODELS = ((False, False), (True, False), (False, True), (True, True))  # whether numbers and classes, and places count
SCORE_ALONE = 0.5  # probability of the first, under which decisions change no rank
PLACES = 16  # coordinates of an example among all
MOST_LEARNED = 400  # decisions that are learned from
STEPS, TOLERANCE = 50, 1e-10  # of Newton's method
LEAST_DRAWN = 10  # draws from which a share is estimated
OF_THE_PAGE = (
    "INTERCEPT", "SLOPE", "SPREAD", "LEARNED", "OF_CLASS", "OF_PLACE", "MODELS", "SCORE_ALONE", "MOST_LEARNED",
    "LEAST_DRAWN", "NORMAL_95",
)  # fmt: skip
"""The constants that the page computes with too."""


class Traits(NamedTuple):
    """The inputs of the small model, for every label."""

    score: Array
    """log((1 + d)/(1 − d)) of its disagreement d."""
    numbers: Array
    """(N, F): size of the class and the like; centred and scaled."""
    given: Array
    rival: Array
    """The likeliest other class."""
    places: Array | None
    """(N, P): unit vectors in 127ths; None where there are no embeddings."""


class Taught(NamedTuple):
    """The chance (N,) that each label is wrong, after decisions on some."""

    chance: Array
    left_out: Array
    """The same of a label that was decided on, without its own decision."""


class Rate(NamedTuple):
    """The share of wrong labels, its 95 % interval, and the number of labels that it is told from."""

    estimate: float
    low: float
    high: float
    draws: int


@dataclass(frozen=True, eq=False)
class Review:
    """The queue of a review, the probabilities of its draw, and the decisions."""

    traits: Traits
    queue: Array
    """Positions of the examples to look at, in this order."""
    drawn: Array
    """(N,): the probability with which each came into the queue."""
    wrong: Mapping[int, bool] = field(default_factory=dict)
    """Whether the label was wrong, of the examples that were decided on."""
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    """The rows of the file that they came from."""
    asked: bool = False
    """Whether somebody asked for so many: the report then opens with the queue."""

    @cached_property
    def taught(self) -> Taught:
        """The chances after the decisions."""
        return teach(self.traits, self.wrong)

    @property
    def chance(self) -> Array:
        """(N,): the chance that each label is wrong: before any decision by the score, then as they teach it."""
        return self.taught.chance if self.wrong else predict_chance(self.traits)

    @cached_property
    def control(self) -> Taught:
        """The chances after the decisions on the queue alone: the share is told by these; later ones do not move it."""
        queued = {int(i): self.wrong[int(i)] for i in self.queue if int(i) in self.wrong}
        return self.taught if len(queued) == len(self.wrong) else teach(self.traits, queued)

    def decide(self, wrong: Mapping[int, bool], drawn: Mapping[int, float] | None = None) -> "Review":
        """The review with these decisions; `drawn` are the probabilities of another queue that they were made in."""
        if not drawn:
            return replace(self, wrong=dict(wrong))
        shares = self.drawn.copy()
        shares[list(drawn)] = list(drawn.values())
        return replace(self, wrong=dict(wrong), drawn=shares, queue=np.array([*drawn]))

    def summarise(self, names: Sequence[str]) -> dict[str, Any]:
        """The entries of audit.json: the share of wrong labels and that of each class, as far as they can be told."""
        told, given = self.rate(), self.traits.given
        if told is None:
            return {}
        classes = {name: self.rate(given == k) for k, name in enumerate(names)}
        rates = {name: rate._asdict() for name, rate in classes.items() if rate is not None}
        return {"error_rate": told._asdict(), "error_rates": rates}

    def rate(self, members: Array | None = None) -> Rate | None:
        """The share of wrong labels among all, or among some, as for a class; None where too few were drawn.

        Its interval is meant for one look, at a moment that was fixed before: when the queue is finished. A look after
        every decision, and a stop when it pleases, misleads more often (docs/evidence-audit.md has the figures).
        """
        some = np.ones(len(self.drawn), bool) if members is None else members
        seen = np.array([i for i in self.queue if int(i) in self.wrong and some[i]], np.int64)
        verdicts = np.array([self.wrong[int(i)] for i in seen], np.float64)
        if 0 < len(seen) == np.count_nonzero(some):
            share = float(verdicts.mean())
            return Rate(share, share, share, len(seen))
        if np.count_nonzero(self.drawn[seen] < 1) < LEAST_DRAWN:
            return None
        return estimate_rate(verdicts, self.control.left_out[seen], self.drawn[seen], self.control.chance[some])


def design(traits: Traits, budget: int | None = None, seed: int = 0) -> Review:
    """A queue of `budget` labels in random order, drawn from all.

    A label is drawn with a probability that is half the same for all, half as the chance that it is wrong. One pass
    over the labels in random order draws as many as are asked for (Hartley and Rao 1962).
    """
    count, asked = len(traits.score), budget is not None
    budget = min(BUDGET if budget is None else budget, count)
    if budget < 1:
        raise InputError(f"budget={budget}: must be a number of labels to review, from 1")
    chance, random = predict_chance(traits), np.random.default_rng(seed)
    drawn = share_out(EVENLY / count + (1 - EVENLY) * chance / chance.sum(), budget)
    mixed, sure = random.permutation(np.flatnonzero(drawn < 1)), np.flatnonzero(drawn == 1)
    points = random.random() + np.arange(budget - len(sure))
    at = np.searchsorted(np.cumsum(drawn[mixed]), points, side="right")
    chosen = mixed[np.minimum(at, len(mixed) - 1)]
    return Review(traits, random.permutation(np.concatenate([sure, chosen])), drawn, asked=asked)


def predict_chance(traits: Traits) -> Array:
    """(N,): the chance that each label is wrong, by its score, as in other data sets."""
    return np.asarray(1 / (1 + np.exp(-(INTERCEPT + SLOPE * traits.score.astype(np.float64)))))


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
    """The share of wrong labels: the mean chance everywhere, moved by the mean error of the chances of reviewed labels.

    `wrong`, `chance` and `drawn` are of the labels that were looked at: whether each is wrong, its chance to be wrong
    without this decision, and the probability with which it was drawn. `everywhere` are the chances of all labels of
    which the share is told. The chances need not be right: the draws correct them (difference estimator; Särndal et al.
    1992, 6.3; prediction-powered inference). If only a part of the queue was looked at, all probabilities shrink alike.

    Few wrong labels show too little variance: where the chances expect more, it is halfway between. The interval is
    Wilson's, of the plain sample that would have the same variance, as Korn and Graubard (1998) do with that of Clopper
    and Pearson; where Student's reaches lower, that is the lower end.

    >>> estimate_rate(np.arange(40) < 10, np.full(40, 0.25), np.full(40, 0.04), np.full(1000, 0.25))
    Rate(estimate=0.25, low=0.112..., high=0.405..., draws=40)
    """
    draws = int((drawn < 1).sum())
    weight, apart = 1 / drawn, wrong - chance
    part = min(weight.sum() / len(everywhere), 1.0)
    mean = (weight * apart).sum() / weight.sum()
    told = float(everywhere.mean() + mean)
    estimate = min(max(told, 0.0), 1.0)
    shares = (1 - part * drawn) * (weight / weight.sum()) ** 2 * draws / (draws - 1)
    seen, expected = float(shares @ (apart - mean) ** 2), float(shares @ (chance * (1 - chance)))
    variance, t = max(seen, (seen + expected) / 2), student_95(draws - 1)
    inside = 0 < estimate < 1 and variance > 0
    z = t**2 * (variance / (estimate * (1 - estimate)) if inside else 1 / draws)
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


def teach(traits: Traits, wrong: Mapping[int, bool]) -> Taught:
    """The chance that each label is wrong, after decisions on some.

    Logistic regression with Gaussian priors: on the score and the numbers, whose priors come from other data sets;
    on the given and the other class; and, for each given class, on where the example lies. Four such models are
    averaged by their evidence (Laplace's), one of them free in the score alone: where nothing can be learned, the
    ranking stays.
    """
    every = sorted(wrong)
    count = min(len(every), MOST_LEARNED)
    seen = np.array([every[k * len(every) // count] for k in range(count)])
    verdicts = np.array([wrong[i] for i in seen.tolist()], np.float64)
    models = [(effects, places) for effects, places in MODELS if traits.places is not None or not places]
    fits = [_fit_model(traits, seen, verdicts, *model) for model in models]
    chances, left_out, evidence = (np.array(part) for part in zip(*fits, strict=True))
    shares = [SCORE_ALONE] + [(1 - SCORE_ALONE) / (len(models) - 1)] * (len(models) - 1)
    weights = np.exp(evidence - evidence.max()) * shares
    chance = weights / weights.sum() @ chances
    without = chance.copy()
    without[seen] = weights / weights.sum() @ left_out
    return Taught(chance, without)


def _fit_model(traits: Traits, seen: Array, wrong: Array, effects: bool, places: bool) -> tuple[Array, Array, float]:
    """The chances (N,) under one of the models, those of the seen labels without their own decision, the evidence."""
    prior = INTERCEPT + SLOPE * traits.score.astype(np.float64)
    if effects:
        prior += traits.numbers @ np.array(LEARNED)
    columns, values = _list_features(traits, effects, places)
    used, at = np.unique(columns[seen], return_inverse=True)
    features = np.zeros((len(seen), len(used)))
    np.put_along_axis(features, at.reshape(len(seen), -1), values[seen], 1)
    pull, left_out, evidence = _find_mode(prior[seen], features @ features.T, wrong)
    effect = np.zeros(columns.max() + 1)
    effect[used] = pull @ features
    return _sigmoid(prior + (values * effect[columns]).sum(1)), _sigmoid(left_out), evidence


def _list_features(traits: Traits, effects: bool, places: bool) -> tuple[Array, Array]:
    """(N, M): the columns of the features that are not 0, and their values; each has an effect ~ N(0, 1)."""
    given, rival = traits.given.astype(np.int64), traits.rival.astype(np.int64)
    count, classes = len(given), int(max(given.max(), rival.max())) + 1
    columns = [np.tile([0, 1], (count, 1))]
    values = [np.column_stack([np.full(count, SPREAD[0]), SPREAD[1] * traits.score.astype(np.float64)])]
    if effects:
        by_class = np.column_stack([2 + given, 2 + classes + rival])
        numbers = 2 + 2 * classes + np.arange(traits.numbers.shape[1])
        columns += [by_class, np.tile(numbers, (count, 1))]
        values += [np.full((count, 2), OF_CLASS), traits.numbers.astype(np.float64)]
    if places and traits.places is not None:
        start, size = 2 + 2 * classes + traits.numbers.shape[1], traits.places.shape[1]
        columns += [start + size * given[:, None] + np.arange(size)]
        values += [OF_PLACE / 127 * traits.places]
    return np.hstack(columns), np.hstack(values)


def _find_mode(prior: Array, covariance: Array, wrong: Array) -> tuple[Array, Array, float]:
    """The pull of each label on the log-odds f = prior + covariance · pull at their mode, f of each label without its
    own decision, and the log-evidence.

    Newton's method in the space of the labels (Rasmussen and Williams 2006, 3.1), halving steps that go down. Taking a
    label's own pull back is their equation 5.12, at the mode.
    """
    n = len(wrong)

    def value(pull: Array, moved: Array) -> float:
        f = prior + moved
        return float((wrong * f - np.logaddexp(0, f)).sum() - pull @ moved / 2)

    def weigh(moved: Array) -> tuple[Array, Array, Array]:
        p = _sigmoid(prior + moved)
        root = np.sqrt(np.maximum(p * (1 - p), 1e-12))
        return p, root, np.eye(n) + root[:, None] * covariance * root

    pull, moved = np.zeros(n), np.zeros(n)
    best = value(pull, moved)
    for _ in range(STEPS):
        p, root, inner = weigh(moved)
        target = root**2 * moved + wrong - p
        full = target - root * np.linalg.solve(inner, root * (covariance @ target))
        step, gain = 1.0, -1.0
        while gain < 0 and step > 1e-3:
            tried = pull + step * (full - pull)
            gain = value(tried, covariance @ tried) - best
            step /= 2
        if gain < TOLERANCE:
            break
        pull, moved, best = tried, covariance @ tried, best + gain
    _, root, inner = weigh(moved)
    left_out = prior + moved - pull / root**2 * (1 / np.linalg.inv(inner).diagonal() - 1)
    return pull, left_out, best - float(np.linalg.slogdet(inner)[1]) / 2


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def describe(audit: "Audit", components: Array | None = None) -> Traits:
    """The inputs of the small model, from an audit and the direction of the examples' principal `components` (N, P)
    from the middle."""
    given, rival = audit.pair_labels()
    classes = int(max(given.max(), rival.max())) + 1
    sizes = np.bincount(given, minlength=classes)
    against = np.bincount(given, audit.contradicted, classes) / np.maximum(sizes, 1)
    size = np.log(np.maximum(sizes, 1) * classes / len(given))
    numbers = np.stack([size[given], against[given], audit.ambiguity], 1) * SCALES_OF_NUMBERS
    numbers = (numbers - numbers.mean(0)).astype(np.float32)
    d = np.clip(audit.disagreement.astype(np.float64), -0.999, 0.999)
    score = np.log((1 + d) / (1 - d)).astype(np.float32)
    places = None
    if components is not None:
        length = np.linalg.norm(components, axis=1, keepdims=True)
        tiny = np.finfo(np.float32).tiny
        places = np.round(127 * components / np.maximum(length, tiny)).astype(np.int8)
    return Traits(score, numbers, given, rival, places)


def learn(audit: "Audit", decisions: Sequence[Decision]) -> "Audit":
    """The table after decisions: corrected, the decided labels last, the others by their chance to be wrong."""
    assert audit.review is not None
    source = audit.examples
    corrected = apply_decisions(source, decisions)
    at = source.find([row.id for row in decisions])
    wrong = {at[row.id]: row.wrong for row in decisions if row.wrong is not None}
    drawn = {at[row.id]: float(row.drawn) for row in decisions if row.drawn}
    review = audit.review.decide(wrong, drawn)
    decided = np.zeros(len(audit), bool)
    decided[list(wrong)] = True
    names = tuple(dict.fromkeys([*audit.class_names, *corrected.labels.names]))
    number, texts = {name: k for k, name in enumerate(names)}, corrected.labels.texts()
    given, rival = audit.given.copy(), audit.suggested
    for i in corrected.relabelled:
        given[i] = number[texts[i]]
    suggested_probability = audit.suggested_probability
    if audit.probabilities is not None:
        rival = np.where(review.chance > 0.5, review.traits.rival, audit.given)
        suggested_probability = audit.probabilities[np.arange(len(audit)), rival]
    given_probability = np.where(decided, 1.0, audit.given_probability)
    notes = [*audit.summary["notes"], f"{len(wrong):,} labels are decided and not asked again"]
    told = review.summarise(audit.class_names if audit.tags is None else ()) if drawn else {}  # of a whole queue
    return replace(
        audit,
        class_names=names,
        examples=replace(source, labels=corrected.labels),
        given=given,
        suggested=np.where(decided, given, rival),
        given_probability=given_probability,
        suggested_probability=np.where(decided, given_probability, suggested_probability),
        disagreement=np.where(decided, -1.0, 2 * review.chance - 1),
        disagreement_threshold=0.0,
        tags=audit.tags and audit.tags._replace(given=corrected.labels.table().numpy()),
        review=replace(review, decisions={at[row.id]: row for row in decisions}),
        summary={**audit.summary, "notes": notes, **told},
    )
