"""What else is odd: near duplicates, outliers, rare classes, examples that another split holds too, and problems.

All of these except the problems follow from the labels and the nearest neighbours (positions and cosine similarities,
nearest first). Distances are those between embeddings of length one: 0 for the same direction, √2 for unrelated ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.embedded import read_pieces
from bayesmooth.audit.neighbours import Distinct, Keys, hash_rows, unit_rows, without_self
from bayesmooth.audit.predictors import EXACT_ROWS
from bayesmooth.data import Source
from bayesmooth.data.encoder_models import PLAIN
from bayesmooth.data.source import Note
from bayesmooth.errors import InputError
from bayesmooth.executors import map_pieces

Array = NDArray[Any]

FINDINGS = {
    "duplicates": "near_duplicates",
    "conflicts": "near_duplicates_with_different_labels",
    "outliers": "outliers",
    "rare": "in_rare_classes",
    "leaks": "in_other_split",
}
"""The kinds of findings, named as the report's chips are, and the names of their counts in `audit.json`."""

NEAREST = 10  # as many as cleanlab's Datalab takes
CLOSE = 0.25  # share of the usual distance to the nearest neighbour below which examples are near duplicates
CHANCE = 0.001  # share of the examples that may be that close by chance; in few dimensions this lowers CLOSE
ROUNDING = 1e-3  # what float32 makes of the distance 0
FENCE = 2.0  # interquartile ranges above the upper quartile: Tukey's rule with 2 for 1.5, for fewer false alarms
MOST_ROWS = 100_000  # examples that are compared in one piece
QUERIES = 1 << 16  # examples at a time beyond
RARE_SHARE = 0.1  # of an even share of the examples: classes with less are rare


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """One entry per example; a column is None where there was nothing to compute it from."""

    rare_class: Array | None = None
    """Whether the example's class has less than a tenth of an even share."""
    duplicate_of: Array | None = None
    """Position of the first of its near duplicates, its own if it comes first itself; −1 where it has none."""
    conflicting: Array | None = None
    """Whether its near duplicates carry different labels."""
    outlier_score: Array | None = None
    """Mean distance to its ten nearest over what is usual: above 1 it is an outlier."""
    in_other_split: Array | None = None
    """Id of its near duplicate in the other split; empty where it has none."""
    label_in_other_split: Array | None = None
    """The label that this one carries there; empty where it has none."""
    problems: tuple[Note, ...] = ()
    """What is wrong with examples that were left out, or with how labels are written."""

    def masks(self) -> dict[str, Array]:
        """Which examples each kind of finding concerns; only the kinds that could be computed."""
        masks = {
            "duplicates": None if self.duplicate_of is None else self.duplicate_of >= 0,
            "conflicts": self.conflicting,
            "outliers": None if self.outlier_score is None else self.outlier_score > 1,
            "rare": self.rare_class,
            "leaks": None if self.in_other_split is None else self.in_other_split != "",
        }
        return {kind: mask for kind, mask in masks.items() if mask is not None}

    def counts(self) -> dict[str, int]:
        """How many examples each finding concerns, for `audit.json`."""
        return {FINDINGS[kind]: int(mask.sum()) for kind, mask in self.masks().items()}

    def list_problems(self) -> list[dict[str, Any]]:
        """The problems as plain values, for `audit.json` and the report."""
        return [
            {"kind": p.kind, "text": p.text, "count": len(p.ids), "ids": list(p.ids)}
            for p in self.problems
        ]

    def __str__(self) -> str:
        """What was found, in one line."""
        found = self.counts()
        conflicting = found.pop("near_duplicates_with_different_labels", 0)
        parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in found.items() if count]
        parts = ["1 outlier" if part == "1 outliers" else part for part in parts]
        if conflicting:
            parts[0] += f" ({conflicting:,} with different labels)"
        return ", ".join(parts) or "nothing"

    def positions(self) -> list[int]:
        """The examples with findings, those with different labels first; rare classes do not count here."""
        masks = self.masks()
        found = [np.flatnonzero(masks.get(k, ())) for k in ("conflicts", "leaks", "duplicates")]
        if self.outlier_score is not None:
            outliers = np.argsort(-self.outlier_score, kind="stable")
            found.append(outliers[: masks["outliers"].sum()])
        return list(dict.fromkeys(np.concatenate(found).tolist()))

    def columns(self, ids: Sequence[str]) -> dict[str, list[Any]]:
        """The findings as columns of the table, with ids for positions."""
        table: dict[str, list[Any]] = {}
        if self.duplicate_of is not None:
            table["duplicate_of"] = ["" if i < 0 else ids[i] for i in self.duplicate_of]
        for name in ("outlier_score", "rare_class", "in_other_split"):
            column: Array | None = getattr(self, name)
            if column is not None:
                table[name] = column.tolist()
        concerned = {id: p.kind for p in self.problems for id in p.ids}
        if concerned.keys() & set(ids):
            table["problem"] = [concerned.get(id, "") for id in ids]
        return table


def find(
    labels: Tensor,
    classes: int,
    embeddings: Tensor | Source | None = None,
    against: Source | None = None,
    quiet: bool = False,
    cluster: str | None = None,
    looks: Tensor | None = None,
) -> Findings:
    """Everything that the labels, and the embeddings (N, D) if there are any, can tell.

    `looks` (N, D′) are other numbers by which near duplicates are known: what pictures look like.

    Embeddings given as a `Source` are read piece by piece, and their neighbours looked for in tasks of the `cluster`.

    `against` are examples that must not occur among these: the test set of a training set, embedded alike.

    >>> x = torch.eye(4)[[0, 1, 2, 3, 3]]
    >>> find(torch.tensor([0, 0, 1, 1, 0]), 2, x).counts()["near_duplicates_with_different_labels"]
    2
    """
    given = labels.numpy()
    rare = find_rare_classes(given, classes)[given]
    if embeddings is None or len(given) < 3:
        return Findings(rare_class=rare)
    rows = Rows.of(embeddings, quiet, cluster)
    index, similarity = rows.nearest(min(NEAREST, len(rows.distinct.first) - 1))
    distance = measure_distances(similarity)
    closest = duplicate_distance(distance)
    first = find_near_duplicates(index, distance, rows, closest)
    if looks is not None:
        first = join_groups(first, find_copies(looks))
    copies, labels_there = (None, None) if against is None else find_leaks(rows, against, closest)
    return Findings(
        rare_class=rare,
        duplicate_of=first,
        conflicting=find_conflicts(first, given),
        outlier_score=score_outliers(distance)[rows.distinct.group.numpy()],
        in_other_split=copies,
        label_in_other_split=labels_there,
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings in memory, or a `Source` that is read piece by piece, less their mean: what they have in common
    says nothing of which are alike."""

    source: Tensor | Source
    mean: Tensor
    lengths: Array
    distinct: Distinct
    quiet: bool
    cluster: str | None

    @classmethod
    def of(
        cls,
        source: Tensor | Source,
        quiet: bool = False,
        cluster: str | None = None,
        mean: Tensor | None = None,
    ) -> "Rows":
        """`mean` is that of the rows that these are compared with."""
        if mean is None:
            sums = [rows.double().sum(0) for _, rows in _read(source, "reading", quiet)]
            mean = (torch.stack(sums).sum(0) / len(source)).float()
        lengths, hashes = [], []
        for _, rows in _read(source, "lengths", quiet):
            lengths.append(torch.linalg.vector_norm(rows.float() - mean, dim=1))
            hashes.append(hash_rows(rows))
        distinct = Distinct.of(torch.cat(hashes))
        return cls(source, mean, torch.cat(lengths).numpy(), distinct, quiet, cluster)

    def pieces(self, description: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups of copies and the unit row of each, every group once."""
        group, first = self.distinct
        for at, rows in _read(self.source, description, self.quiet):
            once = first[group[at]] == at
            if bool(once.any()):
                yield group[at][once], unit_rows("embeddings", rows[once].float() - self.mean)

    def nearest(self, k: int, against: "Rows | None" = None) -> tuple[Array, Array]:
        """Groups and similarities (U, k) of the nearest of each group of copies; without `against` none is its own."""
        keys = (against or self).index(len(self.distinct.first))
        work = partial(_search_piece, keys, k, against is None)
        at, index, similarity = zip(
            *map_pieces(work, self.pieces("neighbours"), self.cluster), strict=True
        )
        order = torch.cat(at).argsort()
        return torch.cat(index)[order].numpy(), torch.cat(similarity)[order].numpy()

    def index(self, queries: int) -> Keys:
        """These rows as the keys of so many queries; they are copied into place, as they may fill half the memory."""
        keys = self.mean.new_empty(len(self.distinct.first), len(self.mean))
        for at, rows in self.pieces("indexing"):
            keys[at] = rows
        return Keys(keys, max(queries, len(keys)) <= EXACT_ROWS)


def _read(
    source: Tensor | Source, description: str, quiet: bool
) -> Iterable[tuple[Tensor, Tensor]]:
    """Positions and rows."""
    index = torch.arange(len(source), device="cpu")
    if isinstance(source, Tensor):
        return [(index, source)]
    return read_pieces(source, index, description, quiet, QUERIES)


def _search_piece(
    keys: Keys, k: int, alone: bool, piece: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    at, rows = piece
    found = keys.search(rows, k + alone)
    return at, *(without_self(*found, at) if alone else found)


def find_leaks(rows: Rows, other: Source, closest: float) -> tuple[Array, Array]:
    """Ids and labels of the near duplicates that another split holds; empty where it holds none."""
    theirs = Rows.of(other, rows.quiet, rows.cluster, rows.mean)
    groups, similarity = (part[rows.distinct.group, 0] for part in rows.nearest(1, theirs))
    there = theirs.distinct.first.numpy()[groups]
    leaked = measure_distances(similarity) < closest
    leaked &= _are_as_long(rows.lengths, theirs.lengths[there], closest)
    ids = np.array(other.ids, object)
    labels = np.array(other.class_names, object)[other.labels.numbers.numpy()]
    return np.where(leaked, ids[there], ""), np.where(leaked, labels[there], "")


def read_rows(source: Source) -> Tensor:
    """The embeddings of examples, one row each."""
    return source.batch(torch.arange(len(source), device="cpu")).flatten(1)


def check_other_split(other: Source, source: Source | None) -> Source:
    """The other split, scaled as these examples are; or an error where the two cannot be compared."""
    if source is None:
        raise InputError(
            "against: what is audited must be embedded data too: a file, a table, a Source"
        )
    own, theirs = _name_columns(source), _name_columns(other)
    if own and theirs and own != theirs:
        raise InputError(f"against: {other.name}: {_compare_columns(own, theirs)}")
    if other.input_shape != source.input_shape:
        raise InputError(
            f"against: {other.name} has rows of shape {list(other.input_shape)}, {source.name} of "
            f"{list(source.input_shape)}; both must come from the same encoder or have the same columns"
        )
    fitted = (
        other.texts is not None and other.reading is not None and other.reading.encoder == PLAIN
    )
    if fitted:
        raise InputError(
            f"against: {other.name} and {source.name} are texts encoded by TF-IDF, each its own way; name an encoder "
            "(--encoder), or pip install 'bayesmooth[audit]'"
        )
    return replace(other, mean=source.mean, std=source.std)


def _name_columns(source: Source) -> tuple[str, ...]:
    """The columns of a table that are learned from, where they are numbers and categories."""
    return source.reading.names if source.mean and source.reading is not None else ()


def _compare_columns(own: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Which columns, or categories in them, only one of two tables has."""
    sides = (("what is audited", own, theirs), ("the other", theirs, own))
    only = [(side, [c for c in own if c not in rest]) for side, own, rest in sides]
    parts = [
        f"only {side} has {', '.join(map(repr, columns))}" for side, columns in only if columns
    ]
    return (
        "its columns (column=category for a category) differ: "
        f"{'; '.join(parts) or 'they stand in another order'}; name those that are alike with features (--features)"
    )


def measure_distances(similarity: Array) -> Array:
    """Between embeddings of length one, from the cosine of their angle: √(2 − 2 cos)."""
    return np.sqrt(np.maximum(2 - 2 * np.asarray(similarity, np.float64), 0))


def duplicate_distance(distance: Array) -> float:
    """Closer than this are near duplicates: a quarter of the usual distance to the nearest neighbour, or less.

    With density uniform in d dimensions, t times the median distance or closer come a share of 1 − 2^(−t^d): in few
    dimensions a quarter is nothing special, and t is lowered until that share is `CHANCE`. Medians throughout, so
    that the duplicates themselves hardly move it.
    """
    different = distance[distance[:, 0] > ROUNDING]
    if not len(different):
        return ROUNDING
    spread = np.log(different[:, -1:] / different[:, :-1]).mean(1) if distance.shape[1] > 1 else 0.0
    per_dimension = max(float(np.median(spread)), 1e-9)  # 1/d, by Levina and Bickel's estimate
    share = min(CLOSE, float((CHANCE / np.log(2)) ** per_dimension))
    return max(share * float(np.median(different[:, 0])), ROUNDING)


def find_near_duplicates(index: Array, distance: Array, rows: Rows, closest: float) -> Array:
    """Position of the first example in each one's group of near duplicates; −1 where it has none."""
    group, first = (part.numpy() for part in rows.distinct)
    one, ranks = np.nonzero(distance < closest)
    other = index[one, ranks]
    lengths = rows.lengths[first]
    same = _are_as_long(lengths[one], lengths[other], closest)
    joined = join_pairs(np.stack([one[same], other[same]]), first)[group]
    alone = np.bincount(joined, minlength=len(group))[joined] == 1
    return np.where(alone, -1, joined)


def find_copies(looks: Tensor) -> Array:
    """The same by other rows than the embeddings."""
    rows = Rows.of(looks)
    index, similarity = rows.nearest(min(NEAREST, len(rows.distinct.first) - 1))
    distance = measure_distances(similarity)
    return find_near_duplicates(index, distance, rows, duplicate_distance(distance))


def join_groups(*groups: Array) -> Array:
    """Position of the first example of each one's group, where groups that share an example are one.

    >>> join_groups(np.array([0, 0, -1, -1]), np.array([-1, 1, 1, -1])).tolist()
    [0, 0, 0, -1]
    """
    every = np.arange(len(groups[0]))
    pairs = [np.stack([every[first >= 0], first[first >= 0]]) for first in groups]
    alone = np.all([first < 0 for first in groups], axis=0)
    return np.where(alone, -1, join_pairs(np.concatenate(pairs, 1), every))


def join_pairs(pairs: Array, names: Array) -> Array:
    """The lowest name (U,) among all that are joined by pairs (2, P) of positions, directly or through others.

    >>> join_pairs(np.array([[0, 1], [1, 2]]), np.array([5, 3, 9, 4])).tolist()
    [3, 3, 3, 4]
    """
    lowest = names.copy()
    one, other = pairs
    while True:  # every pair agrees on its lower name, until nothing changes
        before, lower = lowest.copy(), np.minimum(lowest[one], lowest[other])
        np.minimum.at(lowest, one, lower)
        np.minimum.at(lowest, other, lower)
        if (lowest == before).all():
            return lowest


def find_conflicts(first: Array, labels: Array) -> Array:
    """Which examples have near duplicates that carry different labels.

    >>> find_conflicts(np.array([0, 0, 2, 2, -1]), np.array([1, 1, 1, 0, 0]))
    array([False, False,  True,  True, False])
    """
    differs = (first >= 0) & (labels != labels[first])
    mixed = np.zeros(len(first), bool)
    mixed[first[differs]] = True
    return (first >= 0) & mixed[first]


def score_outliers(distance: Array) -> Array:
    """Mean distance to the nearest ones over Tukey's fence Q₃ + 2 (Q₃ − Q₁): above 1 is an outlier."""
    mean = distance.mean(1)
    low, high = np.quantile(mean, [0.25, 0.75])
    fence = high + FENCE * (high - low)
    scores: Array = mean / max(float(fence), ROUNDING)
    return scores


def find_rare_classes(labels: Array, classes: int) -> Array:
    """Which classes occur, but with less than a tenth of an even share of the examples.

    >>> find_rare_classes(np.repeat([0, 1], [98, 2]), 2)
    array([False,  True])
    """
    counts = np.bincount(labels, minlength=classes)
    return (counts > 0) & (counts < RARE_SHARE * len(labels) / max(int((counts > 0).sum()), 1))


def _are_as_long(one: Array, other: Array, closest: float) -> Array:
    """Whether the lengths differ by as little as the directions of near duplicates do."""
    same: Array = np.abs(one - other) <= closest * np.maximum(one, other)
    return same
