"""What is predicted of every example, and what follows for its label.

Two axes, never mixed up: disagreement with the label, and ambiguity, which is blind to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.transitions import (
    learn_transitions,
    probability_wrong,
    select_confident,
    weigh_by_label,
)
from bayesmooth.data.source import Note
from bayesmooth.errors import InputError

QUADRANTS = ("clear", "ambiguous", "mislabelled", "hard")
CLEAR, AMBIGUOUS, MISLABELLED, HARD = range(4)
AXES = ("Ambiguity (second best class over the best)", "Disagreement with the label")
AMBIGUOUS_FROM = 1 / 4  # from here on no class is four times as likely as the next
WARN_ABOVE = 0.5  # share of contradicted labels from which the input is what is wrong
NORMAL_95 = 1.96
CONFIDENT = 0.1  # share of the predictions of each class


class LeftOut(NamedTuple):
    """What is predicted of each example without its own label: of its label's class, the best and the second best."""

    own: Tensor
    best: Tensor
    second: Tensor
    best_class: Tensor
    wrong: Tensor
    """The probability that the label is wrong."""

    @classmethod
    def of(
        cls, probabilities: Tensor, labels: Tensor, transitions: Tensor | None = None
    ) -> "LeftOut":
        """From probabilities (N, K) that do not know the labels; T is learned where it is not given."""
        if transitions is None:
            transitions = learn_transitions(probabilities, labels)
        top = probabilities.topk(2, dim=1)
        own = probabilities.gather(1, labels[:, None]).squeeze(1)
        wrong = probability_wrong(probabilities, transitions, labels)
        return cls(own, top.values[:, 0], top.values[:, 1], top.indices[:, 0], wrong)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels, averaged probabilities (N, K), and the noise where there is a posterior to have one."""

    labels: Tensor
    probabilities: Tensor
    """Of the true class; with the example left out where `method` says so."""
    noise: Tensor | None
    """Signed ε (N, K) of the posterior; None where probabilities are all there is."""
    method: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Figures for the summary."""
    index: Tensor | None = None
    """Positions in the data, where they are not 0 … N−1."""
    without_label: LeftOut | None = None
    """The prediction with every example left out; None where `probabilities` are that already."""
    transitions: Tensor | None = None
    """T (K, K) by which the given labels count in the ranking; None where they do not."""
    informative: bool = True
    """Whether they know more of the labels than the shares of the classes; else nothing can be told."""
    mixed: Tensor | None = None
    """Which examples have a copy with another label, where that is known."""

    @property
    def left_out(self) -> LeftOut:
        """The prediction that has not seen the example's label."""
        return self.without_label or LeftOut.of(self.probabilities, self.labels)

    are_classes: ClassVar[bool] = True
    problems: ClassVar[tuple[Note, ...]] = ()

    def name_rows(self) -> tuple[str, ...]:
        """Their positions as ids."""
        return tuple(
            map(str, range(len(self.labels)) if self.index is None else self.index.tolist())
        )

    def pool(self) -> tuple[LeftOut, Tensor]:
        """What rates are estimated from: the predictions without their labels, and the labels."""
        return self.left_out, self.labels

    def judge(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The columns of the table that follow."""
        probabilities, labels = self.probabilities, self.labels
        if probabilities.shape[1] != len(names):
            raise InputError(
                f"{len(names)} class names for a model of {probabilities.shape[1]} classes"
            )
        disagreement = root_margin(self)
        cut = find_threshold(disagreement, self)
        suggested = suggest(disagreement, cut, self)
        return {
            "class_names": names,
            "suggested": suggested,
            "given_probability": probabilities.gather(1, labels[:, None]).squeeze(1),
            "suggested_probability": probabilities.gather(1, suggested[:, None]).squeeze(1),
            "disagreement": disagreement,
            "ambiguity": ambiguity(self),
            "disagreement_threshold": cut,
            "noise": None if self.noise is None else self.noise.abs().sum(1) / 2,
            "probabilities": probabilities,
        }

    def take(self, index: Tensor) -> "Predictions":
        """The same of the examples at these positions."""
        left = self.without_label
        return replace(
            self,
            labels=self.labels[index],
            probabilities=self.probabilities[index],
            noise=None if self.noise is None else self.noise[index],
            mixed=None if self.mixed is None else self.mixed[index],
            without_label=None if left is None else LeftOut(*(part[index] for part in left)),
        )


def leave_one_out(
    logits: Tensor, var: Tensor, averaged: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the logits of each example under the posterior of all others, from the one fit.

    Removing example i takes its pull on the mean back (memory perturbation, Nickl et al. 2023). In the space of its own
    logits, with the curvature h = p(1 − p) and p the averaged prediction, that is

        f₋ᵢ = fᵢ + V₋ᵢ (pᵢ − yᵢ),    V₋ᵢ = Vᵢ / (1 + Vᵢhᵢ),    V = (1 − 1/K) Var f.

    Of K logits only K − 1 are free, and a fit that holds them independent moves K/(K − 1) times too far. A diagonal
    covariance leaves out that parameters move together: its Vh exceeds 1, as no leverage can, and Vh / (1 + Vh) does
    not. Labels held out of the fit are as likely as labels left out this way, within two tenths of a nat.

    >>> leave_one_out(torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 0.5), torch.tensor([0]))
    (tensor([[-0.2222,  0.2222]]), tensor([[0.4444, 0.4444]]))
    """
    pull = averaged.scatter_add(1, labels[:, None], -torch.ones_like(averaged[:, :1]))
    free = (1 - 1 / logits.shape[1]) * var
    left = free / (1 + free * averaged * (1 - averaged))
    return logits + left * pull, left


def predict_left_out(logits: Tensor, var: Tensor, averaged: Tensor, labels: Tensor) -> Tensor:
    """The probabilities (N, K) of each example under the posterior of all others.

    E[softmax(f)], f ~ N(mean, v), is roughly the softmax of mean/√(1 + πv/8), as for one probit (MacKay 1992).
    """
    mean, left = leave_one_out(logits, var, averaged, labels)
    return torch.softmax(mean / (1 + pi / 8 * left).sqrt(), -1)


def check_probabilities(probabilities: Tensor, count: int, classes: int) -> Tensor:
    """Rows of probabilities as float32 that sum to one."""
    if probabilities.shape != (count, classes):
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)}: must be {count} × {classes}, "
            "one row per example and one column per class"
        )
    values = probabilities.float()
    sums = values.sum(1)
    broken = (~values.isfinite() | (values < 0)).any(1) | ((sums - 1).abs() > 0.01)
    if broken.any():
        row = int(broken.nonzero()[0])
        shown = [round(float(p), 4) for p in values[row, :5]]
        raise InputError(
            f"probabilities[{row}] = {shown}…: must be ≥ 0 and sum to one; pass logits.softmax(-1)"
        )
    return values / sums[:, None]


def check_order(probabilities: Tensor, labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse columns that fit the labels only in another order than that of the classes."""
    suggested, classes = probabilities.argmax(1), len(class_names)
    pairs = torch.bincount(labels * classes + suggested, minlength=classes**2)
    pairs = pairs.view(classes, classes)
    column = pairs.argmax(1)  # the one that most examples of each class are given
    as_given = int(pairs.diagonal().sum())
    reordered = int(pairs.gather(1, column[:, None]).sum())
    if len({*column.tolist()}) == classes and 2 * as_given < len(labels) < 2 * reordered:
        order = ", ".join(class_names[int(k)] for k in column.argsort())[:200]
        raise InputError(
            f"probabilities: their columns agree with {as_given} of {len(labels)} labels as they stand, and with "
            f"{reordered} in the order {order}; give class_names in the order of the columns"
        )


def root_margin(predictions: Predictions) -> Tensor:
    """Disagreement: √max_{k≠y} r_k − √r_y, −1 … 1: higher, the label is more likely wrong (docs/evidence-audit.md).

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
