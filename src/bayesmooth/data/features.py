"""What is learned from: the columns of a table that hold numbers, categories, vectors, texts or pictures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrays import as_finite
from bayesmooth.data.labels import MISSING, as_text
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.source import Columns, Kind, Source
from bayesmooth.data.tables import Array, as_arrow
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
    """One column of some rows, an array of Arrow. Each view is computed once."""

    def __init__(self, name: str, values: Any) -> None:
        arrow, compute = require("pyarrow", "data"), require("pyarrow.compute", "data")
        types, kind = arrow.types, values.type
        self.name, self.values = name, values
        self.are_vectors = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        self.are_plain = not types.is_nested(kind) and "binary" not in str(kind)
        self.are_words = types.is_string(kind)
        self.are_typed = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if self.are_words:
            gone = compute.is_in(values, arrow.array(MISSING, "string"))
            self.values = compute.if_else(gone, None, values)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def known(self) -> Array:
        """Which of them are there."""
        gone = self.values.is_null(nan_is_null=True)
        return ~np.asarray(gone.to_numpy())

    @cached_property
    def texts(self) -> list[str]:
        """As texts; missing ones are empty."""
        if self.are_words:
            return list(self.values.fill_null("").to_pylist())
        return [*map(as_text, self.values.to_pylist())]

    @cached_property
    def numbers(self) -> Array:
        """As reals, NaN for what is none. A comma is a decimal point unless it may mean thousands."""
        if self.are_typed:
            return np.asarray(self.values.to_numpy(), np.float64)
        if not self.are_plain:
            return np.full(len(self), np.nan)
        arrow, compute = require("pyarrow", "data"), require("pyarrow.compute", "data")
        words = self.values
        if not self.are_words:
            words = arrow.chunked_array([[text or None for text in self.texts]], "string")
        words = self._replace_commas(compute.utf8_trim_whitespace(words))
        plain = compute.if_else(_match(words, NUMBER), words, None)
        return np.asarray(compute.utf8_ltrim(plain, "+").cast("float64").to_numpy())

    def _replace_commas(self, words: Any) -> Any:
        """Words with a point for a decimal comma."""
        commas = _match(words, COMMA)
        if not commas.any():
            return words
        first = words[int(commas.argmax())].as_py()
        if 2 * commas.sum() > len(words) and _match(words, THOUSANDS)[commas].all():
            raise InputError(
                f"column {self.name!r}: {first} may be {first.replace(',', '.')} or {first.replace(',', '')}; write it "
                "with a point, or without one"
            )
        return require("pyarrow.compute", "data").replace_substring(words, ",", ".")

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all are numbers."""
        return self.are_typed or bool(self.known.any() and not np.isnan(self.numbers[self.known]).any())

    @property
    def are_texts(self) -> bool:
        """Whether they are texts to read: no numbers, no vectors, no bytes."""
        return self.are_plain and not self.are_numbers

    @property
    def levels(self) -> list[str]:
        """The values of a column that has few; none where it is a free text."""
        levels = {*self.texts} if self.are_texts else set()
        return sorted(levels) if 2 <= len(levels) <= min(CATEGORIES, len(self) / 4) else []

    def explain_identity(self) -> str:
        """Why a column of numbers tells nothing about the class of a row; empty where it may."""
        word = self.name.lower().strip()
        if re.fullmatch(r"(unnamed: \d+|)", word):
            return "row numbers"
        if re.fullmatch(r"(id|uuid|guid|.*[_ .-]id)", word) or re.fullmatch(r".*[a-z]I[dD]", self.name):
            return "an id"
        if not self.known.any():
            return "empty"
        values = self.numbers
        if len(values) < 10 or not (np.isfinite(values) & (values == np.round(values))).all():
            return ""
        counts = (np.diff(values) > 0).all() or (np.diff(np.sort(values)) == 1).all()
        return "row numbers" if counts else ""

    def stack(self, where: str) -> Tensor:
        """Those vectors that are there."""
        there = self.values.drop_null().combine_chunks()
        sizes = np.asarray(require("pyarrow.compute", "data").list_value_length(there).to_numpy())
        flat = there.flatten().to_numpy(zero_copy_only=False)
        if len({*sizes.tolist()}) != 1 or flat.dtype.kind not in "fiu":
            raise InputError(
                f"{where}: column {self.name!r}: its vectors must be numbers, all of one length; name other columns "
                "with features (--features)"
            )
        return as_finite(flat.reshape(len(there), -1), where, self.name)


def _match(words: Any, pattern: str) -> Array:
    """Which words are as the pattern says."""
    matched = require("pyarrow.compute", "data").match_substring_regex(words, pattern)
    return np.asarray(matched.fill_null(False).to_numpy())


class TableRows:
    """The rows of a table that a source has, column by column."""

    def __init__(self, source: Source) -> None:
        assert source.table is not None
        assert source.rows is not None
        self.table, self.at, self.ids = source.table, source.rows.numpy(), source.ids
        self.where, self.names = self.table.where, self.table.names
        self._cells: dict[str, Cells] = {}

    def __getitem__(self, name: str) -> Cells:
        if name not in self._cells:
            values = self.table.cells[self.table.find(name)]
            values = as_arrow(values) if isinstance(values, np.ndarray) else values
            self._cells[name] = Cells(name, values if len(self.at) == self.table.count else values.take(self.at))
        return self._cells[name]

    def place(self, row: int) -> str:
        """Where a row stands, in words."""
        return self.table.place(int(self.at[row]))


@dataclass(frozen=True)
class Reading:
    """How the inputs of training were read, so that new ones are read alike; plain data, as JSON keeps it."""

    label: str | None = None  # the columns of the labels, of the texts and of the pictures
    text: str | None = None
    image: str | None = None
    encoder: str | None = None  # what turned texts or pictures into rows of numbers
    numbers: dict[str, float] = field(default_factory=dict)
    """By column, its mean over the training rows, which a missing number counts as."""
    categories: dict[str, list[str]] = field(default_factory=dict)
    """By column, the values that become a column of 0 and 1 each."""
    vectors: dict[str, int] = field(default_factory=dict)
    """By column, the length of its vectors."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the inputs are called: the columns of vectors, or one name per number."""
        ones = (f"{c}={level}" for c, levels in self.categories.items() for level in levels)
        return (*self.vectors, *self.numbers, *ones)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that the inputs come from."""
        return (*self.vectors, *self.numbers, *self.categories)

    def read(self, source: Source, rows: TableRows, fill: bool = True) -> Source:
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
            texts = rows[name].texts
            if not fill:
                at = int(odd.argmax())
                raise InputError(
                    f"{rows.where}, {rows.place(at)}, column {name!r}: {texts[at]} is not a finite number; "
                    "mend it, or name other columns with features (--features)"
                )
            broken = odd & ~np.isin([text.strip() for text in texts], MISSING)
            if broken.any():
                some = [f"{texts[at][:40]!r} ({rows.place(at)})" for at in np.flatnonzero(broken)[:SHOWN_CELLS]]
                text = (
                    f"{int(broken.sum())} of {len(broken)} cells in {name!r} are no numbers and count as missing, such "
                    f"as {', '.join(some)}; mend them, or name other columns with features (--features)"
                )
                source = source.note(Kind.NOT_A_NUMBER, text, torch.from_numpy(broken))
            if missing := int((odd & ~broken).sum()):
                gaps.append(f"{missing} in {name!r}")
        for name, known in self.categories.items():
            texts = rows[name].texts
            parts.append(np.equal.outer(np.array(texts, object), known))
            unknown += [f"{text!r} in {name!r}" for text in sorted({*texts} - {*known})[:1]]
        if gaps:
            source = source.note(Kind.FILLED, f"missing numbers count as the mean of their column: {', '.join(gaps)}")
        if unknown:
            text = f"not in the training rows, and counted as no category: {', '.join(unknown)}"
            source = source.note(Kind.FILLED, text)
        return replace(source, inputs=torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float64)))

    def _read_vectors(self, source: Source, rows: TableRows) -> Source:
        gone = ~np.logical_and.reduce([rows[name].known for name in self.vectors])
        text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
        source = source.leave_out(Kind.MISSING_VECTOR, text, torch.from_numpy(gone))
        rows = TableRows(source) if gone.any() else rows
        parts = {name: rows[name].stack(rows.where) for name in self.vectors}
        for name, part in parts.items():
            if part.shape[1] != (self.vectors[name] or part.shape[1]):
                raise InputError(
                    f"{rows.where}: column {name!r}: vectors of {part.shape[1]} numbers; in training they had "
                    f"{self.vectors[name]}"
                )
        lengths = {name: part.shape[1] for name, part in parts.items()}
        return replace(source, inputs=torch.cat([*parts.values()], 1), reading=replace(self, vectors=lengths))


def learn_reading(rows: TableRows, names: Sequence[str], named: bool) -> tuple[Reading, dict[str, str]]:
    """How these columns are learned from: as vectors, else as numbers and categories; and why some are not, which is an
    error where the user `named` them. Ids and row numbers are learned from only if they are named.

    A stray word in a column of numbers is a finding, not a reason to leave the column out.
    """
    if vectors := [c for c in names if rows[c].are_vectors and rows[c].known.any()]:
        return Reading(vectors=dict.fromkeys(vectors, 0)), {c: "beside vectors" for c in names if c not in vectors}
    least, left, numbers, kinds = 0.0 if named else 0.5, dict[str, str](), dict[str, float](), dict[str, list[str]]()
    for name in names:
        cells = rows[name]
        if cells.are_typed or np.isfinite(cells.numbers).mean() > least:
            if not named and (why := cells.explain_identity()):
                left[name] = why
                continue
            known = np.abs(cells.numbers) <= LARGEST
            numbers[name] = float(np.where(known, cells.numbers, 0).sum() / max(known.sum(), 1))
        elif levels := cells.levels:
            kinds[name] = levels
        else:
            texts = cells.are_texts and len({*cells.texts}) > 1
            left[name] = "empty" if not cells.known.any() else "texts" if texts else "neither numbers nor categories"
    if named and left:
        raise InputError(
            f"{rows.where}: column {next(iter(left))!r} holds neither numbers nor a few categories; leave it out "
            "of the features"
        )
    return Reading(numbers=numbers, categories=kinds), left


def take_features(source: Source, rows: TableRows, names: Sequence[str], named: bool, fill: bool = True) -> Source:
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
    reading = replace(reading, label=rows.table.label_columns[0])
    source = reading.read(replace(source, reading=reading), rows, fill)
    if reading.vectors:
        return source
    assert isinstance(source.inputs, Tensor)
    numbers = source.inputs[:, : len(reading.numbers)].numpy()
    spread, rest = numbers.std(0), source.inputs.shape[1] - numbers.shape[1]
    mean = (*numbers.mean(0).tolist(), *[0.0] * rest)
    return replace(source, mean=mean, std=(*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest))


def find_probabilities(names: Sequence[str], classes: Sequence[str]) -> Sequence[str]:
    """The columns that are called as the classes, in the order of these; all if there are no such columns."""
    for column in names:
        before, middle, after = column.partition(classes[0])
        wanted = [f"{before}{name}{after}" for name in classes]
        if middle and {*names} >= {*wanted}:
            return wanted
    return names


def choose_inputs(source: Source, columns: Columns, predicted: bool = False) -> Source:
    """What is learned from: the named columns; else vectors, else numbers and categories, else pictures, else the
    longest texts."""
    table = source.table
    if table is None or table.is_chosen:
        return source
    rows, named = TableRows(source), [str(name) for name in columns.features or ()]
    for column in filter(None, (columns.text, columns.image, *named)):
        table.find(column)
    taken = {*table.label_columns, table.clean_column, columns.id, columns.annotator, "split"}
    taken |= {*(columns.predicted or ())}
    names = named or [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    if predicted:
        names = [*find_probabilities(names, source.class_names)]
        source = replace(take_features(source, rows, names, bool(named), fill=False), mean=None, std=None, reading=None)
    elif columns.text is None and columns.image is None:
        source = take_features(source, rows, names, bool(named))
    if predicted or source.input_shape != (0,):
        source = _show(source, rows if len(rows.at) == len(source) else TableRows(source), taken)
    else:
        source = _take_texts(source, rows, columns, taken)
    if table.numbers is not None and source.rows is not None:
        numbers = [str(table.numbers[row]) for row in source.rows.tolist()]
        source = replace(source, meta={SHEET_ROW: numbers, **source.meta})
    return source


def _take_texts(source: Source, rows: TableRows, columns: Columns, taken: set[str | None]) -> Source:
    """With pictures or texts, to be embedded: those of the named column, else pictures, else the longest texts."""
    source = replace(source, pictures=open_pictures(rows, columns.image))
    shown = [name for name in rows.names if name not in taken and rows[name].are_texts]
    text, image = columns.text, columns.image
    if text is None and source.pictures is None:
        lengths = {name: sum(map(len, rows[name].texts)) for name in shown if name != "id"}
        if not lengths:
            raise InputError(f"{rows.where}: no column of numbers, texts or pictures: nothing to learn from")
        text = max(lengths, key=lambda name: lengths[name])
    if text or image:
        source = source.note(Kind.LEARNED, f"learned from column {text or image!r} alone")
    meta = {"text": rows[text].texts} if text else {name: rows[name].texts for name in shown}
    return replace(source, meta=meta, reading=Reading(rows.table.label_columns[0], text, image))


def _show(source: Source, rows: TableRows, taken: set[str | None]) -> Source:
    """With texts and numbers to show beside the labels; numbers only if they are few enough to read."""
    names = [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    numbers = [name for name in names if rows[name].are_numbers]
    shown = [n for n in names if rows[n].are_texts or (len(numbers) <= MOST_NUMBERS and n in numbers)]
    meta = {name: rows[name].texts for name in shown}
    return replace(source, meta=meta, pictures=open_pictures(rows))


def open_pictures(rows: TableRows, column: str | None = None) -> ImageFiles | None:
    """The pictures of a column (default: `path` or `image`): paths beside the table, or encoded bytes."""
    found = [name for name in ((column,) if column else PICTURES) if name in rows.names]
    if not found:
        return None
    pictures = rows[found[0]]
    cells = pictures.texts if pictures.are_words else pictures.values.to_pylist()
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in cells]
    named = [v if isinstance(v, bytes) else str(v) for v in items]
    return ImageFiles(rows.table.folder, named, SHOWN_SIZE)
