"""Predictions from embeddings, by a Bayesian softmax regression and the nearest neighbours.

The regression sees principal components. It predicts what its posterior does on average, p̄, and with which label noise
ε. The neighbours vote, none for itself or for its copies. Together they predict p = w·p̄ + (1 − w)·p_knn, with the w
under which the given labels, each left out, are likeliest: no clean label is needed. How true classes turn into given
ones is learned too and taken back (`predictions`).

Both learn from a sample of the rows, then predict all of them piece by piece: these need not fit in memory, and a
cluster may work on the pieces.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.neighbours import Distinct, Keys, hash_rows, unit_rows
from bayesmooth.audit.predictions import (
    LeftOut,
    Predictions,
    learn_transitions,
    predict_left_out,
    predict_true_classes,
    rank_in_class,
)
from bayesmooth.data import Source
from bayesmooth.errors import InputError
from bayesmooth.executors import map_pieces
from bayesmooth.progress import bar, track
from bayesmooth.theory.eigen import decompose_rows
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.links import softmax_moments

SAMPLE = 100_000  # rows that are learned from: more hardly change what is learned
ROWS_PER_CLASS = 100  # that are in the sample at least, if the class has so many
ROWS_AT_ONCE = 1 << 13
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow
DIGITS = 1e9  # to which distances are rounded before rows are sorted by them
MAX_DIMS = 384  # principal components that are kept at most
MIN_DIMS = 128  # and that are kept however many rows and classes there are
NEGLIGIBLE = 1e-6  # of the largest variance: less is lost in products of float32
WORK = 1.2e8  # examples × classes × components from which on fewer of these are kept
TOLERANCE = 0.03  # posterior standard deviations: finer steps do not change the ranking
DRAWS = 8  # of every example's logits, while fitting
SAMPLES = 64  # quasi-random points over which predictions are averaged
VOTERS = 50  # neighbours that vote
MOST_LABELS = 32  # different labels of equal rows that count
TEMPERATURES = (0.05, 0.1, 0.3)  # of the vote: the lower, the more the nearest count
BACKGROUND = 0.02  # of every vote is spread evenly, so that no class has probability 0
FOREIGN = 0.5  # weight of another model's predictions: labels that are wrong by a rule would give it none
WEIGHED_ON = 1_000  # rows on which the weight w is chosen
BEYOND_CHANCE = 3.0  # standard errors by which a prediction must beat the shares of the classes
FOLDS = 5  # of the fits by which is told whether the embeddings are informative


def predict_embedded(source: Source, leave_out: bool = False, predicted: Tensor | None = None) -> Predictions:
    """Predictions of all labels, by the fit to all of them, or with each one left out.

    `predicted` (N, K) are somebody else's, who never saw the labels: one more predictor.

    The rows are sorted by their content first, so that another order of the rows changes nothing.
    """
    chosen, classes = choose_rows(source), source.num_classes
    rows = torch.cat([rows for _, rows in read_pieces(source, chosen, "reading")])
    order = sort_by_content(rows, source.labels[chosen])
    rows, chosen = rows[order], chosen[order]
    learned = source.labels[chosen]
    predictors = Predictors.of(rows, learned, classes)
    whole = len(chosen) == len(source)
    every = chosen if whole else torch.arange(len(source), device="cpu")
    labels = source.labels[every]
    pieces = (
        (rows, source.labels[at], None if predicted is None else predicted[at])
        for at, rows in read_pieces(source, every, "scoring")
    )
    parts = map_pieces(partial(predictors.predict, leave_out), pieces)
    made = RowPredictions(*map(torch.cat, zip(*parts, strict=True)))
    informative = beats_class_shares(made.voted, labels)
    if not informative:
        own = predict_folds(predictors.projection.features(rows), learned, classes)
        informative = beats_class_shares(own, learned)
    transitions = learn_transitions(made.left_out, labels)
    without = shown = predict_true_classes(made.left_out, transitions)
    if not leave_out:
        shown = predict_true_classes(made.seen, transitions)
    voters = min(VOTERS, len(predictors.voters.hashes) - 1)
    others = "" if predicted is None else ", with the predictions of another model"
    way = ("leave-one-out" if leave_out else "in-sample") + others
    mixed = Distinct.of(made.hashes).mean(labels.double()) != labels
    predictions = Predictions(
        labels,
        shown,
        made.noise,
        f"variational softmax regression and {voters} neighbours, {way}",
        {
            "components": predictors.projection.axes.shape[1],
            "fitted_to": len(chosen),
            "prior_precision": predictors.fit.prior_precision,
            "fit": predictors.fit.message,
            "weight_of_posterior": round(predictors.weight, 3),
            "weight_of_neighbours": round(1 - predictors.weight, 3),
        },
        without_label=LeftOut.of(without, labels, transitions),
        transitions=transitions,
        informative=informative,
        mixed=mixed if predictors.voters.copies else None,
    )
    return predictions.take(every.argsort())


def sort_by_content(rows: Tensor, labels: Tensor) -> Tensor:
    """Positions by distance from the mean, which no turn of the rows changes; then by hash, equal rows by label."""
    distance = torch.linalg.vector_norm(rows.double() - rows.double().mean(0), dim=1)
    rounded = (distance / distance.max().clamp_min(LARGEST**-1) * DIGITS).round()
    return torch.from_numpy(np.lexsort((labels, hash_rows(rows), rounded)))


def choose_rows(source: Source) -> Tensor:
    """Positions of all source, or of `SAMPLE` and at least `ROWS_PER_CLASS` of every class, by the rows' hashes."""
    every = torch.arange(len(source), device="cpu")
    if len(source) <= SAMPLE:
        return every
    hashes = [hash_rows(rows) for _, rows in read_pieces(source, every, "reading")]
    order = torch.from_numpy(np.lexsort((source.labels.numbers, torch.cat(hashes))))
    chosen = rank_in_class(order, source.labels.numbers) < ROWS_PER_CLASS
    chosen[order[:SAMPLE]] = True
    return chosen.nonzero().flatten()


def read_pieces(
    source: Source, index: Tensor, description: str, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and rows, piece by piece, checked."""
    parts = torch.split(index, size or ROWS_AT_ONCE)
    for at in track(parts, description=description, quiet=len(parts) < 2):
        rows = source.batch(at).flatten(1)
        broken = ~(rows.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{source.name}: row {row} has entries that are NaN, infinite or beyond ±{LARGEST:.0e}; "
                "must be ordinary numbers: drop such rows, or scale the embeddings"
            )
        yield at, rows


class Projection(NamedTuple):
    """Centred, turned to principal components, scaled to unit mean square norm, and a column of ones.

    The prior is isotropic, so turning changes nothing but what is cut off. A diagonal covariance keeps what matters, as
    principal components are nearly uncorrelated in every class.
    """

    mean: Tensor
    axes: Tensor

    @classmethod
    def of(cls, rows: Tensor, max_dims: int = MAX_DIMS) -> "Projection":
        """The projection that suits these rows.

        An axis is kept where the rows spread along it by more than float32 can tell from rounding.
        """
        low, high = rows.amin(0), rows.amax(0)
        varies = high > low
        if not bool(varies.any()):
            raise InputError("all embeddings are the same: nothing to learn from")
        mean, scale = rows.mean(0), (high - low).max()
        # Scaled first, so that no square is lost below float32's smallest number.
        power, turned = decompose_rows(((rows - mean) / scale)[:, varies])
        rounding = torch.finfo(torch.float32).eps * float(rows.abs().max() / scale)
        least = max(NEGLIGIBLE * float(power[-1]), int(varies.sum()) * rounding**2)
        useful = max(int((power > least).sum()), 1)
        kept = turned[:, -min(max_dims, useful) :].flip(1)
        total = float(power.clamp_min(0).sum()) ** 0.5
        axes = rows.new_zeros(rows.shape[1], kept.shape[1])
        axes[varies] = (kept / (total * float(scale))).to(axes.dtype)
        return cls(mean, axes)

    def features(self, rows: Tensor) -> Tensor:
        """What the regression sees of these rows."""
        return torch.cat([(rows - self.mean) @ self.axes, rows.new_ones(len(rows), 1)], 1)


def count_labels(distinct: Distinct, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The labels of each group of equal rows (U, P), the most frequent first, and how often each was given."""
    pairs, counts = torch.unique(distinct.group * classes + labels, return_counts=True)
    group, label = pairs // classes, pairs % classes
    rank = rank_in_class(counts.argsort(descending=True, stable=True), group)
    width = min(int(rank.max()) + 1, MOST_LABELS)
    kept = rank < width
    table = label.new_zeros(len(distinct.first), width)
    times = table.float()
    table[group[kept], rank[kept]] = label[kept]
    times[group[kept], rank[kept]] = counts[kept].float()
    return table, times


class Neighbours(NamedTuple):
    """The nearest distinct rows of each of N rows, nearest first."""

    voters: Tensor
    similarity: Tensor
    own: Tensor
    """Which distinct row each of them equals (N,); −1 where none."""


class Voters(NamedTuple):
    """Distinct rows that vote, and the labels that were given to the rows equal to each.

    A copy is no independent voter: equal rows have one vote together, and none for themselves. Where most rows have
    an equal, as in a table of a few categories, they are no copies: each has its vote, and none for itself.
    """

    keys: Keys
    hashes: Tensor
    """Of the keys, ascending."""
    labels: Tensor
    """(U, P): the different labels of equal rows."""
    counts: Tensor
    """How often each was given."""
    copies: bool

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> "Voters":
        """The rows vote for their labels."""
        hashes = hash_rows(rows)
        distinct = Distinct.of(hashes)
        first = distinct.first
        keys = Keys(unit_rows(rows[first]), len(rows))
        table = count_labels(distinct, labels, classes)
        return cls(keys, hashes[first], *table, 2 * len(first) >= len(rows))

    def relabel(self, distinct: Distinct, labels: Tensor, classes: int) -> "Voters":
        """The same voters with other labels."""
        said, times = count_labels(distinct, labels, classes)
        return self._replace(labels=said, counts=times)

    def find(self, rows: Tensor) -> Neighbours:
        """The nearest voters of each row."""
        hashes = hash_rows(rows)
        place = torch.searchsorted(self.hashes, hashes).clamp_max(len(self.hashes) - 1)
        own = torch.where(self.hashes[place] == hashes, place, -1)
        count = min(VOTERS + 1, len(self.hashes))
        return Neighbours(*self.keys.search(unit_rows(rows), count), own)

    def vote(self, found: Neighbours, labels: Tensor, temperature: float, classes: int) -> Tensor:
        """Their votes (N, K), each label left out of its own."""
        times, said = self.counts[found.voters], self.labels[found.voters]
        mine = (found.voters == found.own[:, None])[:, :, None]
        if self.copies:
            times = torch.where(mine, 0, times / times.sum(2, keepdim=True))
        else:
            times = times - (mine & (said == labels[:, None, None]) & (times > 0)).float()
        weight = (found.similarity / temperature)[:, :, None] + times.log()
        share = torch.softmax(weight.flatten(1), 1) * (1 - BACKGROUND)
        votes = share.new_full((len(labels), classes), BACKGROUND / classes)
        return votes.scatter_add_(1, said.flatten(1), share)


class RowPredictions(NamedTuple):
    """Of the given labels of some rows."""

    seen: Tensor
    """By a posterior that has seen them; empty where only `left_out` is wanted."""
    noise: Tensor
    left_out: Tensor
    """With the pull of every label on the posterior taken back."""
    voted: Tensor
    """The neighbours' share for the given label (N,)."""
    hashes: Tensor


@dataclass(frozen=True)
class Predictors:
    """The posterior of a softmax regression and the neighbours, and how much each of them counts."""

    projection: Projection
    fit: GLMFit
    voters: Voters
    temperature: float = TEMPERATURES[0]
    weight: float = 1.0
    """w, of the posterior; the neighbours have 1 − w."""

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> "Predictors":
        """Those that learned from these rows, weighed by how likely they find the labels of some, each left out."""
        affordable = int(WORK / (len(rows) * classes))
        dims = min(max(affordable, MIN_DIMS), MAX_DIMS)
        projection = Projection.of(rows, dims)
        fit = fit_softmax(projection.features(rows), labels, classes)
        made = cls(projection, fit, Voters.of(rows, labels, classes))
        count, last = min(WEIGHED_ON, len(rows)), len(rows) - 1
        some = torch.linspace(0, last, count, dtype=torch.float32, device="cpu").long()
        given = labels[some][:, None]
        posterior = made._ask_posterior(rows[some], labels[some])[2].gather(1, given)
        found = made.voters.find(rows[some])
        votes = {t: made.voters.vote(found, labels[some], t, classes).gather(1, given) for t in TEMPERATURES}
        temperature, weight = choose_weight(posterior, votes)
        return replace(made, temperature=temperature, weight=weight)

    def predict(self, leave_out: bool, piece: tuple[Tensor, Tensor, Tensor | None]) -> RowPredictions:
        """What posterior and neighbours, and somebody else, say together of rows with these labels."""
        rows, labels, predicted = piece
        averaged, noise, left_out = self._ask_posterior(rows, labels)
        found, classes = self.voters.find(rows), averaged.shape[1]
        votes = self.voters.vote(found, labels, self.temperature, classes)
        left_out = torch.lerp(votes, left_out, self.weight)
        seen = left_out[:0].clone()  # a view would keep all rows in memory
        if not leave_out:
            seen = torch.lerp(votes, averaged, self.weight)
        if predicted is not None:
            left_out = torch.lerp(left_out, predicted, FOREIGN)
            seen = torch.lerp(seen, predicted[: len(seen)], FOREIGN)
        voted = votes.gather(1, labels[:, None]).squeeze(1)
        return RowPredictions(seen, noise, left_out, voted, hash_rows(rows))

    def _ask_posterior(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The averaged prediction, its noise ε, and the prediction with each example left out."""
        mean, var = self.fit.logits(self.projection.features(rows))
        averaged = softmax_moments(mean, var, SAMPLES).mean
        left_out = predict_left_out(mean, var, averaged, labels)
        return averaged, mean.softmax(-1) - averaged, left_out


def beats_class_shares(own: Tensor, labels: Tensor) -> bool:
    """Whether predictions that have not seen the labels tell more of them than chance explains.

    `own` (N,) are their probabilities of the labels. Each is averaged with the class's share, so that a few labels that
    are surely contradicted do not decide: they may be the wrong ones.
    """
    shares = (torch.bincount(labels).double() / len(labels))[labels]
    gain = (own.double() + shares).div(2 * shares).log()
    return bool(gain.mean() > BEYOND_CHANCE * gain.std() / len(gain) ** 0.5)


def choose_weight(posterior: Tensor, votes: Mapping[float, Tensor]) -> tuple[float, float]:
    """The temperature and the w under which the given labels are likeliest, from their probabilities (N, 1) by both.

    Half of the way to that w from equal weights: the likelihood of labels that are partly wrong judges
    calibration more than ranking, and a predictor with no weight at all cannot help (docs/evidence-audit.md).
    """
    weights, tried = torch.linspace(0, 1, 41, dtype=torch.float32, device="cpu"), []
    for temperature, voted in votes.items():
        likelihood = torch.lerp(voted, posterior, weights).log().mean(0)
        best = int(likelihood.argmax())
        tried.append((float(likelihood[best]), temperature, float(weights[best])))
    _, temperature, weight = max(tried)
    return temperature, (weight + 0.5) / 2


def fit_softmax(features: Tensor, labels: Tensor, classes: int) -> GLMFit:
    """VON with a diagonal covariance, its prior precision chosen by the ELBO."""
    steps = 0
    with bar(100, description="fitting") as shown:

        def on_step(excess: float) -> None:
            nonlocal steps
            steps += 1
            left = 1 + 2 * log(max(excess, 1.0))  # steps shrink about this fast
            shown.update(int(100 * steps / (steps + left)))

        return fit_glm(
            features,
            labels,
            classes=classes,
            covariance="diagonal",
            prior_precision="elbo",
            bias=False,
            draws=DRAWS,
            tol=TOLERANCE,
            dtype=torch.float32,
            on_step=on_step,
        )


def predict_folds(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The averaged probability of every label (N,) by a fit to the folds it is not in; classes are spread evenly."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0), device="cpu")
    member = torch.empty_like(labels)
    by_class = order[labels[order].argsort(stable=True)]
    member[by_class] = torch.arange(len(labels), device="cpu") % FOLDS
    own = features.new_empty(len(labels))
    for fold in range(FOLDS):
        held = member == fold
        fit = fit_softmax(features[~held], labels[~held], classes)
        averaged = softmax_moments(*fit.logits(features[held]), SAMPLES).mean
        own[held] = averaged.gather(1, labels[held][:, None]).squeeze(1)
    return own


def measure_likelihood(source: Source) -> float:
    """How likely the given labels are by predictions that leave each of them out, as a mean of logarithms.

    The inputs, or the encoder, under which it is larger tell more of the labels. Each probability is averaged with the
    class's share, so that a few labels that are surely contradicted do not decide: they may be the wrong ones.
    """
    rows = source.batch(torch.arange(len(source), device="cpu")).flatten(1)
    labels = source.labels.numbers
    predictors = Predictors.of(rows, labels, source.num_classes)
    left_out = predictors.predict(True, (rows, labels, None)).left_out
    own = left_out.gather(1, labels[:, None]).squeeze(1).double()
    shares = (torch.bincount(labels).double() / len(labels))[labels]
    return float(own.add(shares).div(2).log().mean())
