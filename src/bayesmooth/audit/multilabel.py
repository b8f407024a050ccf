"""Several labels per example: every tag is judged, and an example by the worst of its pairs.

Each tag has a Bernoulli posterior and its neighbours' votes; the neighbours are found once. A pair of example and tag
is an example with two classes, without the tag and with it, so transitions, scores, ambiguity and rates are those of
`predictions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.neighbours import Similar, differ_from_copies, find_similar, group_copies, hash_rows
from bayesmooth.audit.predictions import (
    LeftOut,
    Predictions,
    learn_transitions,
    leave_above,
    measure_lead,
    predict_true_classes,
)
from bayesmooth.audit.predictors import (
    FIT,
    SAMPLE,
    TEMPERATURES,
    Projection,
    Voters,
    choose_weight,
    count_labels,
    read_rows,
)
from bayesmooth.audit.table import Audit
from bayesmooth.data import Labels, Source
from bayesmooth.data.labels import Vocabulary
from bayesmooth.data.opening import group_spellings, quote_names
from bayesmooth.data.source import Kind
from bayesmooth.errors import InputError
from bayesmooth.progress import track
from bayesmooth.theory.glm import fit_glm
from bayesmooth.theory.links import sigmoid_moments

Array = NDArray[Any]
FEWEST = 2  # examples that must have a tag, and that must lack it, for the tag to be judged
TWICE = 1 / 3  # margin of a value that is twice as likely as the other
PAIRS_WEIGHED = 500_000  # pairs on which the weight of the posteriors is chosen


class Tags(NamedTuple):
    """Predictions of every pair of example and tag (N, T), the tags in the order of the vocabulary."""

    vocabulary: Vocabulary
    given: Array
    """1 where the example has the tag."""
    probabilities: Array
    """The probability that the example should have the tag; for a tag that is not judged, its given value."""
    scores: Array
    """Higher: the tag is more likely wrongly there, or wrongly not there."""
    worst: Array
    """The tag of each example that is most likely wrong (N,)."""


class TagAudit(Audit):
    """The audit of examples with several labels: a class is a set of tags."""

    unit = "tags"
    tags: Tags

    def __post_init__(self) -> None:
        super().__post_init__()
        self.label_names = self.tags.vocabulary.names

    @property
    def headline(self) -> str:
        """The claim in one sentence, which counts tags."""
        if "error_rate" in self.summary:
            return super().headline
        changes, wrong = int(self.count_changes().sum()), int(self.contradicted.sum())
        return f"{changes:,} tag{' looks' if changes == 1 else 's look'} wrong, on {wrong:,} of {len(self):,} examples."

    def count_changes(self) -> Array:
        """2 × T: the number of examples that each tag should be added to, and removed from."""
        carried = self.tags.vocabulary.table(self.class_names).numpy()
        before, after = carried[self.given], carried[self.suggested]
        return np.stack([(after > before).sum(0), (after < before).sum(0)])

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        """With the tags that each example lacks and should probably have, and those that it has and should not have."""
        table, subtract = super()._columns, self.tags.vocabulary.subtract
        pairs = list(zip(table["given"], table["suggested"], strict=True))
        table["tags_to_add"] = [subtract(new, old) if old != new else "" for old, new in pairs]
        table["tags_to_remove"] = [subtract(old, new) if old != new else "" for old, new in pairs]
        return table

    def describe_labels(self) -> dict[str, Any]:
        """The entries of audit.json on every tag."""
        columns = (self.label_names, self.tags.given.sum(0).tolist(), *self.count_changes().tolist())
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
            parts.append(find_similar(rows, carried, 1 - carried, worst[self.tags.worst[worst] == t]))
        return Similar(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class TagPredictions:
    """Two-class predictions of every judged tag, and the tables they make."""

    given: Labels
    tags: tuple[Predictions, ...]
    judged: Tensor
    """The mask of these tags in the vocabulary (T,)."""
    mixed: Tensor
    """Whether a copy of the example differs in this tag (N, T)."""
    method: str
    facts: Mapping[str, object] = field(default_factory=dict)
    informative: ClassVar[bool] = True

    @property
    def labels(self) -> Tensor:
        """All pairs as examples of 2T classes, two for each tag: rates are estimated from these."""
        return torch.cat([2 * t + tag.labels for t, tag in enumerate(self.tags)])

    @property
    def left_out(self) -> LeftOut:
        """The predictions of these."""
        parts = [tag.left_out._replace(best_class=tag.left_out.best_class + 2 * t) for t, tag in enumerate(self.tags)]
        return LeftOut(*map(torch.cat, zip(*parts, strict=True)))

    def judge(self) -> dict[str, Any]:
        """The columns of the table: the row of an example is that of its pair most likely wrong.

        As many pairs are contradicted as have another value that is twice as likely as the given one. If "likelier"
        were enough, nearly every tag that few examples have and nobody can predict would be contradicted.
        """
        given, words = self.given.table(), self.given.vocabulary
        assert words is not None
        pairs = torch.stack([tag.disagreement for tag in self.tags], 1)
        leads = [measure_lead(tag.probabilities, tag.labels) for tag in self.tags]
        cut = leave_above(pairs.flatten(), sum(int((lead > TWICE).sum()) for lead in leads))
        scores = torch.full_like(given, float(pairs.min()), dtype=pairs.dtype)
        shares, unclear, close = given.float(), torch.zeros_like(scores), torch.zeros_like(given, dtype=torch.bool)
        scores[:, self.judged] = pairs
        shares[:, self.judged] = torch.stack([tag.probabilities[:, 1] for tag in self.tags], 1)
        unclear[:, self.judged] = torch.stack([tag.left_out.entropy for tag in self.tags], 1)
        close[:, self.judged] = torch.stack([tag.left_out.close for tag in self.tags], 1)
        moved = torch.where(scores > cut, 1 - given, given)
        moved = torch.where(self.mixed, (shares > 0.5).long(), moved)  # copies get the same tags
        number = {name: k for k, name in enumerate(self.given.names)}  # new sets come last
        suggested = self.given.numbers.clone()
        for i in (moved != given).any(1).nonzero().flatten().tolist():
            tags = [name for name, on in zip(words.names, moved[i].tolist(), strict=True) if on]
            suggested[i] = number.setdefault(words.write(tags), len(number))
        worst = scores.argmax(1, keepdim=True)
        given_probability = torch.where(given == 1, shares, 1 - shares).gather(1, worst).squeeze(1)
        disagreement = scores.gather(1, worst).squeeze(1)
        parts = (part.numpy() for part in (given, shares, scores, worst.squeeze(1)))
        return {
            "class_names": tuple(number),
            "given": self.given.numbers,
            "suggested": suggested,
            "given_probability": given_probability,
            "suggested_probability": torch.where(disagreement > cut, 1 - given_probability, given_probability),
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
    table, judged = labels.table(), find_judged(labels)
    if not judged.any():
        raise InputError(
            f"{source.name}: none of the tags {quote_names(labels.vocabulary.names)} is on {FEWEST} examples and "
            f"missing on {FEWEST}: nothing can be learned"
        )
    rows = read_rows(source)
    features, group = Projection.of(rows).features(rows), group_copies(hash_rows(rows))[0]
    voters = Voters.of(rows, labels.numbers, source.num_classes)
    neighbours, parts = voters.find(rows), []
    given = table[:, judged]
    for tag in track(given.unbind(1), description="tags"):
        named, times = count_labels(group, tag, 2)
        asked = voters._replace(labels=named, counts=times)
        parts.append((*predict_tag(features, tag), *(asked.vote(neighbours, tag, t, 2)[:, 1] for t in TEMPERATURES)))
    seen, left_out, *votes = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    step = -(-given.numel() // PAIRS_WEIGHED)
    likely = [torch.where(given == 1, p, 1 - p).T.flatten()[::step, None] for p in (left_out, *votes)]
    temperature, weight = choose_weight(likely[0], dict(zip(TEMPERATURES, likely[1:], strict=True)))
    voted = votes[TEMPERATURES.index(temperature)]
    unseen, shown = (torch.lerp(voted, p, weight) for p in (left_out, seen))
    tags = []
    for tag, without, p in zip(given.unbind(1), unseen.unbind(1), shown.unbind(1), strict=True):
        two = torch.stack([1 - without, without], 1)
        transitions = learn_transitions(two, tag)
        blind = predict_true_classes(two, transitions)
        q = blind if leave_out else predict_true_classes(torch.stack([1 - p, p], 1), transitions)
        tags.append(Predictions(tag, q, without_label=LeftOut.of(blind, tag, transitions), transitions=transitions))
    mixed = torch.stack([differ_from_copies(group, tag) for tag in table.unbind(1)], 1)
    way = f"{neighbours[0].shape[1] - 1} neighbours, {'leave-one-out' if leave_out else 'in-sample'}"
    facts = {
        "components": features.shape[1] - 1,
        "weight_of_posterior": round(weight, 3),
        "weight_of_neighbours": round(1 - weight, 3),
    }
    method = f"a variational logistic regression for each of {len(tags)} tags, and {way}"
    return TagPredictions(labels, tuple(tags), judged, mixed & voters.copies, method, facts)


def predict_tag(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """P(tag) (N,) by a posterior that has seen the labels, and with each example's own pull on it taken back
    (`predictions.predict_left_out`)."""
    mean, var = fit_glm(features, labels, family="bernoulli", **FIT).logits(features)
    seen = sigmoid_moments(mean, var).mean
    left = var / (1 + var * seen * (1 - seen))
    return seen, torch.sigmoid((mean + left * (seen - labels)) / (1 + pi / 8 * left).sqrt())


def take_tag_probabilities(source: Source, rows: Tensor) -> TagPredictions:
    """P(tag) (N, T) by another model, which should be out of sample."""
    labels = source.labels
    assert labels.vocabulary is not None
    given = labels.table()
    if rows.shape != given.shape or not bool(((rows >= 0) & (rows <= 1)).all()):
        raise InputError(
            f"probabilities of shape {tuple(rows.shape)}: must be {len(given)} × {given.shape[1]}, one column per tag, "
            "each from 0 to 1; pass logits.sigmoid()"
        )
    columns = zip(given.unbind(1), rows.unbind(1), strict=True)
    tags = tuple(Predictions(tag, torch.stack([1 - p, p], 1)) for tag, p in columns)
    none = torch.zeros_like(given, dtype=torch.bool)
    return TagPredictions(labels, tags, ~none[0], none, f"probabilities of {len(tags)} tags as given")


def find_judged(labels: Labels) -> Tensor:
    """The mask of the tags that enough examples have and enough lack (T,)."""
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
        text = f"not judged, as fewer than {FEWEST} examples have or lack them: {len(odd)} tags ({quote_names(odd)})"
        source = source.note(Kind.SINGLE_EXAMPLE, text)
    return source
