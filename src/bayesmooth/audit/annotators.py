"""Several people's labels of the same examples: what they agree on, and how good each of them is.

The model is Dawid and Skene's (1979) with a prediction as the prior of every example. With true class k, annotator a
says v with probability C_a[k, v], so the posterior of the true class is

    z_ik ∝ q_ik^λ Π_a C_a[k, v_ia],

q being the prediction that has not seen the example's labels. EM alternates between z and C. An annotator's matrix is
drawn to the one of all annotators, and that to "right, or wrong anywhere": with few votes there is little to learn of
one person. λ is the one under which the votes are likeliest, so that a prediction which knows less than the people do
hardly counts; with λ = 0 there are only the votes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.rates import wilson
from bayesmooth.errors import InputError

TRUSTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # λ that are tried
PERSON = 10.0  # votes for which the matrix of all annotators counts in each row of one annotator's
EVERYONE = 1.0  # votes for which "anywhere" counts in each row of the matrix of all annotators
STEPS, TOLERANCE = 100, 1e-4  # of EM: until no probability moves by more
CONFUSED = 0.05  # share of a class's examples from which a confusion is worth telling


@dataclass(frozen=True)
class Votes:
    """Who said what of which example: one entry per vote."""

    example: Tensor
    annotator: Tensor
    label: Tensor
    examples: int
    annotators: tuple[str, ...]
    classes: int

    @classmethod
    def of(cls, table: Any, classes: int, annotators: Sequence[str] | None = None) -> "Votes":
        """From an array N × A of class numbers; what is below 0, or NaN, is no vote."""
        given = np.asarray(table, dtype=np.float64)
        if given.ndim != 2:
            raise InputError(f"votes of shape {given.shape}: must be examples × annotators")
        names = tuple(annotators or map(str, range(given.shape[1])))
        if len(names) != given.shape[1]:
            raise InputError(f"{len(names)} annotators for {given.shape[1]} columns of votes")
        given = np.where(np.isnan(given), -1, given)
        example, annotator = np.nonzero(given >= 0)
        label = torch.from_numpy(given[example, annotator]).long()
        return cls(
            torch.from_numpy(example),
            torch.from_numpy(annotator),
            label,
            len(given),
            names,
            classes,
        )

    def __post_init__(self) -> None:
        """Refuse labels that are no class, and examples of which nobody said anything."""
        if len(self.label) and int(self.label.max()) >= self.classes:
            raise InputError(
                f"vote {int(self.label.max())}: must be below {self.classes}, the number of classes"
            )
        silent = (torch.bincount(self.example, minlength=self.examples) == 0).nonzero()
        if len(silent):
            raise InputError(
                f"example {int(silent[0])} has no vote: leave it out, or have it labelled"
            )

    def counts(self) -> Tensor:
        """How many chose each class, (N, K)."""
        flat = torch.bincount(
            self.example * self.classes + self.label, minlength=self.examples * self.classes
        )
        return flat.view(self.examples, self.classes)

    def majority(self, prior: Tensor | None = None) -> Tensor:
        """The class that most chose, (N,); of equals the one that the prior prefers, else the first."""
        score = self.counts().double()
        return (score if prior is None else score + 0.5 * prior).argmax(1)


@dataclass(frozen=True)
class Annotator:
    """What is known of one person: how often they are right, within 95 %, and what they take for what."""

    name: str
    votes: int
    quality: float
    low: float
    high: float
    confusions: tuple[tuple[int, int, float], ...]
    """(true class, label, how often), the most frequent first."""


@dataclass(frozen=True)
class Consensus:
    """What the votes and the prediction say together."""

    votes: Votes
    posterior: Tensor
    """P(true class), (N, K)."""
    matrices: Tensor
    """C (A, K, K): rows are true classes."""
    trust: float
    """λ, of the prediction."""

    @property
    def labels(self) -> Tensor:
        """The most probable classes."""
        return self.posterior.argmax(1)

    def annotators(self) -> list[Annotator]:
        """Everybody, the best first."""
        votes = self.votes
        own = self.posterior[votes.example, votes.label]
        count = torch.bincount(votes.annotator, minlength=len(votes.annotators))
        right = torch.bincount(votes.annotator, own.double(), len(votes.annotators))
        prior = self.posterior.mean(0)
        made = []
        for a, name in enumerate(votes.annotators):
            share = float(right[a] / count[a].clamp_min(1))
            low, high = wilson(share, int(count[a])) if int(count[a]) else (0.0, 1.0)
            made.append(
                Annotator(
                    name, int(count[a]), share, low, high, _confusions(self.matrices[a], prior)
                )
            )
        return sorted(made, key=lambda one: -one.quality)

    def ask_again(self, count: int) -> list[tuple[int, str]]:
        """The examples that are least certain, and who should label each: whoever is likeliest to decide it.

        After one more vote of annotator a the best class is expected to have Σ_v max_k z_k C_a[k, v].
        """
        voted = set(zip(self.votes.example.tolist(), self.votes.annotator.tolist(), strict=True))
        least = self.posterior.amax(1).argsort(stable=True)[:count].tolist()
        chosen = []
        for i in least:
            certain = (self.posterior[i, :, None] * self.matrices).amax(1).sum(1)
            order = certain.argsort(descending=True, stable=True).tolist()
            who = next((a for a in order if (i, a) not in voted), order[0])
            chosen.append((i, self.votes.annotators[who]))
        return chosen


def agree(votes: Votes, prior: Tensor) -> Consensus:
    """The consensus under the λ that makes the votes likeliest; `prior` is q (N, K), blind to the votes."""
    made = [(*_fit(votes, prior, trust), trust) for trust in TRUSTS]
    _, posterior, matrices, trust = max(made, key=lambda one: one[0])
    return Consensus(votes, posterior, matrices, trust)


def _fit(votes: Votes, prior: Tensor, trust: float) -> tuple[float, Tensor, Tensor]:
    """The log-likelihood of the votes per example, z and C, by EM from the share of votes."""
    first = (prior.clamp_min(1e-9).double().log() * trust).log_softmax(1)
    z = votes.counts().double() + first.exp()
    z /= z.sum(1, keepdim=True)
    for _ in range(STEPS):
        matrices = _matrices(votes, z)
        said = matrices.log()[votes.annotator, :, votes.label]
        joint = first.index_add(0, votes.example, said)
        likelihood = joint.logsumexp(1)
        moved = joint.sub(likelihood[:, None]).exp()
        step, z = float((moved - z).abs().max()), moved
        if step < TOLERANCE:
            break
    return float(likelihood.mean()), z, matrices


def _matrices(votes: Votes, z: Tensor) -> Tensor:
    """C (A, K, K) from the votes' expected classes, each drawn to that of all, and that to "anywhere"."""
    k, people = votes.classes, len(votes.annotators)
    seen = z.new_zeros(people * k, k)
    seen.index_add_(0, votes.annotator * k + votes.label, z[votes.example])
    counts = seen.view(people, k, k).mT  # annotator, true class, label
    total = counts.sum(0)
    right = (total.diagonal().sum() + 1) / (total.sum() + 2)
    anywhere = torch.full_like(total, float((1 - right) / (k - 1))).fill_diagonal_(float(right))
    everyone = (total + EVERYONE * anywhere) / (total.sum(1, keepdim=True) + EVERYONE)
    return (counts + PERSON * everyone) / (counts.sum(2, keepdim=True) + PERSON)


def _confusions(matrix: Tensor, prior: Tensor) -> tuple[tuple[int, int, float], ...]:
    """What is confused in at least `CONFUSED` of a class's examples, the most frequent in all first."""
    off = matrix.clone().fill_diagonal_(0)
    order = (
        (off * prior[:, None]).flatten().argsort(descending=True, stable=True)[: 2 * len(matrix)]
    )
    pairs = [(int(at) // len(matrix), int(at) % len(matrix)) for at in order]
    return tuple((k, v, float(off[k, v])) for k, v in pairs if off[k, v] >= CONFUSED)
