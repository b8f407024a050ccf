"""The label noise of every training digit, and the digits that are worth a look."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesmooth.data import Examples
from bayesmooth.lab import Run
from bayesmooth.lab.studies.figures.noise_of import own_kind_distance
from bayesmooth.labelnoise import label_noise
from bayesmooth.metrics import rank_correlation
from bayesmooth.posterior import Posterior

DIGIT = 6  # of fig:illustration
DRAWS = 128


@dataclass(frozen=True)
class Digits:
    """The training digits whose label is right: pictures, labels, the noise on each label, and how far each is from
    its own kind."""

    pictures: Tensor  # (N, 8, 8), ink is 1
    labels: Tensor  # (N,)
    noise: Tensor  # (N, K), by class
    distance: Tensor  # (N,), to the nearest ones of the same class

    @property
    def size(self) -> Tensor:
        """½ Σ_k of the noise: the share of the label that it moves."""
        return self.noise.sum(1) / 2

    @property
    def classes(self) -> list[int]:
        """Those that occur."""
        return sorted(set(self.labels.tolist()))

    def pair(self, digit: int = DIGIT) -> tuple[int, int]:
        """(typical, atypical): the nearest to its own kind and the farthest, whatever their noise."""
        own = (self.labels == digit).nonzero().flatten()
        near, far = self.distance[own].argmin(), self.distance[own].argmax()
        return int(own[near]), int(own[far])

    def agreeing(self) -> int:
        """The number of classes whose atypical digit has more noise than the typical one."""
        pairs = [self.pair(digit) for digit in self.classes]
        return sum(bool(self.size[far] > self.size[near]) for near, far in pairs)

    def correlation(self) -> float:
        """Spearman's rank correlation of noise and distance."""
        return rank_correlation(self.size, self.distance)

    def extremes(self, count: int) -> tuple[list[int], list[int]]:
        """(least noise, most noise)."""
        order = self.size.argsort().tolist()
        return order[:count], order[: -count - 1 : -1]


def digits_of(run: Run) -> Digits:
    """The digits of a run that has a posterior."""
    train = run.examples("train")
    right = (
        train if train.clean_labels is None else train.subset(train.labels == train.clean_labels)
    )
    pictures = right.inputs[torch.arange(len(right))].squeeze(1)
    noise = sampled_size(run.model(), run.posterior(), right)
    return Digits(
        pictures, right.labels, noise, own_kind_distance(pictures.flatten(1), right.labels)
    )


def sampled_size(
    model: nn.Module, posterior: Posterior, examples: Examples, draws: int = DRAWS
) -> Tensor:
    """E_q|softmax f(m) − softmax f(θ)|, (N, K): the size of the noise that one training step puts on a label.

    With labels that are partly wrong no digit is predicted with certainty, and then the signed mean ε is small where
    two classes are equally likely, by symmetry. Its size, which is what a step of training feels, is not.
    """
    total = torch.zeros(len(examples), examples.num_classes)
    for draw in range(draws):
        noise = label_noise(model, posterior, examples, samples=2, seed=draw, quiet=True)
        assert noise.sampled is not None
        total += noise.sampled.abs()
    return total / draws
