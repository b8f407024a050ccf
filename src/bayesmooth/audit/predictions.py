"""What is predicted of every example, all that the scores may look at; and which labels and predictions are refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from bayesmooth.audit.transitions import learn_transitions, probability_wrong
from bayesmooth.errors import InputError


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
