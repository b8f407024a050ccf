"""The two predictors of a label from embeddings: a Bayesian softmax regression and the nearest neighbours.

The regression predicts what its posterior does on average, p̄, and with which label noise ε. The neighbours vote, none
for itself. Together they predict p = w·p̄ + (1 − w)·p_knn, with the w under which the given labels, each left out, are
likeliest: no clean label is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.left_out import predict_left_out
from bayesmooth.audit.neighbours import Keys, unit_rows, without_self
from bayesmooth.audit.projection import MAX_DIMS, Projection
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.progress import bar, track
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.moments import likely_softmax_mean

MIN_DIMS = 128  # principal components that are kept however many rows and classes there are
WORK = 1.2e8  # examples × classes × components from which on fewer of these are kept
TOLERANCE = 0.1  # posterior standard deviations: finer steps do not change the ranking
DRAWS = 8  # of every example's logits, while fitting
LIKELY = 8  # classes of an example over which its noise is integrated one by one
VOTERS = 50  # neighbours that vote
EXACT_ROWS = 5_000  # up to which all pairs of rows are compared: searching cells misses one neighbour in twenty
TEMPERATURES = (0.05, 0.1, 0.3)  # of the vote: the lower, the more the nearest count
BACKGROUND = 0.02  # of every vote is spread evenly, so that no class has probability 0
WEIGHED_ON = 1_000  # rows on which the weight w is chosen


class RowPredictions(NamedTuple):
    """Of the given labels of some rows, with these seen and left out."""

    probabilities: Tensor
    noise: Tensor
    left_out: Tensor
    neighbours: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Predictors:
    """The posterior of a softmax regression and the neighbours, and how much each of them counts."""

    projection: Projection
    fit: GLMFit
    keys: Keys
    key_labels: Tensor
    temperature: float = TEMPERATURES[0]
    weight: float = 1.0
    """w, of the posterior; the neighbours have 1 − w."""

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, examples: Examples, quiet: bool) -> "Predictors":
        """Those that learned from these rows, weighed on some of them."""
        affordable = int(WORK / (len(rows) * examples.num_classes))
        dims = min(max(affordable, MIN_DIMS), MAX_DIMS)
        projection = Projection.of(rows, examples.name, dims)
        fit = fit_softmax(projection.features(rows), labels, examples.num_classes, quiet=quiet)
        keys = Keys(unit_rows(examples.name, rows), exact=len(rows) <= EXACT_ROWS)
        some = torch.linspace(
            0, len(rows) - 1, min(WEIGHED_ON, len(rows)), dtype=torch.float32, device="cpu"
        ).long()
        return cls(projection, fit, keys, labels).weigh(rows[some], labels[some], some)

    def predict(
        self, rows: Tensor, labels: Tensor, own: Tensor, held: Tensor | None, leave_out: bool
    ) -> RowPredictions:
        """Of rows whose positions among the keys are `own`, −1 where they are none of them.

        The posterior has seen the labels. `leave_out` takes their pull back; `held` are the posterior's predictions
        from fits without them, to use instead.
        """
        averaged, noise, left_out = self._ask_posterior(rows, labels)
        found = self._find_neighbours(rows, own)
        votes = self._count_votes(found, self.temperature)
        left_out = torch.lerp(votes, left_out, self.weight)
        if leave_out:
            return RowPredictions(left_out, noise, left_out, found)
        seen = torch.lerp(votes, averaged if held is None else held, self.weight)
        return RowPredictions(seen, noise, left_out, found)

    def weigh(self, rows: Tensor, labels: Tensor, own: Tensor) -> "Predictors":
        """With the temperature and the w under which these labels, each left out, are likeliest."""
        given = labels[:, None]
        posterior = self._ask_posterior(rows, labels)[2].gather(1, given)
        found = self._find_neighbours(rows, own)
        votes = {t: self._count_votes(found, t).gather(1, given) for t in TEMPERATURES}
        temperature, weight = choose_weight(posterior, votes)
        return replace(self, temperature=temperature, weight=weight)

    def _ask_posterior(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The averaged prediction, its noise ε, and the prediction with each example left out."""
        mean, var = self.fit.logits(self.projection.features(rows))
        averaged = likely_softmax_mean(mean, var, LIKELY)
        left_out = predict_left_out(mean, var, averaged, labels)
        return averaged, mean.softmax(-1) - averaged, left_out

    def _find_neighbours(self, rows: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        count = min(VOTERS, len(self.key_labels) - 1)
        found = self.keys.search(unit_rows("embeddings", rows), count + 1, quiet=True)
        return without_self(*found, own)

    def _count_votes(self, found: tuple[Tensor, Tensor], temperature: float) -> Tensor:
        """The neighbours' votes (N, K)."""
        index, similarity = found
        classes = self.fit.theta.shape[1]
        share = torch.softmax(similarity / temperature, 1) * (1 - BACKGROUND)
        even = share.new_full((len(index), classes), BACKGROUND / classes)
        return even.scatter_add_(1, self.key_labels[index], share)


def choose_weight(posterior: Tensor, votes: Mapping[float, Tensor]) -> tuple[float, float]:
    """The temperature and the w under which the given labels are likeliest, from their probabilities (N, 1) by both.

    Half of the way to that w from equal weights: the likelihood of labels that are partly wrong judges
    calibration more than ranking, and a predictor with no weight at all cannot help (docs/audit.md).
    """
    weights, tried = torch.linspace(0, 1, 41, dtype=torch.float32, device="cpu"), []
    for temperature, voted in votes.items():
        likelihood = torch.lerp(voted, posterior, weights).log().mean(0)
        best = int(likelihood.argmax())
        tried.append((float(likelihood[best]), temperature, float(weights[best])))
    _, temperature, weight = max(tried)
    return temperature, (weight + 0.5) / 2


def fit_softmax(features: Tensor, labels: Tensor, classes: int, *, quiet: bool) -> GLMFit:
    """VON with a diagonal covariance, its prior precision chosen by the ELBO."""
    steps = 0
    with bar(100, description="fitting", quiet=quiet) as shown:

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


def cross_fit(
    features: Tensor, labels: Tensor, classes: int, folds: int, *, seed: int, quiet: bool
) -> Tensor:
    """Averaged probabilities of every example from the fit to the folds it is not in."""
    member = assign_folds(labels, folds, seed)
    out = features.new_empty(len(features), classes)
    for fold in track(range(folds), description="cross-fit", quiet=quiet):
        held = member == fold
        fit = fit_softmax(features[~held], labels[~held], classes, quiet=True)
        out[held] = likely_softmax_mean(*fit.logits(features[held]), LIKELY)
    return out


def assign_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """A fold for each example, the examples of a class spread evenly over them."""
    if folds > len(labels):
        raise InputError(f"folds={folds}: must be at most the number of examples, {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed), device="cpu")
    by_class = order[labels[order].argsort(stable=True)]
    member = torch.empty_like(labels)
    member[by_class] = torch.arange(len(labels), device="cpu") % folds
    return member
