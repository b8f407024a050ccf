"""Predictions from embeddings, by a Bayesian softmax regression and the nearest neighbours.

The regression sees principal components. It gives the average prediction of its posterior, p̄, and its label noise ε.
The neighbours vote, none for itself or for its copies. Together they predict p = w·p̄ + (1 − w)·p_knn, with the w under
which the given labels, each left out, are likeliest: no clean label is needed. The transitions from true classes to
given ones are learned too and taken back (`predictions`).

Both learn from a sample of the rows, then predict all of them piece by piece: these need not fit in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.neighbours import Keys, differ_from_copies, group_copies, hash_rows, unit_rows
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
from bayesmooth.progress import bar, track
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.links import softmax_moments

SAMPLE = 100_000  # rows that are learned from: more hardly change the result
ROWS_PER_CLASS = 100  # that are in the sample at least, if the class has so many
ROWS_AT_ONCE = 1 << 13  # that are read, or multiplied
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow
DIGITS = 1e9  # to which distances are rounded before rows are sorted by them
MAX_DIMS = 384  # principal components that are kept at most
MIN_DIMS = 128  # and that are kept however many rows and classes there are
NEGLIGIBLE = 1e-6  # of the largest variance: less is lost in products of float32
WORK = 1.2e8  # examples × classes × components from which on fewer of these are kept
# VON with a diagonal covariance, its prior precision chosen by the ELBO
FIT: dict[str, Any] = {"covariance": "diagonal", "prior_precision": "elbo", "bias": False, "dtype": torch.float32}
FIT["tol"] = 0.03  # posterior standard deviations: finer steps do not change the ranking
DRAWS = 8  # of every example's logits, while fitting
SAMPLES = 64  # quasi-random points over which predictions are averaged
VOTERS = 50  # neighbours that vote
MOST_LABELS = 32  # different labels of equal rows that count
TEMPERATURES = (0.05, 0.1, 0.3)  # of the vote: the lower, the more the nearest count
BACKGROUND = 0.02  # of every vote is spread evenly, so that no class has probability 0
FOREIGN = 0.5  # weight of another model's predictions: labels that are wrong by a rule would give it none
WEIGHED_ON = 1_000  # rows on which the weight w is chosen
BEYOND_CHANCE = 3.0  # standard errors by which a prediction must beat the shares of the classes
FOLDS = 5  # of the fits that tell whether the embeddings are informative


def predict_embedded(source: Source, leave_out: bool = False, predicted: Tensor | None = None) -> Predictions:
    """Predictions of all labels, by the fit to all of them, or with each one left out.

    `predicted` (N, K) are by another model, which never saw the labels: one more predictor.

    The rows are sorted by their content first, so that another order of the rows changes nothing: by distance from the
    mean, which no turn of the rows changes; then by hash, equal rows by label.
    """
    every, given, classes = torch.arange(len(source), device="cpu"), source.labels.numbers, len(source.class_names)
    chosen = every if len(source) <= SAMPLE else choose_rows(source)
    rows = read_rows(source, chosen)
    distance = torch.linalg.vector_norm(rows.double() - rows.double().mean(0), dim=1)
    rounded = (distance / distance.max().clamp_min(LARGEST**-1) * DIGITS).round()
    order = torch.from_numpy(np.lexsort((given[chosen], hash_rows(rows), rounded)))
    rows, chosen = rows[order], chosen[order]
    predictors = Predictors.of(rows, given[chosen], classes)
    if len(chosen) == len(source):
        every = chosen
    parts = []
    for at in track(torch.split(every, ROWS_AT_ONCE), description="scoring"):
        foreign = None if predicted is None else predicted[at]
        parts.append(predictors.predict(read_rows(source, at), given[at], foreign))
    seen, noise, left_out, voted, hashes = map(torch.cat, zip(*parts, strict=True))
    informative = beats_class_shares(voted, given[every])
    if not informative:
        held_out = predict_folds(predictors.projection.features(rows), given[chosen], classes)
        informative = beats_class_shares(held_out, given[chosen])
    # Predictions that know nothing of the labels cannot tell their errors: any label may be any class.
    even = torch.full((classes, classes), 1 / classes, dtype=left_out.dtype, device="cpu")
    transitions = learn_transitions(left_out, given[every]) if informative else even
    back = every.argsort()
    without = predict_true_classes(left_out, transitions)[back]
    voters = min(VOTERS, len(predictors.voters.hashes) - 1)
    others = "" if predicted is None else ", with the predictions of another model"
    way = ("leave-one-out" if leave_out else "in-sample") + others
    return Predictions(
        given,
        without if leave_out else predict_true_classes(seen, transitions)[back],
        noise[back],
        f"variational softmax regression and {voters} neighbours, {way}",
        {
            "components": predictors.projection.axes.shape[1],
            "fitted_to": len(chosen),
            "prior_precision": predictors.fit.prior_precision,
            "fit": predictors.fit.message,
            "weight_of_posterior": round(predictors.weight, 3),
            "weight_of_neighbours": round(1 - predictors.weight, 3),
        },
        without_label=LeftOut.of(without, given, transitions),
        transitions=transitions,
        informative=informative,
        mixed=differ_from_copies(group_copies(hashes[back])[0], given) if predictors.voters.copies else None,
    )


def choose_rows(source: Source) -> Tensor:
    """Positions of `SAMPLE` rows, and of at least `ROWS_PER_CLASS` of every class, by the rows' hashes."""
    every = torch.arange(len(source), device="cpu")
    pieces = track(torch.split(every, ROWS_AT_ONCE), description="choosing")
    hashes = torch.cat([hash_rows(read_rows(source, at)) for at in pieces])
    order = torch.from_numpy(np.lexsort((source.labels.numbers, hashes)))
    chosen = rank_in_class(order, source.labels.numbers) < ROWS_PER_CLASS
    chosen[order[:SAMPLE]] = True
    return chosen.nonzero().flatten()


def read_rows(source: Source, index: Tensor | None = None) -> Tensor:
    """The rows at these positions, or all of them, as numbers that can be squared."""
    every = torch.arange(len(source), device="cpu") if index is None else index
    parts = torch.split(every, ROWS_AT_ONCE)
    rows = torch.empty(len(every), source.batch(every[:1]).numel(), dtype=torch.float32, device="cpu")
    into = torch.split(rows, ROWS_AT_ONCE)
    for at, part in track([*zip(parts, into, strict=True)], description="reading", quiet=len(parts) < 2):
        part[:] = source.batch(at).flatten(1)
        broken = ~(part.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{source.name}: row {row} is NaN, infinite or beyond ±{LARGEST:.0e}; drop such rows, or scale them"
            )
    return rows


class Projection(NamedTuple):
    """Centred, turned to principal components, scaled to unit mean square norm, and a column of ones.

    The prior is isotropic, so turning changes only the part that is cut off. A diagonal covariance loses little, as
    principal components are nearly uncorrelated in every class.
    """

    mean: Tensor
    axes: Tensor

    @classmethod
    def of(cls, rows: Tensor, max_dims: int = MAX_DIMS) -> "Projection":
        """The projection that suits these rows.

        RᵀR (D × D) and RRᵀ (N × N) have the same eigenvalues, so the smaller one is decomposed. An axis is kept where
        the rows spread along it by more than float32 can tell from rounding.
        """
        low, high = rows.amin(0), rows.amax(0)
        varies = high > low
        if not bool(varies.any()):
            raise InputError("all embeddings are the same: nothing to learn from")
        mean, scale = rows.mean(0), (high - low).max()
        # Scaled first, so that no square is lost below float32's smallest number.
        centred = ((rows - mean) / scale)[:, varies]
        count, columns = centred.shape
        wide, side = columns > count, min(count, columns)
        gram = torch.zeros(side, side, dtype=torch.float64, device=centred.device)
        for piece in torch.split(centred.mT if wide else centred, ROWS_AT_ONCE):
            gram += (piece.mT @ piece).double()
        # in numpy: torch's own may fail to converge where many columns are nearly constant
        power, turned = (torch.from_numpy(part).to(gram) for part in np.linalg.eigh((gram / count).numpy(force=True)))
        if wide:
            tiny = torch.finfo(torch.float64).tiny
            turned = centred.mT.double() @ (turned / (count * power).clamp_min(tiny).sqrt())
        rounding = torch.finfo(torch.float32).eps * float(rows.abs().max() / scale)
        least = max(NEGLIGIBLE * float(power[-1]), int(varies.sum()) * rounding**2)
        useful = max(int((power > least).sum()), 1)
        kept = turned[:, -min(max_dims, useful) :].flip(1)
        total = float(power.clamp_min(0).sum()) ** 0.5
        axes = rows.new_zeros(rows.shape[1], kept.shape[1])
        axes[varies] = (kept / (total * float(scale))).to(axes.dtype)
        return cls(mean, axes)

    def features(self, rows: Tensor) -> Tensor:
        """These rows as the regression sees them."""
        return torch.cat([(rows - self.mean) @ self.axes, rows.new_ones(len(rows), 1)], 1)


def count_labels(group: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The labels of each group of equal rows (U, P), the most frequent first, and the count of each."""
    pairs, counts = torch.unique(group * classes + labels, return_counts=True)
    of, label = pairs // classes, pairs % classes
    rank = rank_in_class(counts.argsort(descending=True, stable=True), of)
    width = min(int(rank.max()) + 1, MOST_LABELS)
    kept = rank < width
    table = label.new_zeros(int(of[-1]) + 1, width)
    times = table.float()
    table[of[kept], rank[kept]] = label[kept]
    times[of[kept], rank[kept]] = counts[kept].float()
    return table, times


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
    """The number of rows with each."""
    copies: bool

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> "Voters":
        """The rows vote for their labels."""
        hashes = hash_rows(rows)
        group, first = group_copies(hashes)
        keys, counted = Keys(unit_rows(rows[first]), len(rows)), count_labels(group, labels, classes)
        return cls(keys, hashes[first], *counted, 2 * len(first) >= len(rows))

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The nearest voters of each row, their similarities, and the voter that equals the row (N,), −1 for none."""
        hashes = hash_rows(rows)
        place = torch.searchsorted(self.hashes, hashes).clamp_max(len(self.hashes) - 1)
        equal_voter = torch.where(self.hashes[place] == hashes, place, -1)
        return *self.keys.search(unit_rows(rows), min(VOTERS + 1, len(self.hashes))), equal_voter

    def vote(self, nearest: tuple[Tensor, Tensor, Tensor], labels: Tensor, temperature: float, classes: int) -> Tensor:
        """Their votes (N, K), each label left out of its own."""
        voters, similarity, equal_voter = nearest
        times, named = self.counts[voters], self.labels[voters]
        mine = (voters == equal_voter[:, None])[:, :, None]
        if self.copies:
            times = torch.where(mine, 0, times / times.sum(2, keepdim=True))
        else:
            times = times - (mine & (named == labels[:, None, None]) & (times > 0)).float()
        weight = (similarity / temperature)[:, :, None] + times.log()
        share = torch.softmax(weight.flatten(1), 1) * (1 - BACKGROUND)
        votes = share.new_full((len(labels), classes), BACKGROUND / classes)
        return votes.scatter_add_(1, named.flatten(1), share)


class RowPredictions(NamedTuple):
    """Of the given labels of some rows."""

    seen: Tensor
    """By a posterior that has seen them."""
    noise: Tensor
    left_out: Tensor
    """With the pull of every label on the posterior taken back."""
    voted: Tensor
    """The neighbours' share for the given label (N,)."""
    hashes: Tensor


@dataclass(frozen=True)
class Predictors:
    """The posterior of a softmax regression and the neighbours, with their weights."""

    projection: Projection
    fit: GLMFit
    voters: Voters
    temperature: float = TEMPERATURES[0]
    weight: float = 1.0
    """w, of the posterior; the neighbours have 1 − w."""

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> "Predictors":
        """Predictors that learned from these rows, weighed by the likelihood of the labels of some, each left out."""
        dims = min(max(int(WORK / (len(rows) * classes)), MIN_DIMS), MAX_DIMS)
        projection = Projection.of(rows, dims)
        with bar(0, description="fitting") as shown:
            features = projection.features(rows)
            fit = fit_glm(features, labels, classes=classes, draws=DRAWS, on_step=shown.update, **FIT)
        predictors = cls(projection, fit, Voters.of(rows, labels, classes))
        last = len(rows) - 1
        some = torch.linspace(0, last, min(WEIGHED_ON, len(rows)), dtype=torch.float32, device="cpu").long()
        given = labels[some][:, None]
        posterior = predictors.predict(rows[some], labels[some]).left_out.gather(1, given)  # its weight is 1 until now
        neighbours = predictors.voters.find(rows[some])
        votes = {t: predictors.voters.vote(neighbours, labels[some], t, classes).gather(1, given) for t in TEMPERATURES}
        temperature, weight = choose_weight(posterior, votes)
        return replace(predictors, temperature=temperature, weight=weight)

    def predict(self, rows: Tensor, labels: Tensor, predicted: Tensor | None = None) -> RowPredictions:
        """The joint predictions of posterior, neighbours and, if given, another model for rows with these labels."""
        mean, var = self.fit.logits(self.projection.features(rows))
        averaged = softmax_moments(mean, var, SAMPLES).mean
        left_out = predict_left_out(mean, var, averaged, labels)
        votes = self.voters.vote(self.voters.find(rows), labels, self.temperature, mean.shape[1])
        seen, left_out = (torch.lerp(votes, part, self.weight) for part in (averaged, left_out))
        if predicted is not None:
            seen, left_out = (torch.lerp(part, predicted, FOREIGN) for part in (seen, left_out))
        voted = votes.gather(1, labels[:, None]).squeeze(1)
        return RowPredictions(seen, mean.softmax(-1) - averaged, left_out, voted, hash_rows(rows))


def measure_gain(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The log-likelihood of each label by predictions that have not seen it, less that by its class's share.

    `probabilities` (N,) are theirs of the labels. Each is averaged with the class's share, so that a few labels that
    are surely contradicted do not decide: they may be the wrong ones.
    """
    shares = (torch.bincount(labels).double() / len(labels))[labels]
    return (probabilities.double() + shares).div(2 * shares).log()


def beats_class_shares(probabilities: Tensor, labels: Tensor) -> bool:
    """Whether predictions that have not seen the labels tell more of them than chance explains."""
    gain = measure_gain(probabilities, labels)
    return bool(gain.mean() > BEYOND_CHANCE * gain.std() / len(gain) ** 0.5)


def measure_likelihood(source: Source) -> float:
    """The mean of `measure_gain` over the given labels, by predictions that leave each of them out.

    The encoder under which it is larger tells more of the labels (results/choices/encoders.txt).
    """
    rows, labels = read_rows(source), source.labels.numbers
    left_out = Predictors.of(rows, labels, source.num_classes).predict(rows, labels).left_out
    return float(measure_gain(left_out.gather(1, labels[:, None]).squeeze(1), labels).mean())


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


def predict_folds(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The averaged probability of every label (N,) by a fit to the folds it is not in; classes are spread evenly."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0), device="cpu")
    member = torch.empty_like(labels)
    by_class = order[labels[order].argsort(stable=True)]
    member[by_class] = torch.arange(len(labels), device="cpu") % FOLDS
    probabilities = features.new_empty(len(labels))
    for fold in range(FOLDS):
        held = member == fold
        fit = fit_glm(features[~held], labels[~held], classes=classes, draws=DRAWS, **FIT)
        averaged = softmax_moments(*fit.logits(features[held]), SAMPLES).mean
        probabilities[held] = averaged.gather(1, labels[held][:, None]).squeeze(1)
    return probabilities
