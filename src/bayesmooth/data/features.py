"""The inputs to learn from: the columns of a table that hold numbers, categories, vectors, texts or pictures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrays import as_finite
from bayesmooth.data.labels import MISSING, as_text
from bayesmooth.data.pictures import SHOWN_SIZE, SUFFIXES, ImageFiles
from bayesmooth.data.source import Columns, Kind, Source
from bayesmooth.data.tables import Array, as_arrow, is_plain
from bayesmooth.errors import InputError, require

PICTURES = ("path", "image")  # columns of pictures
CATEGORIES = 50  # of a column at most, and each must occur four times on average
MOST_NUMBERS = 60  # columns of numbers that are shown
SHOWN_CELLS = 3  # cells that are no numbers, in a note
SHEET_ROW = "row"  # in `meta`: the row of a spreadsheet that an example stands in
LARGEST = float(np.finfo(np.float32).max)
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
COMMA = r"^[+-]?\d*,\d+([eE][+-]?\d+)?$"
THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"


class Cells:
    """One column of the rows of a source, an array of Arrow. Each view is computed once."""

    def __init__(self, source: Source, name: str) -> None:
        assert source.table is not None
        assert source.rows is not None
        self.name, self.table, self.at = name, source.table, source.rows.numpy()

    @cached_property
    def values(self) -> Any:
        """The values; words that stand for a missing one are none."""
        compute, values = require("pyarrow.compute", "data"), self.table.cells[self.name]
        values = as_arrow(values) if isinstance(values, np.ndarray) else values
        values = values if np.array_equal(self.at, np.arange(self.table.count)) else values.take(self.at)
        if str(values.type) == "string":
            values = compute.if_else(compute.is_in(values, require("pyarrow", "data").array(MISSING)), None, values)
        return values

    @cached_property
    def kind(self) -> str:
        """The kind of its values: vectors, words, numbers, other plain values; empty for any others."""
        types, kind = require("pyarrow", "data").types, self.values.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return "vectors"
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            return "numbers"
        return "words" if types.is_string(kind) else "plain" if is_plain(self.values) else ""

    def __len__(self) -> int:
        return len(self.at)

    @cached_property
    def present(self) -> Array:
        """The mask of the values that are not missing."""
        gone = self.values.is_null(nan_is_null=True)
        return ~np.asarray(gone.to_numpy())

    @cached_property
    def texts(self) -> list[str]:
        """As texts; missing ones are empty."""
        if self.kind == "words":
            return list(self.values.fill_null("").to_pylist())
        return [*map(as_text, self.values.to_pylist())]

    @cached_property
    def numbers(self) -> Array:
        """As reals, NaN for other words. A comma is a decimal point, unless it may mean thousands."""
        if self.kind == "numbers":
            return np.asarray(self.values.to_numpy(), np.float64)
        if self.kind not in ("words", "plain"):
            return np.full(len(self), np.nan)
        compute, words = require("pyarrow.compute", "data"), self.values
        if self.kind == "plain":
            words = as_arrow(self.texts)
        words = compute.utf8_trim_whitespace(words)
        if commas := words.filter(compute.match_substring_regex(words, COMMA)).to_pylist():
            unsure = all(re.match(THOUSANDS, word) for word in commas)
            if unsure and 2 * len(commas) > len(words):
                raise InputError(
                    f"{self.table.where}: column {self.name!r}: {commas[0]} may be {commas[0].replace(',', '.')} or "
                    f"{commas[0].replace(',', '')}; write it with a point, or without one"
                )
            words = words if unsure else compute.replace_substring(words, ",", ".")
        plain = compute.if_else(compute.match_substring_regex(words, NUMBER), words, None)
        return np.asarray(compute.utf8_ltrim(plain, "+").cast("float64").to_numpy())

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all are numbers."""
        return self.kind == "numbers" or bool(self.present.any() and not np.isnan(self.numbers[self.present]).any())

    @property
    def are_texts(self) -> bool:
        """Whether they are texts to read: no numbers, no vectors, no bytes."""
        return self.kind in ("words", "plain") and not self.are_numbers

    @property
    def levels(self) -> list[str]:
        """The values of a column that has few; none where it is a free text."""
        levels = {*self.texts} if self.are_texts else set()
        return sorted(levels) if 2 <= len(levels) <= min(CATEGORIES, len(self) / 4) else []

    def explain_identity(self) -> str:
        """The reason why a column of numbers tells nothing about the class of a row; empty where it may."""
        word = self.name.lower().strip()
        if re.fullmatch(r"(unnamed: \d+|)", word):
            return "row numbers"
        if re.fullmatch(r"(id|uuid|guid|.*[_ .-]id)", word) or re.fullmatch(r".*[a-z]I[dD]", self.name):
            return "an id"
        if not self.present.any():
            return "empty"
        values = self.numbers
        if len(values) < 10 or not (np.isfinite(values) & (values == np.round(values))).all():
            return ""
        counts = (np.diff(values) > 0).all() or (np.diff(np.sort(values)) == 1).all()
        return "row numbers" if counts else ""

    def stack(self) -> Tensor:
        """The vectors that are not missing."""
        vectors = self.values.drop_null().combine_chunks()
        sizes = np.asarray(require("pyarrow.compute", "data").list_value_length(vectors).to_numpy())
        flat = vectors.flatten().to_numpy(zero_copy_only=False)
        if len({*sizes.tolist()}) != 1 or flat.dtype.kind not in "fiu":
            raise InputError(
                f"{self.table.where}: column {self.name!r}: its vectors must be numbers, all of one length; name other "
                "columns with features (--features)"
            )
        return as_finite(flat.reshape(len(vectors), -1), self.table.where, self.name)


Rows = dict[str, Cells]


def read_cells(source: Source) -> Rows:
    """The columns of the rows of a source."""
    return {} if source.table is None else {name: Cells(source, name) for name in source.table.names}


@dataclass(frozen=True)
class Reading:
    """The reading of the inputs of training, by which new ones are read alike; plain data, as JSON keeps it."""

    label: str | None = None  # the columns of the labels, of the texts and of the pictures
    text: str | None = None
    image: str | None = None
    encoder: str | None = None  # of the texts or pictures
    numbers: dict[str, float] = field(default_factory=dict)
    """By column, its mean over the training rows, which a missing number counts as."""
    categories: dict[str, list[str]] = field(default_factory=dict)
    """By column, the values that become a column of 0 and 1 each."""
    vectors: dict[str, int] = field(default_factory=dict)
    """By column, the length of its vectors."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs: the columns of vectors, or one name per number."""
        ones = (f"{c}={level}" for c, levels in self.categories.items() for level in levels)
        return (*self.vectors, *self.numbers, *ones)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that the inputs come from."""
        return (*self.vectors, *self.numbers, *self.categories)

    def read(self, source: Source, rows: Rows, fill: bool = True) -> Source:
        """The source with these columns as inputs. A row without a vector is left out; a missing number counts as the
        mean of its column, without `fill` it is an error."""
        if self.vectors:
            return self._read_vectors(source, rows)
        parts: list[Array] = [np.empty((len(source), 0))]
        gaps, unknown = list[str](), list[str]()
        for name, mean in self.numbers.items():
            values = rows[name].numbers
            odd = ~(np.abs(values) <= LARGEST)
            parts.append(np.where(odd, mean, values)[:, None])
            if not odd.any():
                continue
            texts, table, at = rows[name].texts, rows[name].table, rows[name].at
            if not fill:
                first = int(odd.argmax())
                raise InputError(
                    f"{table.where}, {table.place(at[first])}, column {name!r}: {texts[first]!r} is no finite number; "
                    "mend it, or name other columns with features (--features)"
                )
            broken = odd & ~np.isin([text.strip() for text in texts], MISSING)
            if broken.any():
                some = [f"{texts[i][:40]!r} ({table.place(at[i])})" for i in np.flatnonzero(broken)[:SHOWN_CELLS]]
                text = (
                    f"{int(broken.sum())} of {len(broken)} cells in {name!r} are no numbers and count as missing, such "
                    f"as {', '.join(some)}; mend them, or name other columns with features (--features)"
                )
                source = source.note(Kind.NOT_A_NUMBER, text, broken)
            if missing := int((odd & ~broken).sum()):
                gaps.append(f"{missing} in {name!r}")
        for name, levels in self.categories.items():
            texts = rows[name].texts
            parts.append(np.equal.outer(np.array(texts, object), levels))
            unknown += [f"{text!r} in {name!r}" for text in sorted({*texts} - {*levels})[:1]]
        if gaps:
            source = source.note(Kind.FILLED, f"missing numbers count as the mean of their column: {', '.join(gaps)}")
        if unknown:
            text = f"not in the training rows, and counted as no category: {', '.join(unknown)}"
            source = source.note(Kind.FILLED, text)
        return replace(source, inputs=torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float64)))

    def _read_vectors(self, source: Source, rows: Rows) -> Source:
        gone = ~np.logical_and.reduce([rows[name].present for name in self.vectors])
        text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
        source = source.leave_out(Kind.MISSING_VECTOR, text, gone)
        parts = {name: Cells(source, name).stack() for name in self.vectors}
        for name, part in parts.items():
            if part.shape[1] != (self.vectors[name] or part.shape[1]):
                raise InputError(
                    f"{source.name}: column {name!r}: {part.shape[1]} numbers per row, {self.vectors[name]} in training"
                )
        lengths = {name: part.shape[1] for name, part in parts.items()}
        return replace(source, inputs=torch.cat([*parts.values()], 1), reading=replace(self, vectors=lengths))


def learn_reading(rows: Rows, names: Sequence[str], named: bool) -> tuple[Reading, dict[str, str]]:
    """The reading of these columns, as vectors, else as numbers and categories, and the reasons to leave some out: an
    error where the user `named` them. Ids and row numbers are learned from only if they are named.

    A stray word in a column of numbers is a finding, not a reason to leave the column out.
    """
    if vectors := [c for c in names if rows[c].kind == "vectors" and rows[c].present.any()]:
        return Reading(vectors=dict.fromkeys(vectors, 0)), {c: "beside vectors" for c in names if c not in vectors}
    least, left, numbers, kinds = 0.0 if named else 0.5, dict[str, str](), dict[str, float](), dict[str, list[str]]()
    for name in names:
        cells = rows[name]
        if cells.are_numbers or np.isfinite(cells.numbers).sum() > least * cells.present.sum():
            if not named and (why := cells.explain_identity()):
                left[name] = why
                continue
            finite = np.abs(cells.numbers) <= LARGEST
            numbers[name] = float(np.where(finite, cells.numbers, 0).sum() / max(finite.sum(), 1))
        elif levels := cells.levels:
            kinds[name] = levels
        else:
            texts = cells.are_texts and len({*cells.texts}) > 1
            left[name] = "empty" if not cells.present.any() else "texts" if texts else "neither numbers nor categories"
    if named and left:
        name = next(iter(left))
        raise InputError(
            f"{rows[name].table.where}: column {name!r} holds neither numbers nor a few categories; leave it out"
        )
    return Reading(numbers=numbers, categories=kinds), left


def take_features(source: Source, rows: Rows, names: Sequence[str], named: bool, fill: bool = True) -> Source:
    """The source with these columns as inputs, numbers to be standardised; as it is where nothing can be learned."""
    reading, left = learn_reading(rows, names, named)
    if not reading.names:
        return source
    learned = ", ".join(map(repr, reading.sources))[:300]
    source = source.note(Kind.LEARNED, f"learned from {learned}")
    if left:
        reasons = ", ".join(f"{column!r} ({why})" for column, why in left.items())[:600]
        way_out = "names the columns to learn from, `text` (--text) one of texts"
        source = source.note(Kind.NOT_LEARNED, f"not learned from: {reasons}; `features` (--features) {way_out}")
    assert source.table is not None
    reading = replace(reading, label=source.table.label_columns[0])
    source = reading.read(replace(source, reading=reading), rows, fill)
    if reading.vectors:
        return source
    assert isinstance(source.inputs, Tensor)
    numbers = source.inputs[:, : len(reading.numbers)].numpy()
    spread, rest = numbers.std(0), source.inputs.shape[1] - numbers.shape[1]
    mean = (*numbers.mean(0).tolist(), *[0.0] * rest)
    return replace(source, mean=mean, std=(*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest))


def take_probabilities(source: Source, rows: Rows, names: Sequence[str], named: bool) -> Source:
    """The source with the columns that are called as the classes as inputs, in the order of these; all of the columns
    if there are no such ones. A gap is an error: no mean would be a probability."""
    for column in names:
        before, middle, after = column.partition(source.class_names[0])
        wanted = [f"{before}{name}{after}" for name in source.class_names]
        if middle and {*names} >= {*wanted}:
            names = wanted
            break
    source = take_features(source, rows, names, named, fill=False)
    return replace(source, mean=None, std=None, reading=None)


def take_texts(source: Source, rows: Rows, columns: Columns, taken: set[str | None]) -> Source:
    """With pictures or texts, to be embedded: those of the named column, else pictures, else the longest texts."""
    source = replace(source, pictures=open_pictures(source, rows, columns.image))
    shown = [name for name in rows if name not in taken and rows[name].are_texts]
    text, image = columns.text, columns.image
    if text is None and source.pictures is None:
        lengths = {name: sum(map(len, rows[name].texts)) for name in shown if name != "id"}
        if not lengths:
            raise InputError(f"{source.name}: no inputs beside ids and row numbers; name some (--features)")
        text = max(lengths, key=lambda name: lengths[name])
        if 2 * sum(Path(cell).suffix.lower() in SUFFIXES for cell in rows[text].texts) > len(rows[text]):
            raise InputError(f"{source.name}: column {text!r} holds paths of pictures; name it with image (--image)")
    if text or image:
        source = source.note(Kind.LEARNED, f"learned from column {text or image!r} alone")
    meta = {"text": rows[text].texts} if text else {name: rows[name].texts for name in shown}
    assert source.table is not None
    return replace(source, meta=meta, reading=Reading(source.table.label_columns[0], text, image))


def show_beside(source: Source, rows: Rows, taken: set[str | None]) -> Source:
    """With texts and numbers to show beside the labels; numbers only if they are few enough to read."""
    names = [name for name in rows if name not in {*taken, "id", *PICTURES}]
    numbers = [name for name in names if rows[name].are_numbers]
    shown = [n for n in names if rows[n].are_texts or (len(numbers) <= MOST_NUMBERS and n in numbers)]
    return replace(source, meta={name: rows[name].texts for name in shown}, pictures=open_pictures(source, rows))


def open_pictures(source: Source, rows: Rows, column: str | None = None) -> ImageFiles | None:
    """The pictures of a column (default: `path` or `image`): paths beside the table, or encoded bytes."""
    names = [name for name in ((column,) if column else PICTURES) if name in rows]
    if not names or source.table is None:
        return None
    pictures = rows[names[0]]
    cells = pictures.texts if pictures.kind == "words" else pictures.values.to_pylist()
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in cells]
    named = [v if isinstance(v, bytes) else str(v) for v in items]
    return ImageFiles((source.table.path or Path()).parent, named, SHOWN_SIZE)
