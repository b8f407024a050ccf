"""Several people's labels of the same examples: what they agree on, and how good each of them is.

The model is Dawid and Skene's (1979) with a prediction as the prior of every example. With true class k, annotator a
says v with probability C_a[k, v], so the posterior of the true class is

    z_ik ∝ q_ik^λ Π_a C_a[k, v_ia],

q being the prediction that has not seen the example's labels. EM alternates between z and C. An annotator's matrix is
drawn to the one of all annotators, and that to "right, or wrong anywhere": with few votes there is little to learn of
one person. λ is the one under which the votes are likeliest, so that a prediction which knows less than the people do
hardly counts; with λ = 0 there are only the votes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut, Predictions, wilson
from bayesmooth.audit.predictors import predict_embedded
from bayesmooth.data import Source
from bayesmooth.data.labels import VotedLabels, Votes
from bayesmooth.words import format_percent

TRUSTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # λ that are tried
PERSON = 10.0  # votes for which the matrix of all annotators counts in each row of one annotator's
EVERYONE = 1.0  # votes for which "anywhere" counts in each row of the matrix of all annotators
STEPS, TOLERANCE = 100, 1e-2  # of EM: until no probability moves by more
AGAIN = 100  # examples that are listed to be labelled again
CERTAIN = 0.99  # probability of the consensus above which the report asks nobody again
CONFUSED = 0.05  # a confusion is reported if it affects at least this share of a class's examples


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
        votes, prior = self.votes, self.posterior.mean(0)
        own = self.posterior[votes.example, votes.label].double()
        counts = torch.bincount(votes.annotator, minlength=len(votes.annotators))
        shares = torch.bincount(votes.annotator, own, len(counts)) / counts.clamp_min(1)
        made = []
        for a, (name, count) in enumerate(zip(votes.annotators, counts.tolist(), strict=True)):
            share = float(shares[a])
            low, high = wilson(share, count) if count else (0.0, 1.0)
            confusions = _confusions(self.matrices[a], prior)
            made.append(Annotator(name, count, share, low, high, confusions))
        return sorted(made, key=lambda one: -one.quality)

    def __str__(self) -> str:
        """Who is how good, in one line."""
        every = self.annotators()
        best, worst = every[0], every[-1]
        return (
            f"{len(self.votes.annotators)} annotators: {best.name} is right in {format_percent(best.quality)} of "
            f"{best.votes} votes, {worst.name} in {format_percent(worst.quality)} of {worst.votes}"
        )

    def describe(self, names: tuple[str, ...]) -> list[dict[str, object]]:
        """One record per annotator, the best first."""
        return [
            {
                "annotator": one.name,
                "votes": one.votes,
                "quality": round(one.quality, 4),
                "low": round(one.low, 4),
                "high": round(one.high, 4),
                "confusions": "; ".join(
                    f"{names[k]} as {names[v]} {format_percent(share)}"
                    for k, v, share in one.confusions
                ),
            }
            for one in self.annotators()
        ]

    def to_payload(self) -> dict[str, object]:
        """What the report shows: everybody, the votes on every example, and what to label again and by whom."""
        again = [
            (*row[:2], round(row[2], 4), row[3]) for row in self.list_again() if row[2] < CERTAIN
        ]
        people = [vars(one) for one in self.annotators()]
        votes = self.votes
        return {
            "names": votes.annotators,
            "people": people,
            "votes": votes.by_example(),
            "again": again,
        }

    def list_again(self) -> list[tuple[int, int, float, str]]:
        """The least certain examples: position, most probable class, its probability, who should label it."""
        best = self.posterior.amax(1)
        return [(i, int(self.labels[i]), float(best[i]), who) for i, who in self.ask_again(AGAIN)]

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


def predict_consensus(source: Source) -> tuple[Predictions, Consensus]:
    """Predictions of what most annotators said, and the consensus that they come from.

    The prediction learns from the majority first, then once more from the consensus. Both times every example is left
    out: its prediction must not repeat its votes.
    """
    assert isinstance(source.labels, VotedLabels)
    votes = source.labels.count()
    made = predict_embedded(source, leave_out=True)
    given = votes.majority(made.probabilities)
    people = f"{len(votes.label):,} votes of {len(votes.annotators):,} annotators"
    if name_one_class(votes):
        majority = _fall_back(votes, made.probabilities)
        made = predict_embedded(replace(source, labels=source.labels.renumber(given)))
        method = f"{people} who name one class each, so that their majority counts; {made.method}"
        return replace(made, method=method), majority
    consensus = agree(votes, made.probabilities)
    made = predict_embedded(
        replace(source, labels=source.labels.renumber(consensus.labels)), leave_out=True
    )
    consensus = agree(votes, made.probabilities)
    z = consensus.posterior.float()
    anything = z.new_full((votes.classes, votes.classes), 1 / votes.classes)  # z has seen the votes
    predictions = replace(
        made,
        labels=given,
        probabilities=z,
        method=f"{people}, with {made.method} as their prior",
        facts={**made.facts, "trust_in_prediction": consensus.trust},
        without_label=LeftOut.of(z, given, anything),
        transitions=None,
        mixed=None,
        informative=True,  # people's votes tell of their labels
    )
    return predictions, consensus


def name_one_class(votes: Votes) -> bool:
    """Whether most annotators only ever name one class, as rules do: what they take for what cannot be learned."""
    named = torch.zeros(len(votes.annotators), votes.classes, dtype=torch.bool, device="cpu")
    named[votes.annotator, votes.label] = True
    return bool((named.sum(1) <= 1).double().mean() > 0.5)


def _fall_back(votes: Votes, prior: Tensor) -> Consensus:
    """The shares of the votes; the prediction decides where they tie."""
    z = votes.counts().double() + 0.5 * prior
    z /= z.sum(1, keepdim=True)
    return Consensus(votes, z, _matrices(votes, z), 0.0)


def agree(votes: Votes, prior: Tensor) -> Consensus:
    """The consensus under the λ that makes the votes likeliest; `prior` is q (N, K), blind to the votes."""
    z = votes.counts().double() + prior
    z /= z.sum(1, keepdim=True)
    at = TRUSTS.index(1.0)
    best = _fit(votes, prior, TRUSTS[at], z)
    for step in (1, -1):  # uphill from 1
        while 0 <= at + step < len(TRUSTS):
            tried = _fit(votes, prior, TRUSTS[at + step], best[1])
            if tried[0] <= best[0]:
                break
            best, at = tried, at + step
    return Consensus(votes, best[1], best[2], TRUSTS[at])


def _fit(votes: Votes, prior: Tensor, trust: float, z: Tensor) -> tuple[float, Tensor, Tensor]:
    """The log-likelihood of the votes per example, z and C, by EM from this z."""
    first = (prior.clamp_min(1e-9).double().log() * trust).log_softmax(1)
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
    order = (off * prior[:, None]).flatten().argsort(descending=True, stable=True)
    pairs = [divmod(at, len(matrix)) for at in order[: 2 * len(matrix)].tolist()]
    return tuple((k, v, float(off[k, v])) for k, v in pairs if off[k, v] >= CONFUSED)
