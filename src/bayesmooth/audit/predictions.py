"""Predictions of every example, and their consequences for its label.

Two axes, never mixed up: disagreement with the label, and ambiguity, which is blind to it.

A model of the given labels predicts their errors too: where a fifth of the cats are called dogs, it expects "dog" of a
fifth of them. With the transition matrix T (rows are true classes), a prediction p of given labels comes from a
prediction q of true classes by p = qT. T is learned from the given labels alone, held against predictions that have
not seen them; then q follows from p, and the label itself is held against q.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesmooth.errors import InputError

CONFIDENT = 0.1  # share of the predictions of each class from which the rate is told
NORMAL_95 = 1.959963984540054
CONFIDENT_SHARE = 0.3  # of the predictions of each class: T is learned from the most confident ones
PRIOR_ROWS = 5.0  # examples for which the average noise rate counts, beside those of a class
CONCENTRATIONS = torch.logspace(-1, 4, 26, dtype=torch.float32, device="cpu")
CLOSE = 1 / 4  # of the best class's probability: from here on another class is near it
LABEL_POWER = 1 / 4  # exponent of T where the given label is evidence of the true class
SMALLEST = 1e-9  # probability of a transition that was never seen
PROBABILITIES_AT_ONCE = 1 << 20


def rank_in_class(order: Tensor, classes: Tensor) -> Tensor:
    """The place of each example among those of its class, from 0, where all stand in this order.

    >>> rank_in_class(torch.tensor([3, 2, 1, 0]), torch.tensor([0, 0, 1, 0]))
    tensor([2, 1, 0, 0])
    """
    by_class = order[classes[order].argsort(stable=True)]
    counts = torch.bincount(classes)
    first = (counts.cumsum(0) - counts)[classes[by_class]]
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order), device="cpu") - first
    return rank


def select_confident(best: Tensor, best_class: Tensor, share: float) -> Tensor:
    """The mask of the predictions that are among the most confident share of those of their class.

    >>> select_confident(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([0, 0, 1, 1]), 0.5)
    tensor([ True, False,  True, False])
    """
    rank = rank_in_class(best.argsort(descending=True, stable=True), best_class)
    return rank < (share * torch.bincount(best_class)).ceil()[best_class]


def learn_transitions(predicted: Tensor, labels: Tensor) -> Tensor:
    """T (K, K) from predictions (N, K) that have not seen the labels.

    The most confident predictions are taken for the true classes, each as far as it is ahead of the second best class:
    where even these are unsure, labels that differ may be the model's own errors. A class has its own noise rate,
    drawn to that of all classes. Where its wrong labels go is drawn to "anywhere", as much as makes the counts
    likeliest if every class draws its own from one Dirichlet distribution (α/(K − 1), …).

    >>> learn_transitions(torch.eye(2).repeat(50, 1), torch.arange(100) % 2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    classes = predicted.shape[1]
    (best, second), (best_class, _) = (part.unbind(1) for part in predicted.topk(2, dim=1))
    sure = select_confident(best, best_class, CONFIDENT_SHARE)
    pair, lead = best_class[sure] * classes + labels[sure], (best - second)[sure]
    counts = torch.bincount(pair, lead, classes**2).reshape(classes, classes)
    wrong = counts.clone().fill_diagonal_(0)
    seen, slipped = counts.sum(1), wrong.sum(1)
    rate = (slipped + PRIOR_ROWS * slipped.sum() / seen.sum().clamp_min(1e-9)) / (seen + PRIOR_ROWS)
    share, many = CONCENTRATIONS[:, None] / (classes - 1), wrong[wrong > 0]  # zeros add nothing
    rows = torch.lgamma(CONCENTRATIONS[:, None]) - torch.lgamma(CONCENTRATIONS[:, None] + slipped)
    likelihood = rows.sum(1) + (torch.lgamma(many + share) - torch.lgamma(share)).sum(1)
    even = CONCENTRATIONS[likelihood.argmax()]
    where = (wrong + even / (classes - 1)) / (slipped + even)[:, None]
    return (rate[:, None] * where).fill_diagonal_(0) + torch.diag(1 - rate)


def predict_true_classes(given: Tensor, transitions: Tensor) -> Tensor:
    """q (N, K), the true classes, where a prediction p of given labels and T are known.

    The true class behind a label y has P(k | y) = p_k T_ky / (pT)_y; averaged over the labels that p expects,
    q = p · (p/(pT))Tᵀ. (That is the first step of EM towards qT = p. More steps follow the errors of p: on real label
    errors they find fewer, on made ones more; docs/evidence-audit.md.)

    >>> predict_true_classes(torch.tensor([[0.8, 0.2]]), torch.tensor([[0.8, 0.2], [0.0, 1.0]]))
    tensor([[0.8889, 0.1111]])
    """
    tiny = torch.finfo(given.dtype).tiny
    result = torch.empty_like(given)
    size = max(PROBABILITIES_AT_ONCE // given.shape[1], 1)
    for p, q in zip(torch.split(given, size), torch.split(result, size), strict=True):
        q[:] = p * ((p / (p @ transitions).clamp_min(tiny)) @ transitions.mT)
        q /= q.sum(1, keepdim=True).clamp_min(tiny)
    return result


class LeftOut(NamedTuple):
    """The prediction of each example without its own label: probabilities of its label's and of the best class."""

    own: Tensor
    best: Tensor
    best_class: Tensor
    close: Tensor
    """Whether another class is at least a quarter as likely as the best."""
    entropy: Tensor
    """Of all classes, as a share of the largest possible: 0 … 1."""
    wrong: Tensor
    """The probability that the label is wrong."""

    @classmethod
    def of(cls, probabilities: Tensor, labels: Tensor, transitions: Tensor | None = None) -> "LeftOut":
        """From probabilities (N, K) that do not know the labels; T is learned where it is not given."""
        if transitions is None:
            transitions = learn_transitions(probabilities, labels)
        (best, second), (best_class, _) = (part.unbind(1) for part in probabilities.topk(2, dim=1))
        entropy = torch.special.entr(probabilities).sum(1) / log(probabilities.shape[1])
        label_probability = probabilities.gather(1, labels[:, None]).squeeze(1)
        joint = probabilities * transitions.mT[labels]  # Bayes' rule: q_y T_yy of Σ_k q_k T_ky
        tiny = torch.finfo(joint.dtype).tiny
        wrong = 1 - joint.gather(1, labels[:, None]).squeeze(1) / joint.sum(1).clamp_min(tiny)
        return cls(label_probability, best, best_class, CLOSE * best <= second, entropy, wrong)


@dataclass(eq=False)
class Predictions:
    """Labels, averaged probabilities (N, K), and the noise where there is a posterior to have one."""

    labels: Tensor
    probabilities: Tensor
    """Of the true class; with the example left out where `method` says so."""
    noise: Tensor | None = None
    """Signed ε (N, K) of the posterior; None where probabilities are all there is."""
    method: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Figures for the summary."""
    without_label: LeftOut | None = None
    """The prediction with every example left out; None where `probabilities` are that already."""
    transitions: Tensor | None = None
    """T (K, K) by which the given labels count in the ranking; None where they do not."""
    informative: bool = True
    """Whether they know more of the labels than the shares of the classes; else nothing can be told."""
    mixed: Tensor | None = None
    """The mask of the examples that have a copy with another label; None where it was not computed."""

    left_out: LeftOut = field(init=False)
    """The prediction that has not seen the example's label."""
    weighed: Tensor = field(init=False)
    """r (N, K) ∝ q_k T_ky^¼: the given label y is evidence of the true class too; q itself where no T was learned.

    With the whole T_ky it would be Bayes' rule, and wrong labels that T makes likely would lose all their weight; T
    is learned, and a quarter of it finds the most (docs/evidence-audit.md).
    """
    disagreement: Tensor = field(init=False)
    """√max_{k≠y} r_k − √r_y, −1 … 1: higher, the label is more likely wrong (docs/evidence-audit.md)."""

    def __post_init__(self) -> None:
        self.left_out = self.without_label or LeftOut.of(self.probabilities, self.labels)
        self.weighed = self.probabilities
        if self.transitions is not None:
            weights = self.transitions.clamp_min(SMALLEST) ** LABEL_POWER
            product = self.probabilities * weights.mT[self.labels]
            self.weighed = product / product.sum(1, keepdim=True).clamp_min(torch.finfo(product.dtype).tiny)
        self.disagreement = measure_lead(self.weighed.clamp_min(0).sqrt(), self.labels)

    def judge(self) -> dict[str, Any]:
        """The columns of the table that follow.

        As many labels are contradicted as there are for which the averaged prediction prefers another class. The
        suggestion is then the likeliest other class, else the label. Equal examples with different labels get the same
        suggestion, the likeliest class, and never swap their labels.
        """
        probabilities, labels, cut = self.probabilities, self.labels, 0.0
        if not self.informative:  # nobody is accused
            cut = float(self.disagreement.max())
        elif self.transitions is not None:
            cut = leave_above(self.disagreement, int((measure_lead(probabilities, labels) > 0).sum()))
        rival = self.weighed.scatter(1, labels[:, None], -1.0).argmax(1)
        suggested = torch.where(self.disagreement > cut, rival, labels)
        if self.mixed is not None and self.informative:
            suggested = torch.where(self.mixed, probabilities.argmax(1), suggested)
        return {
            "given": labels,
            "suggested": suggested,
            "given_probability": probabilities.gather(1, labels[:, None]).squeeze(1),
            "suggested_probability": probabilities.gather(1, suggested[:, None]).squeeze(1),
            "disagreement": self.disagreement,
            "ambiguity": self.left_out.entropy,
            "close": self.left_out.close,
            "disagreement_threshold": cut,
            "noise": None if self.noise is None else self.noise.abs().sum(1) / 2,
            "probabilities": probabilities,
        }


def measure_lead(rows: Tensor, labels: Tensor) -> Tensor:
    """The lead of each row's best other class over that of its label (N,)."""
    at = labels[:, None]
    return rows.scatter(1, at, -1.0).amax(1) - rows.gather(1, at).squeeze(1)


def leave_above(scores: Tensor, count: int) -> float:
    """The threshold that `count` scores exceed, and all that tie with the last of them."""
    last = float(scores.topk(count).values[-1]) if count else float("inf")
    below = scores[scores < last]
    return float(below.max()) if len(below) else last - 1.0


def predict_left_out(logits: Tensor, var: Tensor, averaged: Tensor, labels: Tensor) -> Tensor:
    """The probabilities (N, K) of each example under the posterior of all others, from the one fit.

    Removing example i takes its pull on the mean back (memory perturbation, Nickl et al. 2023). In the space of its own
    logits, with the curvature h = p(1 − p) and p the averaged prediction, that is

        f₋ᵢ = fᵢ + V₋ᵢ (pᵢ − yᵢ),    V₋ᵢ = Vᵢ / (1 + Vᵢhᵢ),    V = (1 − 1/K) Var f.

    Of K logits only K − 1 are free, and a fit that holds them independent moves K/(K − 1) times too far. A diagonal
    covariance leaves out that parameters move together: its Vh exceeds 1, as no leverage can, and Vh / (1 + Vh) does
    not. Labels held out of the fit are as likely as labels left out this way, within two tenths of a nat.

    E[softmax(f)], f ~ N(mean, v), is roughly the softmax of mean/√(1 + πv/8), as for one probit (MacKay 1992).

    >>> predict_left_out(torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 0.5), torch.tensor([0]))
    tensor([[0.3989, 0.6011]])
    """
    pull = averaged.scatter_add(1, labels[:, None], -torch.ones_like(averaged[:, :1]))
    free = (1 - 1 / logits.shape[1]) * var
    left = free / (1 + free * averaged * (1 - averaged))
    return torch.softmax((logits + left * pull) / (1 + pi / 8 * left).sqrt(), -1)


def check_probabilities(probabilities: Tensor, count: int, classes: int) -> Tensor:
    """Rows of probabilities as float32 that sum to one."""
    if probabilities.shape != (count, classes):
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)}: must be {count} × {classes}, examples × classes"
        )
    values = probabilities.float()
    sums = values.sum(1)
    broken = (~values.isfinite() | (values < 0)).any(1) | ((sums - 1).abs() > 0.01)
    if broken.any():
        row = int(broken.nonzero()[0])
        shown = [round(float(p), 4) for p in values[row, :5]]
        raise InputError(f"probabilities[{row}] = {shown}…: must be ≥ 0 and sum to one; pass logits.softmax(-1)")
    return values / sums[:, None]


def estimate_noise_rate(left_out: LeftOut, labels: Tensor) -> tuple[float, float]:
    """An estimate of the share of wrong labels, and its lower bound, from predictions that have not seen them.

    Bound: the mean probability that a label is wrong (`LeftOut.wrong`), or the share of labels that contradict
    the most confident tenth of the predictions of each class if that is less (hardly any of these is the model's own
    error), less the 95 % sampling error.
    Estimate: confident learning (Northcutt et al. 2021), the share of labels that contradict predictions which are at
    least as sure of their class as they are, on average, of its examples.
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
    return max(estimate, least), least


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in so many (Wilson 1927)."""
    z = NORMAL_95**2 / count
    half = NORMAL_95 * (share * (1 - share) / count + z / (4 * count)) ** 0.5
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)
