"""Several people's labels of the same examples: their consensus, and the quality of every annotator.

The model is Dawid and Skene's (1979) with a prediction as the prior of every example. With true class k, annotator a
says v with probability C_a[k, v], so the posterior of the true class is

    z_ik ∝ q_ik^λ Π_a C_a[k, v_ia]^w_a,

q being the prediction that has not seen the example's labels. EM alternates between z and C. An annotator's matrix is
drawn to the one of all annotators, and that to "right, or wrong anywhere": with few votes there is little to learn of
one person. λ is the one under which the votes are likeliest, so that a prediction which knows less than the people do
hardly counts; with λ = 0 there are only the votes. Annotators who make the same errors, as LLMs do, are no independent
voters: w_a is 1 over the number of voices that speak as one with a (`weigh`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut, Predictions, wilson
from bayesmooth.audit.predictors import predict_embedded
from bayesmooth.data import Source
from bayesmooth.data.labels import Votes
from bayesmooth.data.source import Kind
from bayesmooth.progress import format_percent

TRUSTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # λ that are tried
PERSON = 10.0  # votes for which the matrix of all annotators counts in each row of one annotator's
EVERYONE = 1.0  # votes for which "anywhere" counts in each row of the matrix of all annotators
STEPS, TOLERANCE = 100, 1e-2  # of EM: until no probability moves by more
AGAIN = 100  # examples that are listed to be labelled again
CERTAIN = 0.99  # probability of the consensus above which the report asks nobody again
CONFUSED = 0.05  # a confusion is reported if it affects at least this share of a class's examples
MOST_COMPARED = 50  # annotators up to which every pair is compared
SHARED = 30  # examples that both must have labelled for that
TOGETHER = 0.2  # agreement beyond what their skills explain: less may be chance
ALIKE = 0.9  # of the agreement of a pair: an annotator who agrees with them as much may be of the same kind


@dataclass(frozen=True)
class Consensus:
    """The true classes by the votes and the prediction together."""

    votes: Votes
    posterior: Tensor
    """P(true class), (N, K)."""
    matrices: Tensor
    """C (A, K, K): rows are true classes."""
    trust: float
    """λ, of the prediction."""
    weights: Tensor
    """w (A,)."""

    @property
    def labels(self) -> Tensor:
        """The most probable classes."""
        return self.posterior.argmax(1)

    def annotators(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """One record per annotator, the best first: the share of right votes with its 95 % interval, Cohen's κ with
        the others (the mean over those who labelled enough of the same examples), w, and the confusions, most frequent
        first."""
        votes, prior, kappas, k = self.votes, self.posterior.mean(0), compare_people(self.votes), len(names)
        probabilities = self.posterior[votes.example, votes.label].double()
        counts = torch.bincount(votes.annotator, minlength=len(votes.annotators))
        shares = torch.bincount(votes.annotator, probabilities, len(counts)) / counts.clamp_min(1)
        records = []
        for a, (name, count) in enumerate(zip(votes.annotators, counts.tolist(), strict=True)):
            share, agreements = float(shares[a]), kappas[a][~np.isnan(kappas[a])]
            low, high = wilson(share, count) if count else (0.0, 1.0)
            off = self.matrices[a].clone().fill_diagonal_(0)
            order = (off * prior[:, None]).flatten().argsort(descending=True, stable=True)[: 2 * k].tolist()
            takes = [(names[i // k], names[i % k], float(off[i // k, i % k])) for i in order]
            records.append(
                {
                    "annotator": name,
                    "votes": count,
                    "quality": round(share, 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "kappa": round(float(agreements.mean()), 4) if len(agreements) else None,
                    "weight": round(float(self.weights[a]), 4),
                    "confusions": "; ".join(
                        f"{true} as {label} {format_percent(p)}" for true, label, p in takes if p >= CONFUSED
                    ),
                }
            )
        return sorted(records, key=lambda one: -one["quality"])

    def to_payload(self) -> dict[str, Any]:
        """The data of the report beside these records: the votes on every example, and the examples to label again."""
        again = [(i, k, round(share, 4), who) for i, k, share, who in self.list_again() if share < CERTAIN]
        return {"names": self.votes.annotators, "votes": self.votes.by_example(), "again": again}

    def list_again(self) -> list[tuple[int, int, float, str]]:
        """The least certain examples: position, most probable class, its probability, and the annotator to ask, whose
        vote is likeliest to decide it.

        After one more vote of annotator a the best class is expected to have Σ_v max_k z_k C_a[k, v].
        """
        voted = set(zip(self.votes.example.tolist(), self.votes.annotator.tolist(), strict=True))
        best, classes = self.posterior.max(1)
        chosen = []
        for i in best.argsort(stable=True)[:AGAIN].tolist():
            certain = (self.posterior[i, :, None] * self.matrices).amax(1).sum(1)
            order = certain.argsort(descending=True, stable=True).tolist()
            who = next((a for a in order if (i, a) not in voted), order[0])
            chosen.append((i, int(classes[i]), float(best[i]), self.votes.annotators[who]))
        return chosen


def predict_consensus(source: Source, classes: Mapping[int, int]) -> tuple[Predictions, Consensus, Source]:
    """Predictions of the majority's labels, the consensus that they come from, and the source with these and notes.

    The prediction learns from the majority first, then once more from the consensus. Both times every example is left
    out: its prediction must not repeat its votes. `classes` are those that a review decided, by position: annotators
    are judged by them. The predictions do not know them, as the share of wrong labels is told by their errors.
    """
    votes = source.labels.count_votes()
    predictions = predict_embedded(source, leave_out=True)
    given = votes.majority(predictions.probabilities)
    source = replace(source, labels=source.labels.renumber(given))
    people = f"{len(votes.label):,} votes of {len(votes.annotators):,} annotators"
    named = torch.zeros(len(votes.annotators), votes.classes, dtype=torch.bool, device="cpu")
    named[votes.annotator, votes.label] = True
    if bool((named.sum(1) <= 1).double().mean() > 0.5):  # rules: their confusions cannot be learned
        z = votes.counts().double() + 0.5 * predictions.probabilities
        z /= z.sum(1, keepdim=True)
        ones = torch.ones(len(named), dtype=torch.float64, device="cpu")
        majority = Consensus(votes, z, _matrices(votes, z), 0.0, ones)
        predictions = predict_embedded(source)
        method = f"{people} who name one class each, so that their majority counts; {predictions.method}"
        rules = "most annotators only ever name one class, as rules do: their majority counts"
        return replace(predictions, method=method), majority, source.note(Kind.LEARNED, rules)
    consensus = agree(votes, predictions.probabilities, informative=predictions.informative)
    prior = predict_embedded(replace(source, labels=source.labels.renumber(consensus.labels)), leave_out=True)
    consensus = agree(votes, prior.probabilities, informative=prior.informative)
    z = consensus.posterior.float()
    anything = z.new_full((votes.classes, votes.classes), 1 / votes.classes)  # z has seen the votes
    predictions = replace(
        prior,
        labels=given,
        probabilities=z,
        method=f"{people}, with {prior.method} as their prior",
        facts={**prior.facts, "trust_in_prediction": consensus.trust},
        without_label=LeftOut.of(z, given, anything),
        transitions=None,
        mixed=None,
        informative=True,  # people's votes tell of their labels
    )
    if consensus.trust == TRUSTS[-1]:
        text = "the prediction counts as much as it may beside the votes: look at some yourself"
        source = source.note(Kind.LEARNED, text)
    some = consensus.weights < 1
    if bool(some.any()):
        names = ", ".join(np.array(votes.annotators, object)[some.numpy()])
        count = f"{float(consensus.weights[some].sum()):.1f}"
        source = source.note(Kind.LEARNED, f"the same errors are made by {names}, who count as {count} annotators")
    if classes:
        consensus = agree(votes, prior.probabilities, classes, prior.informative)
    return predictions, consensus, source


def agree(votes: Votes, prior: Tensor, classes: Mapping[int, int] | None = None, informative: bool = True) -> Consensus:
    """The consensus under the λ that makes the votes likeliest. `prior` is q (N, K), blind to the votes, and another
    voter if it is `informative`. Of the examples in `classes`, by position, the class is certain."""
    weights = weigh(votes, prior.argmax(1) if informative else None)
    sure = prior.new_zeros(len(prior), prior.shape[1], dtype=torch.float64)
    if classes:
        sure[list(classes), list(classes.values())] = 1

    def fit(trust: float, z: Tensor) -> tuple[float, Tensor, Tensor]:
        """The log-likelihood of the votes per example, z and C, by EM from this z."""
        first = (prior.clamp_min(1e-9).double().log() * trust).log_softmax(1)
        first = torch.where(sure.any(1, keepdim=True), sure.log().clamp_min(-1e3), first)
        for _ in range(STEPS):
            matrices = _matrices(votes, z)
            said = matrices.log()[votes.annotator, :, votes.label]
            joint = first.index_add(0, votes.example, weights[votes.annotator, None] * said)
            likelihood = joint.logsumexp(1)
            moved = joint.sub(likelihood[:, None]).exp()
            step, z = float((moved - z).abs().max()), moved
            if step < TOLERANCE:
                break
        return float(likelihood.mean()), z, matrices

    z = prior.double().clone()
    vote_weights = weights[votes.annotator].to(z)
    z.view(-1).index_add_(0, votes.example * votes.classes + votes.label, vote_weights)
    at = TRUSTS.index(1.0)
    best = fit(TRUSTS[at], z / z.sum(1, keepdim=True))
    for step in (1, -1):  # uphill from 1
        while 0 <= at + step < len(TRUSTS):
            tried = fit(TRUSTS[at + step], best[1])
            if tried[0] <= best[0]:
                break
            best, at = tried, at + step
    return Consensus(votes, best[1], best[2], TRUSTS[at], weights)


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


def compare_people(votes: Votes, more: Tensor | None = None) -> np.ndarray:
    """Cohen's κ of all pairs (A, A), NaN where they share too few examples; `more` are labels (N,) of one more."""
    count = len(votes.annotators) + (more is not None)
    kappas = np.full((count, count), np.nan)
    if count > MOST_COMPARED:
        return kappas
    said = np.full((votes.examples, count), -1)
    said[votes.example, votes.annotator] = votes.label
    if more is not None:
        said[:, -1] = more
    for a in range(count):
        for b in range(a):
            one, other = said[(said[:, a] >= 0) & (said[:, b] >= 0)][:, [a, b]].T
            if len(one) >= SHARED:
                shares = [np.bincount(v, minlength=votes.classes) / len(v) for v in (one, other)]
                chance = float(shares[0] @ shares[1])
                kappa = (np.mean(one == other) - chance) / max(1 - chance, 1e-9)
                kappas[a, b] = kappas[b, a] = kappa
    return kappas


def weigh(votes: Votes, predicted: Tensor | None) -> Tensor:
    """w (A,): the part of an independent voter that each annotator counts as; the prediction is a voter beside them.

    If voters err independently, κ_ab = s_a s_b with the skills s, and every triple tells s_a² = κ_ac κ_ad / κ_cd. The
    agreement of a pair beyond s_a s_b is shared. Pairs are judged from the most alike on, by voters who are not like
    them, and one of two who speak together stands for both.
    """
    kappas, people = compare_people(votes, predicted), len(votes.annotators)
    leader, shared = np.arange(len(kappas)), np.zeros(len(kappas))
    for pair in np.argsort(-np.nan_to_num(np.tril(kappas)), axis=None).tolist():
        a, b = divmod(pair, len(kappas))
        if not kappas[a, b] > TOGETHER:
            break
        apart = (kappas[[a, b]] < ALIKE * kappas[a, b]).all(0) & (kappas[[a, b]] > 0).all(0)
        others = np.flatnonzero(apart & (leader == np.arange(len(leader))))
        among = kappas[np.ix_(others, others)][np.triu_indices(len(others), 1)]
        if max(a, b) >= people or not (among > 0).any():
            continue
        skill = []
        for one in (a, b):
            told = np.outer(kappas[one, others], kappas[one, others])
            triples = told[np.triu_indices(len(others), 1)][among > 0] / among[among > 0]
            skill.append(min(float(np.median(triples)), 1.0) ** 0.5)
        alone = skill[0] * skill[1]
        together = (kappas[a, b] - alone) / max(1 - alone, 1e-9)
        if together > TOGETHER:
            shared[[a, b]] = np.maximum(shared[[a, b]], together)
            leader[leader == leader[a]] = leader[b]
    size = np.bincount(leader)[leader]
    return torch.from_numpy(1 / (1 + (size - 1) * shared)[:people])
