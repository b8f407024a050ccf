"""Findings beside wrong labels: near duplicates, outliers, rare classes, examples that another split holds too,
pictures that are blank, dark or blurred, and problems.

Most of it follows from the labels and the nearest neighbours. Distances are those between embeddings of length one: 0
for the same direction, √2 for unrelated ones.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d

from bayesmooth.audit.neighbours import Keys, group_copies, hash_rows, unit_rows
from bayesmooth.audit.predictors import read_rows
from bayesmooth.data import Source
from bayesmooth.data.features import Reading
from bayesmooth.data.source import Kind, Note
from bayesmooth.errors import InputError
from bayesmooth.progress import track

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
CHANCE = 0.001  # share of the examples that may be that close by chance; in few dimensions this lowers CLOSE, and
# where more rows equal one by chance, as in a table of a few categories, no copies are told, nor outliers if most do
ROUNDING = 1e-3  # distance of equal rows in float32, at most
FENCE = 2.0  # interquartile ranges beyond the quartile: Tukey's rule with 2 for 1.5, for fewer false alarms
RARE_SHARE = 0.1  # of an even share of the examples: classes with less are rare

PICTURES_AT_ONCE = 256
SIDE = 64  # pixels to which a picture is reduced before it is measured
TILES = 8  # × TILES colours stand for a picture: resizing and compression hardly change them
BLANK = 2.5  # of 255, the standard deviation of the brightness: less is one colour and some noise
DARK = 40.0  # of 255, the brightness that only a hundredth of a dark picture exceeds
BLURRED = 10.0  # times less sharp than the median picture
FEWEST = 8  # pictures from which the usual sharpness is told
ODD = {
    Kind.BLANK: "of one colour all over",
    Kind.DARK: "so dark that hardly anything shows",
    Kind.BLURRED: "much less sharp than the others",
}


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
    """Mean distance to its ten nearest over the largest usual one: above 1 it is an outlier."""
    in_other_split: Array | None = None
    """Id of its near duplicate in the other split; empty where it has none."""
    label_in_other_split: Array | None = None
    """The label that this one carries there; empty where it has none."""
    problems: tuple[Note, ...] = ()
    """Notes on examples that were left out, on spellings of labels, and on odd cells and pictures."""

    def masks(self) -> dict[str, Array]:
        """By kind of finding, the mask of the examples that it concerns; only the kinds that could be computed."""
        masks = {
            "duplicates": None if self.duplicate_of is None else self.duplicate_of >= 0,
            "conflicts": self.conflicting,
            "outliers": None if self.outlier_score is None else self.outlier_score > 1,
            "rare": self.rare_class,
            "leaks": None if self.in_other_split is None else self.in_other_split != "",
        }
        return {kind: mask for kind, mask in masks.items() if mask is not None}

    def counts(self) -> dict[str, int]:
        """The number of examples that each finding concerns, for `audit.json`."""
        return {FINDINGS[kind]: int(mask.sum()) for kind, mask in self.masks().items()}

    def __str__(self) -> str:
        """The counts of the findings, in one line."""
        parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in self.counts().items() if count]
        return ", ".join(parts) or "nothing"


def find(source: Source, labels: Tensor, *, embedded: bool = True, against: Source | None = None) -> Findings:
    """All findings from the labels, the pictures and, where the examples are embedded, their rows.

    `against` are examples that must not occur among these: the test set of a training set, embedded alike.

    >>> from bayesmooth.data import Labels
    >>> labels = torch.tensor([0, 0, 1, 1, 0])
    >>> five = Source(torch.arange(16.0).view(4, 4)[[0, 1, 2, 3, 3]], Labels(labels, ("a", "b")))
    >>> find(five, labels).counts()["near_duplicates_with_different_labels"]
    2
    """
    given = labels.numpy()
    colours, source = inspect_pictures(source)
    rare = np.zeros(len(given), bool)
    if source.labels.kind != "tags":
        counts = np.bincount(given)
        rare = (counts < RARE_SHARE * len(given) / (counts > 0).sum())[given]
    if not embedded or len(given) < 3:
        return Findings(rare_class=rare, problems=source.problems)
    rows = CentredRows.of(source)
    distance, closest, first = find_near_duplicates(rows)
    views = [] if against is None else [(rows, closest, against)]
    if colours is not None:  # examples that are copies by their rows or by their looks are one group
        looks = CentredRows.of(replace(source, inputs=colours, mean=None, std=None))
        _, alike, same = find_near_duplicates(looks)
        if against is not None and (others := inspect_pictures(against)[0]) is not None:
            views.append((looks, alike, replace(against, inputs=others, mean=None, std=None)))
        every = np.arange(len(given))
        linked = [(every[of >= 0], of[of >= 0]) for of in (first, same)]
        first = np.where((first < 0) & (same < 0), -1, join_pairs(np.concatenate(linked, 1), every))
    copies = labels_there = None
    chance = rows.equal_by_chance > CHANCE
    if against is not None and not chance:
        copy = np.full(len(given), -1)
        for own, limit, other in views:
            theirs = CentredRows.of(other, own.mean)
            index, away = own.measure_nearest(1, theirs)
            place = np.searchsorted(theirs.hashes, own.hashes).clip(max=len(theirs.hashes) - 1)
            equal = theirs.hashes[place] == own.hashes  # by direction alone, in few dimensions another may be as near
            index[equal, 0], away[equal, 0] = place[equal], 0.0
            nearest = theirs.first[index[own.group, 0]]
            leaked = (away[own.group, 0] < limit) & are_as_long(own.lengths, theirs.lengths[nearest], limit)
            copy = np.where(leaked & (copy < 0), nearest, copy)
        named = (np.array(names, object)[copy] for names in (against.ids, against.labels.texts()))
        copies, labels_there = (np.where(copy < 0, "", part) for part in named)
    mean = distance.mean(1)
    low, high = np.quantile(mean, [0.25, 0.75])
    fence = max(float(high + FENCE * (high - low)), ROUNDING)
    differs = (first >= 0) & (given != given[first])
    return Findings(
        rare_class=rare,
        duplicate_of=None if chance else first,
        conflicting=None if chance else (first >= 0) & np.isin(first, first[differs]),
        outlier_score=None if chance and 2 * len(rows.first) < len(given) else (mean / fence)[rows.group],
        in_other_split=copies,
        label_in_other_split=labels_there,
        problems=source.problems,
    )


class CentredRows(NamedTuple):
    """Embeddings less their mean: the part that all have in common says nothing of similarity."""

    unit: Tensor
    """(U, D), of length one: every row once."""
    mean: Tensor
    lengths: Array
    """(N,)."""
    group: Array
    """Position of the unit row of each example (N,)."""
    first: Array
    """Position of the first example that has each unit row (U,)."""
    hashes: Array
    """Of the unit rows (U,), ascending."""
    equal_by_chance: float
    """The number of rows that equal one of them by chance, from the columns as if they were independent."""

    @classmethod
    def of(cls, source: Source, mean: Tensor | None = None) -> "CentredRows":
        """`mean` is that of the rows that these are compared with."""
        rows = read_rows(source)
        hashes = hash_rows(rows)
        group, first = group_copies(hashes)
        distinct, reading, equal = rows[first], source.reading or Reading(), float(len(rows))
        widths = [1] * len(reading.numbers) + [len(levels) for levels in reading.categories.values()]
        for column in torch.split(distinct, widths or [1] * rows.shape[1], 1):
            if equal < CHANCE:
                break
            times = torch.bincount(group_copies(hash_rows(column))[0]).double()
            equal *= float(times @ (times - 1)) / max(len(first) * (len(first) - 1), 1)
        mean = rows.mean(0, dtype=torch.float64).float() if mean is None else mean
        rows -= mean
        lengths = torch.linalg.vector_norm(rows, dim=1)
        unit = unit_rows(distinct - mean)
        return cls(unit, mean, lengths.numpy(), group.numpy(), first.numpy(), hashes[first].numpy(), equal)

    def measure_nearest(self, k: int, other: "CentredRows | None" = None) -> tuple[Array, Array]:
        """Positions and distances (U, k) of the nearest unit rows; without `other` none is its own."""
        positions = torch.arange(len(self.unit), device="cpu") if other is None else None
        index, cosine = Keys((other or self).unit, len(self.unit)).search(self.unit, k, positions)
        return index.numpy(), np.sqrt(np.maximum(2 - 2 * cosine.double().numpy(), 0))


def find_near_duplicates(rows: CentredRows) -> tuple[Array, float, Array]:
    """Distances (U, k) of the nearest, the limit for near duplicates, and the first of each example's, −1 for none.

    Near duplicates are closer than a quarter of the usual distance to the nearest neighbour, or less. With density
    uniform in d dimensions, t times the median distance or closer come a share of 1 − 2^(−t^d): in few dimensions a
    quarter is nothing special, and t is lowered until that share is `CHANCE`. Medians throughout, so that the
    duplicates themselves hardly move it.
    """
    index, distance = rows.measure_nearest(min(NEAREST, len(rows.unit) - 1))
    different = distance[distance[:, 0] > ROUNDING] if distance.shape[1] else distance[:0]
    closest = ROUNDING
    if len(different):
        spread = np.log(different[:, -1:] / different[:, :-1]).mean(1) if distance.shape[1] > 1 else 0.0
        per_dimension = max(float(np.median(spread)), 1e-9)  # 1/d, by Levina and Bickel's estimate
        share = min(CLOSE, float((CHANCE / np.log(2)) ** per_dimension))
        closest = max(share * float(np.median(different[:, 0])), ROUNDING)
    one, ranks = np.nonzero(distance < closest)
    other, lengths = index[one, ranks], rows.lengths[rows.first]
    same = are_as_long(lengths[one], lengths[other], closest)
    joined = join_pairs(np.stack([one[same], other[same]]), rows.first)[rows.group]
    alone = np.bincount(joined, minlength=len(joined))[joined] == 1
    return distance, closest, np.where(alone, -1, joined)


def are_as_long(one: Array, other: Array, closest: float) -> Array:
    """Whether the lengths differ by as little as the directions of near duplicates do."""
    same: Array = np.abs(one - other) <= closest * np.maximum(one, other)
    return same


def join_pairs(pairs: Array, names: Array) -> Array:
    """The lowest name (U,) among all that are joined by pairs (2, P) of positions, directly or through others.

    >>> join_pairs(np.array([[0, 1], [1, 2]]), np.array([5, 3, 9, 4])).tolist()
    [3, 3, 3, 4]
    """
    order = np.argsort(names)
    lowest = np.argsort(order)  # by rank
    while True:  # every pair agrees on its lower name and passes it on to all that had its names, until nothing changes
        before = lowest.copy()
        for end in before[pairs]:
            np.minimum.at(lowest, order[end], before[pairs].min(0))
        lowest = lowest[order[lowest]]
        if (lowest == before).all():
            return names[order[lowest]]


def inspect_pictures(source: Source) -> tuple[Tensor | None, Source]:
    """The colours of pictures, by which copies are recognised also after they were resized or compressed again, and
    the source with a note for each kind of odd pictures that occurs.

    None where there are no pictures, or one of them cannot be opened: it is among the problems already.
    """
    pictures = source.pictures
    if pictures is None:
        return None, source
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=torch.float32, device="cpu")
    parts, measured = torch.split(torch.arange(len(source), device="cpu"), PICTURES_AT_ONCE), []
    try:
        for at in track(parts, description="looking"):
            pixels = pictures[at]
            scale = 1.0 if pixels.dtype == torch.uint8 else 255.0
            colour = adaptive_avg_pool2d(pixels.float() * scale, SIDE).clamp(0, 255)
            colour = colour.expand(-1, 3, -1, -1)
            grey = colour.mean(1, keepdim=True)
            variance = grey.flatten(1).var(1)
            edges = conv2d(grey, kernel[None, None]).square().flatten(1).mean(1)  # Laplacian
            tiles = adaptive_avg_pool2d(colour, TILES).flatten(1)
            brightest = grey.flatten(1).quantile(0.99, dim=1)
            measured.append((tiles, variance, brightest, edges / variance.clamp_min(1e-6)))
    except InputError:
        return None, source
    colours, variances, bright, sharpness = map(torch.cat, zip(*measured, strict=True))
    blank = variances.sqrt() < BLANK
    dark = (bright < DARK) & ~blank
    usual = sharpness.clamp_min(1e-9).log()
    low, middle, high = (float(usual.quantile(q)) for q in (0.25, 0.5, 0.75))
    fence = min(low - FENCE * (high - low), middle - log(BLURRED))
    blurred = (usual < fence) & ~blank & ~dark & (len(usual) >= FEWEST)
    for (kind, words), odd in zip(ODD.items(), (blank, dark, blurred), strict=True):
        if odd.any():
            source = source.note(kind, f"{int(odd.sum())} of {len(source)} pictures are {words}", odd)
    return colours, source
