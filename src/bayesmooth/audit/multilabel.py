"""Several labels per example: every tag is judged, and an example by the worst of its pairs.

Each tag has a Bernoulli posterior and its neighbours' votes; the neighbours are found once. A pair of example and tag
is an example with two classes, without the tag and with it, so transitions, scores, ambiguity and rates are those of
`predictions`.
"""

from dataclasses import dataclass, field
from math import pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.neighbours import Distinct, Similar, find_similar, hash_rows
from bayesmooth.audit.predictions import LeftOut, Predictions, learn_transitions, leave_above, predict_true_classes
from bayesmooth.audit.predictors import (
    SAMPLE,
    TEMPERATURES,
    TOLERANCE,
    Neighbours,
    Projection,
    Voters,
    choose_weight,
    read_pieces,
)
from bayesmooth.audit.table import Audit
from bayesmooth.data import Labels, Source
from bayesmooth.data.labels import Vocabulary
from bayesmooth.data.prepare import group_spellings, list_names
from bayesmooth.data.source import Kind
from bayesmooth.errors import InputError
from bayesmooth.progress import track
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.links import sigmoid_moments

Array = NDArray[Any]
FEWEST = 2  # examples that must have a tag, and that must lack it, for the tag to be judged
TWICE = 1 / 3  # margin of a value that is twice as likely as the other
PAIRS_WEIGHED = 500_000  # pairs on which the weight of the posteriors is chosen


class Tags(NamedTuple):
    """What is predicted of every pair of example and tag (N, T), the tags in the order of the vocabulary."""

    vocabulary: Vocabulary
    given: Array
    """1 where the example has the tag."""
    probabilities: Array
    """The probability that the example should have the tag; for a tag that is not judged, what is given."""
    scores: Array
    """Higher: the tag is more likely wrongly there, or wrongly not there."""
    worst: Array
    """The tag of each example that is most likely wrong (N,)."""


class TagAudit(Audit):
    """The audit of examples with several labels: a class is a set of tags."""

    tags: Tags

    def count_kinds(self) -> str:
        """How many tags there are."""
        return f"{len(self.tags.vocabulary.names)} tags"

    def tell(self, wrong: int) -> str:
        """How many tags look wrong."""
        changes = int(self.count_changes().sum())
        return f"{changes:,} tags look wrong, on {wrong:,} of {len(self):,} examples."

    def count_changes(self) -> Array:
        """2 × T: how many examples each tag should be added to, and removed from."""
        carried = self.tags.vocabulary.table(self.class_names).numpy()
        before, after = carried[self.given], carried[self.suggested]
        return np.stack([(after > before).sum(0), (after < before).sum(0)])

    def list_changes(self) -> dict[str, Array]:
        """The tags that each example lacks and probably should have, and those that it has and should not have."""
        names, subtract = self.class_names, self.tags.vocabulary.subtract
        pairs = list(zip(self.given.tolist(), self.suggested.tolist(), strict=True))
        add = [subtract(names[b], names[a]) if a != b else "" for a, b in pairs]
        remove = [subtract(names[a], names[b]) if a != b else "" for a, b in pairs]
        return {"tags_to_add": np.array(add, object), "tags_to_remove": np.array(remove, object)}

    def count_pairs(self, other: Array) -> Array:
        """Sets of tags are no classes to count pairs of."""
        raise InputError("matrix: an example has several labels; audit.count_changes() counts by tag")

    def soft_labels(self) -> Array:
        """Sets of tags have no distribution over classes."""
        raise InputError(
            "soft_labels: an example has several labels, and no distribution over classes; targets for binary "
            "cross-entropy are audit.tags.probabilities (N × T)"
        )

    def describe_labels(self) -> dict[str, Any]:
        """What audit.json says of every tag."""
        added, removed = self.count_changes().tolist()
        columns = (self.tags.vocabulary.names, self.tags.given.sum(0).tolist(), added, removed)
        names = ("name", "examples", "to_add", "to_remove")
        return {"tags": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]}

    def pair_labels(self) -> tuple[Array, Array]:
        """The worst tag of every example, and whether the example has it."""
        return self.tags.worst, self.tags.given[np.arange(len(self)), self.tags.worst]

    def find_similar(self, rows: Tensor, worst: Array) -> Similar:
        """The nearest examples that have the worst tag of each example as it has, and the nearest that do not."""
        parts = []
        for t in np.unique(self.tags.worst[worst]):
            carried = self.tags.given[:, t]
            some = worst[self.tags.worst[worst] == t]
            parts.append(find_similar(rows, carried, 1 - carried, some))
        return Similar(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class TagPredictions:
    """Two-class predictions of every judged tag, and the tables they make."""

    labels: Labels
    tags: tuple[Predictions, ...]
    judged: Tensor
    """Which tags of the vocabulary these are, (T,)."""
    mixed: Tensor
    """Whether a copy of the example differs in this tag (N, T)."""
    method: str
    facts: dict[str, object] = field(default_factory=dict)
    informative: ClassVar[bool] = True

    def pool(self) -> tuple[LeftOut, Tensor]:
        """All pairs as examples of 2T classes, each tag its own two: what rates are estimated from."""
        numbered = [(2 * t, tag.labels, tag.left_out) for t, tag in enumerate(self.tags)]
        parts = [left._replace(best_class=left.best_class + first) for first, _, left in numbered]
        labels = torch.cat([own + first for first, own, _ in numbered])
        return LeftOut(*map(torch.cat, zip(*parts, strict=True))), labels

    def judge(self) -> dict[str, Any]:
        """The columns of the table: the row of an example is that of its pair most likely wrong.

        As many pairs are contradicted as have another value that is twice as likely as the given one. If "likelier"
        were enough, nearly every tag that few examples have and nobody can predict would be contradicted.
        """
        given, words = self.labels.table(), self.labels.vocabulary
        assert words is not None
        pairs = torch.stack([tag.disagreement for tag in self.tags], 1)
        contradicted = sum(int((tag.margin > TWICE).sum()) for tag in self.tags)
        cut = leave_above(pairs.flatten(), contradicted)
        scores = torch.full_like(given, float(pairs.min()), dtype=pairs.dtype)
        shares, unclear = given.float(), torch.zeros_like(scores)
        close = torch.zeros_like(given, dtype=torch.bool)
        scores[:, self.judged] = pairs
        shares[:, self.judged] = torch.stack([tag.probabilities[:, 1] for tag in self.tags], 1)
        unclear[:, self.judged] = torch.stack([tag.ambiguity for tag in self.tags], 1)
        close[:, self.judged] = torch.stack([tag.left_out.close for tag in self.tags], 1)
        worst = scores.argmax(1, keepdim=True)
        moved = torch.where(scores > cut, 1 - given, given)
        moved = torch.where(self.mixed, (shares > 0.5).long(), moved)  # copies get the same tags
        number = {name: k for k, name in enumerate(self.labels.names)}  # new sets come last
        suggested = self.labels.numbers.clone()
        for i in (moved != given).any(1).nonzero().flatten().tolist():
            tags = [name for name, on in zip(words.names, moved[i].tolist(), strict=True) if on]
            suggested[i] = number.setdefault(words.write(tags), len(number))
        own = torch.where(given == 1, shares, 1 - shares).gather(1, worst).squeeze(1)
        disagreement = scores.gather(1, worst).squeeze(1)
        parts = (part.numpy() for part in (given, shares, scores, worst.squeeze(1)))
        return {
            "class_names": tuple(number),
            "given": self.labels.numbers,
            "suggested": suggested,
            "given_probability": own,
            "suggested_probability": torch.where(disagreement > cut, 1 - own, own),
            "disagreement": disagreement,
            "ambiguity": unclear.gather(1, worst).squeeze(1),
            "close": close.gather(1, worst).squeeze(1),
            "disagreement_threshold": cut,
            "tags": Tags(words, *parts),
        }


def predict_tags(source: Source, leave_out: bool = False) -> TagPredictions:
    """Predictions of every tag that enough examples have and enough lack."""
    labels = source.labels
    assert labels.vocabulary is not None
    if len(source) > SAMPLE:
        raise InputError(f"{len(source):,} examples with several labels each: at most {SAMPLE:,}; audit them in parts")
    given, judged = labels.table(), find_judged(labels)
    if not judged.any():
        raise InputError(
            f"{source.name}: none of the tags {list_names(labels.vocabulary.names)} is on {FEWEST} examples and "
            f"missing on {FEWEST}: nothing can be learned"
        )
    every = torch.arange(len(source), device="cpu")
    rows = torch.cat([rows for _, rows in read_pieces(source, every, "reading")])
    features = Projection.of(rows).features(rows)
    distinct = Distinct.of(hash_rows(rows))
    voters = Voters.of(rows, labels.numbers, source.num_classes)
    found = voters.find(rows)
    mixed = torch.stack([distinct.mean(tag.double()) for tag in given.unbind(1)], 1) != given
    columns = given[:, judged].unbind(1)
    asked = [
        ask(features, column, voters.relabel(distinct, column, 2), found)
        for column in track(columns, description="tags")
    ]
    step = -(-len(asked) * len(source) // PAIRS_WEIGHED)

    def likelihood(tags: list[Tensor]) -> Tensor:
        parts = [torch.where(e.labels == 1, p, 1 - p) for e, p in zip(asked, tags, strict=True)]
        return torch.cat(parts)[::step, None]

    votes = {t: likelihood([each.votes[t] for each in asked]) for t in TEMPERATURES}
    temperature, weight = choose_weight(likelihood([each.left_out for each in asked]), votes)
    made = tuple(_combine(each, temperature, weight, leave_out) for each in asked)
    way = "leave-one-out" if leave_out else "in-sample"
    neighbours = f"{found.voters.shape[1] - 1} neighbours, {way}"
    method = f"a variational logistic regression for each of {len(made)} tags, and {neighbours}"
    facts: dict[str, object] = {
        "components": features.shape[1] - 1,
        "weight_of_posterior": round(weight, 3),
        "weight_of_neighbours": round(1 - weight, 3),
    }
    return TagPredictions(labels, made, judged, mixed & voters.copies, method, facts)


def take_tag_probabilities(source: Source, rows: Tensor) -> TagPredictions:
    """Somebody's P(tag) (N, T), out of sample one hopes."""
    labels = source.labels
    assert labels.vocabulary is not None
    given = labels.table()
    if rows.shape != given.shape or not bool(((rows >= 0) & (rows <= 1)).all()):
        raise InputError(
            f"probabilities of shape {tuple(rows.shape)}: must be {len(given)} × {given.shape[1]}, one column per tag, "
            "each from 0 to 1; pass logits.sigmoid()"
        )
    columns = zip(given.unbind(1), rows.unbind(1), strict=True)
    made = tuple(Predictions(tag, _two(p)) for tag, p in columns)
    judged = torch.ones(len(made), dtype=torch.bool, device="cpu")
    mixed = torch.zeros_like(given, dtype=torch.bool)
    return TagPredictions(labels, made, judged, mixed, f"probabilities of {len(made)} tags as given")


def find_judged(labels: Labels) -> Tensor:
    """Which tags enough examples have and enough lack (T,)."""
    counts = labels.table().sum(0)
    return torch.minimum(counts, len(labels) - counts) >= FEWEST


def note_odd_tags(source: Source) -> Source:
    """With notes on tags that differ only in case or blanks, and on those that are not judged."""
    labels = source.labels
    assert labels.vocabulary is not None
    names = labels.vocabulary.names
    for _, text in group_spellings(names, labels.table().sum(0)):
        source = source.note(Kind.TAG_SPELLING, text.replace("labels", "tags"))
    odd = [names[t] for t in (~find_judged(labels)).nonzero().flatten().tolist()]
    if odd:
        tags = "1 tag is" if len(odd) == 1 else f"{len(odd)} tags are"
        text = f"{tags} not judged, as fewer than {FEWEST} examples have or lack them: {list_names(odd)}"
        source = source.note(Kind.SINGLE_EXAMPLE, text)
    return source


class Asked(NamedTuple):
    """What the posterior and the neighbours say of one tag, as P(tag) of every example."""

    labels: Tensor
    seen: Tensor
    left_out: Tensor
    noise: Tensor
    votes: dict[float, Tensor]


def ask(features: Tensor, labels: Tensor, voters: Voters, found: Neighbours) -> Asked:
    """One tag's posterior, with each example's own pull taken back too (`predictions.leave_one_out`), and the votes."""
    mean, var = fit_tag(features, labels).logits(features)
    seen = sigmoid_moments(mean, var).mean
    left = var / (1 + var * seen * (1 - seen))
    left_out = torch.sigmoid((mean + left * (seen - labels)) / (1 + pi / 8 * left).sqrt())
    votes = {t: voters.vote(found, labels, t, 2)[:, 1] for t in TEMPERATURES}
    return Asked(labels, seen, left_out, torch.sigmoid(mean) - seen, votes)


def fit_tag(features: Tensor, labels: Tensor) -> GLMFit:
    """VON for one tag, its prior precision chosen by the ELBO."""
    return fit_glm(
        features,
        labels,
        family="bernoulli",
        covariance="diagonal",
        prior_precision="elbo",
        bias=False,
        tol=TOLERANCE,
        dtype=torch.float32,
    )


def _combine(asked: Asked, temperature: float, weight: float, leave_out: bool) -> Predictions:
    """The two-class prediction of one tag, with its transitions taken back (`predictors.predict_embedded`)."""
    votes, labels = asked.votes[temperature], asked.labels
    unseen = _two(torch.lerp(votes, asked.left_out, weight))
    transitions = learn_transitions(unseen, labels)
    without = shown = predict_true_classes(unseen, transitions)
    if not leave_out:
        shown = predict_true_classes(_two(torch.lerp(votes, asked.seen, weight)), transitions)
    noise = torch.stack([-asked.noise, asked.noise], 1)
    left_out = LeftOut.of(without, labels, transitions)
    return Predictions(labels, shown, noise, without_label=left_out, transitions=transitions)


def _two(p: Tensor) -> Tensor:
    return torch.stack([1 - p, p], 1)
