"""Tags, judged one by one: a Bernoulli posterior and the neighbours' votes for each, and an example by its worst pair.

The neighbours are found once. A pair of example and tag is an example with two classes, without the tag and with it, so
transitions, scores, ambiguity and rates are those of `scores`, `transitions` and `rates`.
"""

from dataclasses import dataclass, field
from math import pi
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.embedded import SAMPLE
from bayesmooth.audit.findings import read_rows
from bayesmooth.audit.kinds import Classes
from bayesmooth.audit.neighbours import Distinct, hash_rows
from bayesmooth.audit.predictions import (
    LeftOut,
    Predictions,
    ambiguity,
    leave_above,
    margin,
    root_margin,
)
from bayesmooth.audit.predictors import (
    TEMPERATURES,
    TOLERANCE,
    Neighbours,
    Projection,
    Voters,
    choose_weight,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.similar import Similar, find_similar
from bayesmooth.audit.subjects import Embedded, Predicted, Subject
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes
from bayesmooth.data import Source
from bayesmooth.data.labels import TagLabels
from bayesmooth.data.prepare import group_spellings, list_names
from bayesmooth.data.source import Kind, Note
from bayesmooth.data.tags import Vocabulary
from bayesmooth.errors import InputError
from bayesmooth.progress import track
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.moments import sigmoid_moments

if TYPE_CHECKING:
    from bayesmooth.audit.table import Audit

Array = NDArray[Any]
MOST_SHOWN = 20  # tags in the figure
FEWEST = 2  # examples that must have a tag, and that must lack it, for the tag to be judged
TWICE = 1 / 3  # margin of a value that is twice as likely as the other
PAIRS_WEIGHED = 500_000  # pairs on which the weight of the posteriors is chosen


@dataclass(frozen=True, eq=False)
class Tags(Classes):
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
    mixed: Array
    """Whether a copy of the example differs in this tag."""

    def count_kinds(self, audit: "Audit") -> str:
        """How many tags there are."""
        return f"{len(self.vocabulary.names)} tags"

    def say(self, audit: "Audit", wrong: int) -> str:
        """The claim in one sentence."""
        changes = int(self.count_changes(audit).sum())
        return f"{changes:,} tags look wrong, on {wrong:,} of {len(audit):,} examples."

    def columns(self, audit: "Audit") -> dict[str, Array]:
        """The tags that each example lacks and probably should have, and those that it has and should not have."""
        names, subtract = audit.class_names, self.vocabulary.subtract
        given, suggested = audit.given.tolist(), audit.suggested.tolist()
        pairs = [
            ("", "") if a == b else (names[a], names[b])
            for a, b in zip(given, suggested, strict=True)
        ]
        add = [subtract(b, a) if a else "" for a, b in pairs]
        remove = [subtract(a, b) if a else "" for a, b in pairs]
        return {"tags_to_add": np.array(add, object), "tags_to_remove": np.array(remove, object)}

    def count_changes(self, audit: "Audit") -> Array:
        """2 × T: how many examples each tag should be added to, and removed from."""
        carried = self.vocabulary.table(audit.class_names).numpy()
        before, after = carried[audit.given], carried[audit.suggested]
        return np.stack([(after > before).sum(0), (after < before).sum(0)])

    def count_pairs(self, audit: "Audit", other: Array) -> Array:
        """Sets of tags are no classes to count pairs of."""
        raise InputError(
            "matrix: an example has several labels; `audit.tags.count_changes(audit)` counts by tag"
        )

    def soft_labels(self, audit: "Audit") -> Array:
        """Sets of tags have no distribution over classes."""
        raise InputError(
            "soft_labels: an example has several labels, and no distribution over classes; targets for binary "
            "cross-entropy are audit.tags.probabilities (N × T)"
        )

    def summarise(self, audit: "Audit") -> dict[str, Any]:
        """What audit.json says of every tag."""
        names = ("name", "examples", "to_add", "to_remove")
        rows = zip(
            self.vocabulary.names, self.given.sum(0), *self.count_changes(audit), strict=True
        )
        counted = [
            dict(zip(names, (name, *map(int, counts)), strict=True)) for name, *counts in rows
        ]
        return {"tags": counted}

    def find_similar(self, audit: "Audit", rows: Tensor, worst: Array) -> Similar:
        """The nearest examples that have the worst tag of each example as it has, and the nearest that do not."""
        parts = []
        for t in np.unique(self.worst[worst]):
            carried = self.given[:, t]
            some = worst[self.worst[worst] == t]
            parts.append(find_similar(rows, carried, 1 - carried, some))
        return Similar(*map(np.concatenate, zip(*parts, strict=True)))

    def plot(self, audit: "Audit", axes: Any) -> None:
        """How many examples each tag should be added to and removed from, of those that change most."""
        added, removed = self.count_changes(audit)
        most = (added + removed).argsort(kind="stable")[-MOST_SHOWN:]
        names = [self.vocabulary.names[t] for t in most]
        axes.barh(names, added[most], color="#0072b2", label="to add")
        axes.barh(names, -removed[most], color="#d55e00", label="to remove")
        axes.legend(frameon=False, fontsize=8)


@dataclass(frozen=True, eq=False)
class TagPredictions:
    """Two-class predictions of every judged tag, and the tables they make."""

    labels: Tensor
    """The set of every example, a position in the class names."""
    tags: tuple[Predictions, ...]
    judged: Tensor
    """Which tags of the vocabulary these are, (T,)."""
    vocabulary: Vocabulary
    given: Tensor
    mixed: Tensor
    method: str
    facts: dict[str, object] = field(default_factory=dict)
    problems: tuple[Note, ...] = ()

    informative: ClassVar[bool] = True
    are_classes: ClassVar[bool] = False

    def name_rows(self) -> tuple[str, ...]:
        """Positions as ids."""
        return tuple(map(str, range(len(self.labels))))

    def pool(self) -> tuple[LeftOut, Tensor]:
        """All pairs as examples of 2T classes, each tag its own two: what rates are estimated from."""
        numbered = [(2 * t, tag.labels, tag.left_out) for t, tag in enumerate(self.tags)]
        parts = [left._replace(best_class=left.best_class + first) for first, _, left in numbered]
        labels = torch.cat([own + first for first, own, _ in numbered])
        return LeftOut(*map(torch.cat, zip(*parts, strict=True))), labels

    def judge(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The columns of the table: the row of an example is that of its pair most likely wrong.

        As many pairs are contradicted as have another value that is twice as likely as the given one. If "likelier"
        were enough, nearly every tag that few examples have and nobody can predict would be contradicted.
        """
        found = [root_margin(tag) for tag in self.tags]
        contradicted = sum(int((margin(tag) > TWICE).sum()) for tag in self.tags)
        pairs = torch.stack(found, 1)
        cut = leave_above(pairs.flatten(), contradicted)
        given = self.given.float()
        scores = self._spread(found, torch.full_like(given, float(pairs.min()), dtype=pairs.dtype))
        shares = self._spread([tag.probabilities[:, 1] for tag in self.tags], given)
        unclear = self._spread([ambiguity(tag) for tag in self.tags], torch.zeros_like(scores))
        worst = scores.argmax(1, keepdim=True)
        parts = (self.given, shares, scores, worst.squeeze(1), self.mixed)
        tags = Tags(self.vocabulary, *(part.numpy() for part in parts))
        names, suggested = suggest_sets(tags, cut, names, self.labels)
        own = torch.where(self.given == 1, shares, 1 - shares).gather(1, worst).squeeze(1)
        disagreement = scores.gather(1, worst).squeeze(1)
        return {
            "class_names": names,
            "suggested": torch.from_numpy(suggested),
            "given_probability": own,
            "suggested_probability": torch.where(disagreement > cut, 1 - own, own),
            "disagreement": disagreement,
            "ambiguity": unclear.gather(1, worst).squeeze(1),
            "disagreement_threshold": cut,
            "tags": tags,
        }

    def _spread(self, columns: list[Tensor], table: Tensor) -> Tensor:
        """The table (N, T) with these columns for the judged tags."""
        table[:, self.judged] = torch.stack(columns, 1)
        return table


def predict_tags(subject: Subject, settings: Settings) -> TagPredictions:
    """Predictions of every tag that enough examples have and enough lack."""
    if not isinstance(subject, Embedded | Predicted):
        raise InputError(
            "several labels per example: give embeddings, texts, pictures, columns or probabilities to judge them by"
        )
    source = subject.source
    assert isinstance(source.labels, TagLabels)
    words, given = source.labels.vocabulary, source.labels.table()
    if isinstance(subject, Predicted):
        return _take_probabilities(source, words, given)
    if len(source) > SAMPLE:
        raise InputError(
            f"{len(source):,} examples with several labels each: at most {SAMPLE:,}; audit them in parts"
        )
    counts = given.sum(0)
    judged = torch.minimum(counts, len(given) - counts) >= FEWEST
    if not judged.any():
        raise InputError(
            f"{source.name}: none of the tags {list_names(words.names)} is on {FEWEST} examples and missing on "
            f"{FEWEST}: nothing can be learned"
        )
    rows = read_rows(source)
    features = Projection.of(rows, source.name).features(rows)
    distinct = Distinct.of(hash_rows(rows))
    voters = Voters.of(source.name, rows, source.labels.numbers, source.num_classes)
    found = voters.find(rows)
    mixed = torch.stack([distinct.mean(tag.double()) for tag in given.unbind(1)], 1) != given
    mixed &= voters.copies
    columns = given[:, judged].unbind(1)
    asked = [
        ask(features, column, voters.relabel(distinct, column, 2), found)
        for column in track(columns, description="tags", quiet=settings.quiet)
    ]
    temperature, weight = _weigh(asked)
    leave_out = settings.out_of_sample == "loo"
    made = tuple(_combine(each, temperature, weight, leave_out) for each in asked)
    way = "leave-one-out" if leave_out else "in-sample"
    neighbours = f"{found.voters.shape[1] - 1} neighbours, {way}"
    method = f"a variational logistic regression for each of {len(made)} tags, and {neighbours}"
    facts: dict[str, object] = {
        "components": features.shape[1] - 1,
        "weight_of_posterior": round(weight, 3),
        "weight_of_neighbours": round(1 - weight, 3),
    }
    problems = find_problems(words, counts, judged)
    return TagPredictions(
        source.labels.numbers, made, judged, words, given, mixed, method, facts, problems
    )


def find_problems(words: Vocabulary, counts: Tensor, judged: Tensor) -> tuple[Note, ...]:
    """Tags that differ only in case or blanks, and those that are not judged."""
    found = [
        Note(Kind.TAG_SPELLING, text.replace("labels", "tags"))
        for _, text in group_spellings(words.names, counts)
    ]
    odd = [words.names[t] for t in (~judged).nonzero().flatten().tolist()]
    if odd:
        tags = "1 tag is" if len(odd) == 1 else f"{len(odd)} tags are"
        text = f"{tags} not judged, as fewer than {FEWEST} examples have or lack them: {list_names(odd)}"
        found.append(Note(Kind.SINGLE_EXAMPLE, text))
    return tuple(found)


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


def _weigh(asked: list[Asked]) -> tuple[float, float]:
    """The temperature and the weight of the posteriors under which all tags, each left out, are likeliest."""
    step = -(-len(asked) * len(asked[0].labels) // PAIRS_WEIGHED)

    def likelihood(tags: list[Tensor]) -> Tensor:
        parts = [torch.where(e.labels == 1, p, 1 - p) for e, p in zip(asked, tags, strict=True)]
        return torch.cat(parts)[::step, None]

    votes = {t: likelihood([each.votes[t] for each in asked]) for t in TEMPERATURES}
    return choose_weight(likelihood([each.left_out for each in asked]), votes)


def _combine(asked: Asked, temperature: float, weight: float, leave_out: bool) -> Predictions:
    """The two-class prediction of one tag, with its transitions taken back (`embedded.predict_embedded`)."""
    votes, labels = asked.votes[temperature], asked.labels
    unseen = _two(torch.lerp(votes, asked.left_out, weight))
    transitions = learn_transitions(unseen, labels)
    without = shown = predict_true_classes(unseen, transitions)
    if not leave_out:
        shown = predict_true_classes(_two(torch.lerp(votes, asked.seen, weight)), transitions)
    noise = torch.stack([-asked.noise, asked.noise], 1)
    left_out = LeftOut.of(without, labels, transitions)
    return Predictions(labels, shown, noise, "", without_label=left_out, transitions=transitions)


def _take_probabilities(source: Source, words: Vocabulary, given: Tensor) -> TagPredictions:
    """Somebody's P(tag), out of sample one hopes."""
    rows = read_rows(source)
    if rows.shape != given.shape or not bool(((rows >= 0) & (rows <= 1)).all()):
        raise InputError(
            f"probabilities of shape {tuple(rows.shape)}: must be {len(given)} × {given.shape[1]}, one column per tag, "
            "each from 0 to 1; pass logits.sigmoid()"
        )
    columns = zip(given.unbind(1), rows.unbind(1), strict=True)
    made = tuple(Predictions(labels, _two(p), None, "") for labels, p in columns)
    method = f"probabilities of {len(made)} tags as given"
    judged = torch.ones(len(made), dtype=torch.bool, device="cpu")
    mixed = torch.zeros_like(given, dtype=torch.bool)
    return TagPredictions(source.labels.numbers, made, judged, words, given, mixed, method)


def _two(p: Tensor) -> Tensor:
    return torch.stack([1 - p, p], 1)


def suggest_sets(
    tags: Tags, cut: float, class_names: tuple[str, ...], labels: Tensor
) -> tuple[tuple[str, ...], Array]:
    """Every example's set with its contradicted tags moved, and all sets: the new ones come last."""
    suggested, number = labels.numpy().copy(), {name: k for k, name in enumerate(class_names)}
    preferred = (tags.probabilities > 0.5).astype(tags.given.dtype)
    moved = np.where(tags.scores > cut, 1 - tags.given, tags.given)
    moved = np.where(tags.mixed, preferred, moved)  # copies get the same tags
    all_tags = np.array(tags.vocabulary.names, object)
    for i in np.flatnonzero((moved != tags.given).any(1)):
        text = tags.vocabulary.write(all_tags[moved[i] == 1])
        suggested[i] = number.setdefault(text, len(number))
    return tuple(number), suggested
