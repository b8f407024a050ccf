"""What is learned from: the columns of a table that hold numbers, categories, vectors, texts or pictures."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrays import as_finite
from bayesmooth.data.labels import MISSING, as_text
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.source import Columns, Kind, Note, Source
from bayesmooth.data.tables import Array, Table, as_arrow, find_name
from bayesmooth.errors import InputError
from bayesmooth.optional import require

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
        self.name, self.values, kind = name, values, values.type
        self.is_vector = any(
            f(kind) for f in (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
        )
        self.is_plain = not arrow.types.is_nested(kind) and "binary" not in str(kind)
        self.has_words = arrow.types.is_string(kind)
        self.has_numbers = any(
            f(kind) for f in (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
        )
        if self.has_words:
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
        if self.has_words:
            return list(self.values.fill_null("").to_pylist())
        return [*map(as_text, self.values.to_pylist())]

    @cached_property
    def numbers(self) -> Array:
        """As reals, NaN for what is none. A comma is a decimal point unless it may mean thousands, and 12% is 12."""
        if self.has_numbers:
            return np.asarray(self.values.to_numpy(), np.float64)
        if not self.is_plain:
            return np.full(len(self), np.nan)
        compute = require("pyarrow.compute", "data")
        words = self.values if self.has_words else as_arrow(self.name, [text or None for text in self.texts])
        try:
            reals = words.cast("float64")
        except ValueError:  # some are no plain numbers
            words = compute.utf8_trim_whitespace(words)
            if 2 * _match(words, "%$").sum() > self.known.sum():
                words = compute.utf8_rtrim(words, "% ")
            words = self._replace_commas(words)
            plain = compute.if_else(_match(words, NUMBER), words, None)
            reals = compute.utf8_ltrim(plain, "+").cast("float64")
        return np.asarray(reals.to_numpy())

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
        return self.has_numbers or bool(self.known.any() and not np.isnan(self.numbers[self.known]).any())

    @property
    def are_texts(self) -> bool:
        """Whether they are texts to read: no numbers, no vectors, no bytes."""
        return self.is_plain and not self.are_numbers

    def is_numeric(self, named: bool) -> bool:
        """A stray word in a column of numbers is a finding, not a reason to leave the column out."""
        return self.has_numbers or bool((~np.isnan(self.numbers)).mean() > (0.0 if named else 0.5))

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

    def explain_rest(self) -> str:
        """Why a column that is neither numbers nor categories is left out."""
        if not self.known.any():
            return "empty"
        return "texts" if self.are_texts and len({*self.texts}) > 1 else "neither numbers nor categories"

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


class Rows:
    """Some rows of a table, column by column, and their ids."""

    def __init__(self, source: Source) -> None:
        assert source.table is not None
        self.table: Table = source.table
        self.ids, self.at = source.ids, None if source.rows is None else source.rows.numpy()
        if self.at is not None and np.array_equal(self.at, np.arange(len(self.table))):
            self.at = None
        self.names = self.table.names
        self._cells: dict[str, Cells] = {}

    def __getitem__(self, name: str) -> Cells:
        if name not in self._cells:
            values = self.table.cells[name]
            values = as_arrow(name, values) if isinstance(values, np.ndarray) else values
            self._cells[name] = Cells(name, values if self.at is None else values.take(self.at))
        return self._cells[name]

    def place(self, row: int) -> str:
        """Where a row stands, in words."""
        return self.table.place(row if self.at is None else int(self.at[row]))


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
    vectors: dict[str, list[float]] = field(default_factory=dict)
    """By column, the mean of its vectors, which a missing one counts as in new data."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the inputs are called: the columns of vectors, or one name per number."""
        ones = (f"{c}={level}" for c, levels in self.categories.items() for level in levels)
        return (*self.vectors, *self.numbers, *ones)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that the inputs come from."""
        return (*self.vectors, *self.numbers, *self.categories)

    def read(self, rows: Rows, fill: bool = True) -> tuple[Tensor, list[Note]]:
        """The rows as numbers, and what is worth a note; without `fill` a gap is an error."""
        where = rows.table.where
        for name in self.sources:
            way_out = "the columns must be those of the training rows"
            find_name(where, rows.names, (name,), way_out)
        if self.vectors:
            gaps = {name: int((~rows[name].known).sum()) for name in self.vectors}
            filled = [_fill_vectors(rows[c], where, mean) for c, mean in self.vectors.items()]
            return torch.cat(filled, 1), _note_gaps(gaps, "vectors")
        notes = list[Note]()
        parts, gaps = list[Array]([np.empty((len(rows.ids), 0))]), dict[str, int]()
        for name, mean in self.numbers.items():
            values = rows[name].numbers
            odd = ~(np.abs(values) <= LARGEST)
            broken = [i for i in np.flatnonzero(odd).tolist() if _is_word(rows[name].texts[i])]
            if odd.any() and not fill:
                at = int(odd.argmax())
                raise InputError(
                    f"{where}, {rows.place(at)}, column {name!r}: {rows[name].texts[at]} is not a finite number; "
                    "mend it, or name other columns with features (--features)"
                )
            if broken:
                notes.append(_note_broken(rows, name, broken))
            gaps[name] = int(odd.sum()) - len(broken)
            parts.append(np.where(odd, mean, values)[:, None])
        unknown = []
        for name, known in self.categories.items():
            texts = np.array(rows[name].texts, object)
            parts.append(np.equal.outer(texts, known))
            unknown += [f"{text!r} in {name!r}" for text in sorted({*texts} - {*known})[:1]]
        if unknown:
            text = f"not in the training rows, and counted as no category: {', '.join(unknown)}"
            notes.append(Note(Kind.FILLED, text))
        joined = np.concatenate(parts, axis=1, dtype=np.float64)
        return torch.from_numpy(joined), [*_note_gaps(gaps, "numbers"), *notes]


def _is_word(text: str) -> bool:
    return text.strip() not in MISSING


def _note_gaps(gaps: Mapping[str, int], what: str) -> list[Note]:
    filled = ", ".join(f"{count} in {name!r}" for name, count in gaps.items() if count)
    text = f"missing {what} count as the mean of their column: {filled}"
    return [Note(Kind.FILLED, text)] if filled else []


def _note_broken(rows: Rows, name: str, broken: Sequence[int]) -> Note:
    """The cells that are no numbers, as a finding."""
    some = broken[:SHOWN_CELLS]
    cells = [f"{rows[name].texts[at][:40]!r} ({rows.place(at)})" for at in some]
    text = (
        f"{len(broken)} of {len(rows.ids)} cells in {name!r} are no numbers and count as missing: "
        f"{', '.join(cells)}{', …' if len(broken) > len(some) else ''}; mend them, or name other columns with features "
        "(--features)"
    )
    return Note(Kind.NOT_A_NUMBER, text, tuple(rows.ids[at] for at in broken))


def _fill_vectors(cells: Cells, where: str, mean: Sequence[float]) -> Tensor:
    filled = torch.tensor(mean, dtype=torch.float32, device="cpu").repeat(len(cells), 1)
    if cells.known.any():
        rows = cells.stack(where)
        if rows.shape[1] != len(mean):
            raise InputError(
                f"{where}: column {cells.name!r}: vectors of {rows.shape[1]} numbers; in training they had {len(mean)}"
            )
        filled[torch.from_numpy(cells.known)] = rows
    return filled


def take_features(source: Source, rows: Rows, names: Sequence[str], named: bool, fill: bool = True) -> Source:
    """The source with its numbers as inputs, standardised, and categories as 0 and 1; as it is where there are none.

    Unless the user `named` the columns, ids and row numbers are left out. A missing number counts as the mean of its
    column; without `fill` it is an error.
    """
    reading, left = learn_reading(rows, names, named, source.class_names)
    if not reading.names:
        return source
    learned = ", ".join(map(repr, reading.sources))[:300]
    source = source.note(Kind.LEARNED, f"learned from {learned}")
    if left:
        reasons = ", ".join(f"{column!r} ({why})" for column, why in left.items())
        way_out = "names the columns to learn from, `text` (--text) one of texts"
        text = f"not learned from: {reasons}; `features` (--features) {way_out}"
        source = source.note(Kind.NOT_LEARNED, text)
    values, notes = reading.read(rows, fill)
    numbers = values[:, : len(reading.numbers)].numpy()
    spread, rest = numbers.std(0), values.shape[1] - numbers.shape[1]
    return replace(
        source,
        inputs=values,
        mean=(*numbers.mean(0).tolist(), *[0.0] * rest),
        std=(*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest),
        reading=replace(reading, label=rows.table.label_columns[0]),
        notes=(*source.notes, *notes),
    )


def learn_reading(
    rows: Rows, names: Sequence[str], named: bool, class_names: Sequence[str]
) -> tuple[Reading, dict[str, str]]:
    """How these columns are learned from, and why some are not: an error where the user `named` them."""
    numeric = [c for c in names if rows[c].is_numeric(named)]
    left = {c: why for c in numeric if not named and (why := rows[c].explain_identity())}
    numeric = [c for c in numeric if c not in left]
    if {*numeric} == {*class_names}:  # probabilities, in the order of the classes
        numeric.sort(key=list(class_names).index)
    kinds = {c: rows[c].levels for c in names if c not in {*numeric, *left}}
    left |= {c: rows[c].explain_rest() for c, levels in kinds.items() if not levels}
    kinds = {c: levels for c, levels in kinds.items() if levels}
    refused = [c for c in names if c not in numeric and c not in kinds]
    if named and refused:
        raise InputError(
            f"{rows.table.where}: column {refused[0]!r} holds neither numbers nor a few categories; leave it out of "
            "the features"
        )
    means = {c: _known_mean(rows[c].numbers) for c in numeric}
    return Reading(numbers=means, categories=kinds), left


def _known_mean(values: Array) -> float:
    """The mean of the finite values; 0 where there is none."""
    known = np.abs(values) <= LARGEST
    return float(np.where(known, values, 0).sum() / max(known.sum(), 1))


def find_probabilities(names: Iterable[str], classes: Sequence[str]) -> list[str] | None:
    """The columns that are called as the classes, in the order of these; None if there are no such columns."""
    present = [*names]
    for column in present:
        before, found, after = column.partition(classes[0])
        wanted = [f"{before}{name}{after}" for name in classes]
        if found and {*present} >= {*wanted}:
            return wanted
    return None


def is_chosen(source: Source) -> bool:
    """Whether the format itself says what is learned from, as arrays and folders of pictures do."""
    shown = source.pictures is not None or source.predicted is not None or bool(source.meta)
    return shown or source.input_shape != (0,)


def choose_inputs(source: Source, columns: Columns, predicted: bool = False) -> Source:
    """What is learned from: the named columns; else vectors, else numbers and categories, else pictures, else the
    longest texts."""
    table = source.table
    if table is None or is_chosen(source):
        return source
    for column in filter(None, (columns.text, columns.image)):
        find_name(table.where, table.names, (column,), "name another")
    rows, named = Rows(source), [str(name) for name in columns.features or ()]
    if unknown := [name for name in named if name not in rows.names]:
        raise InputError(f"{table.where}: no column {unknown[0]!r} among the features")
    taken = {*table.label_columns, table.clean_column, columns.id, columns.annotator, "split"}
    taken |= {*(columns.predicted or ())}
    names = named or [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    if predicted:
        names = named or find_probabilities(names, source.class_names) or names
        taken_from = take_features(source, rows, names, bool(named), fill=False)
        source = replace(source, inputs=taken_from.inputs, notes=taken_from.notes)
        return _show(source, rows, taken)
    if columns.text is None and columns.image is None:
        source, rows = _take_vectors(source, rows, names)
        if source.input_shape == (0,):
            source = take_features(source, rows, names, bool(named))
        if source.input_shape != (0,):
            return _show(source, rows, taken)
    return _add_row(_take_texts(source, rows, columns, taken))


def _take_vectors(source: Source, rows: Rows, names: Sequence[str]) -> tuple[Source, Rows]:
    """With the vectors as inputs, and without the rows that have none."""
    vectors = [name for name in names if rows[name].is_vector and rows[name].known.any()]
    if not vectors:
        return source, rows
    gone = ~np.logical_and.reduce([rows[name].known for name in vectors])
    if gone.any():
        text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
        source = source.leave_out(torch.from_numpy(gone), Kind.MISSING_VECTOR, text)
        rows = Rows(source)
    parts = {name: rows[name].stack(rows.table.where) for name in vectors}
    centres = {name: part.mean(0).tolist() for name, part in parts.items()}
    reading = Reading(rows.table.label_columns[0], vectors=centres)
    source = replace(source, inputs=torch.cat([*parts.values()], 1), reading=reading)
    source = source.note(Kind.LEARNED, f"learned from {', '.join(map(repr, vectors))}")
    if beside := [repr(name) for name in names if name not in vectors]:
        source = source.note(Kind.NOT_LEARNED, f"not learned from, beside vectors: {', '.join(beside)[:300]}")
    return source, rows


def _take_texts(source: Source, rows: Rows, columns: Columns, taken: set[str | None]) -> Source:
    """With pictures or texts, to be embedded: those of the named column, else pictures, else the longest texts."""
    label = rows.table.label_columns[0]
    source = replace(source, pictures=open_pictures(rows, columns.image))
    shown = [name for name in rows.names if name not in taken and rows[name].are_texts]
    if columns.text is not None or columns.image is not None:
        reading = Reading(label, columns.text, columns.image)
        names = {"text": columns.text} if columns.text else {name: name for name in shown}
        text = f"learned from column {columns.text or columns.image!r} alone"
        source = source.note(Kind.LEARNED, text)
    elif source.pictures is not None:
        reading, names = Reading(label), {name: name for name in shown}
    else:
        lengths = {name: sum(map(len, rows[name].texts)) for name in shown if name != "id"}
        if not lengths:
            where = rows.table.where
            raise InputError(f"{where}: no column of numbers, texts or pictures: nothing to learn from")
        longest = max(lengths, key=lambda name: lengths[name])
        reading, names = Reading(label, text=longest), {"text": longest}
        source = source.note(Kind.LEARNED, f"learned from the texts in column {longest!r} alone")
    meta = {key: rows[name].texts for key, name in names.items()}
    return replace(source, meta=meta, reading=reading)


def _show(source: Source, rows: Rows, taken: set[str | None]) -> Source:
    """With texts and numbers to show beside the labels; numbers only if they are few enough to read."""
    names = [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    numbers = [name for name in names if rows[name].are_numbers]
    shown = [n for n in names if rows[n].are_texts or (len(numbers) <= MOST_NUMBERS and n in numbers)]
    meta = {name: rows[name].texts for name in shown}
    return _add_row(replace(source, meta=meta, pictures=open_pictures(rows)))


def _add_row(source: Source) -> Source:
    """With the row of the spreadsheet, to be shown."""
    table, rows = source.table, source.rows
    if table is None or rows is None or table.numbers is None:
        return source
    numbers = [str(table.numbers[row]) for row in rows.tolist()]
    return replace(source, meta={SHEET_ROW: numbers, **source.meta})


def open_pictures(rows: Rows, column: str | None = None) -> ImageFiles | None:
    """The pictures of a column (default: `path` or `image`): paths beside the table, or encoded bytes."""
    found = [name for name in ((column,) if column else PICTURES) if name in rows.names]
    if not found:
        return None
    pictures = rows[found[0]]
    cells = pictures.texts if pictures.has_words else pictures.values.to_pylist()
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in cells]
    named = [v if isinstance(v, bytes) else str(v) for v in items]
    return ImageFiles(rows.table.folder, named, SHOWN_SIZE)
