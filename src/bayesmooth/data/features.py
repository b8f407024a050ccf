"""The columns of a table that can be learned from: numbers, categories and vectors; ids and row numbers are not."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrays import as_finite
from bayesmooth.data.arrow import ParquetFolder
from bayesmooth.data.labels import MISSING, as_texts
from bayesmooth.data.source import Kind, Note, Source
from bayesmooth.data.tables import Array, Table, find_name
from bayesmooth.errors import InputError
from bayesmooth.files import replace_with
from bayesmooth.optional import require
from bayesmooth.progress import bar

PICTURES = ("path", "image")  # columns of pictures
CATEGORIES = 50  # of a column at most, and each must occur four times on average
ONE_LENGTH = "its vectors must be numbers, all of one length; name other columns with features"
SHOWN_CELLS = 3  # cells that are no numbers, in a note
LARGEST = float(np.finfo(np.float32).max)
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
COMMA = r"^[+-]?\d*,\d+([eE][+-]?\d+)?"
THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}"


class Cells:
    """One column of some rows: an array of numbers or objects, or strings of Arrow. Each view is computed once."""

    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values = name, values
        if self.kind == "O" and {*map(type, values)} <= {str, type(None)}:
            with suppress(UnicodeEncodeError):  # half a character stays an object
                self.values = require("pyarrow", "data").array(values, "string")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """The kind of the numbers as numpy calls it, "O" for objects, "words" for strings of Arrow."""
        return self.values.dtype.kind if isinstance(self.values, np.ndarray) else "words"

    @cached_property
    def known(self) -> Array:
        """Which of them are there."""
        if self.kind == "words":
            return np.asarray(self.values.is_valid().to_numpy(zero_copy_only=False))
        if self.kind != "O":
            return ~np.isnan(self.values) if self.kind == "f" else np.ones(len(self), bool)
        gone = (v is None or (isinstance(v, float) and v != v) for v in self.values)
        return ~np.fromiter(gone, bool, len(self))

    @cached_property
    def texts(self) -> list[str]:
        """As texts; missing ones are empty."""
        if self.kind == "words":
            return list(self.values.fill_null("").to_pylist())
        return as_texts(self.values.tolist())

    @cached_property
    def numbers(self) -> Array:
        """As reals, NaN for what is none. A comma is a decimal point unless it may mean thousands, and 12% is 12."""
        words = self.values
        if self.kind != "words":
            if self.kind == "c" or (self.kind == "O" and any(map(np.iscomplexobj, self.values))):
                raise InputError(f"column {self.name!r}: complex numbers; split them in two columns")
            with suppress(TypeError, ValueError, OverflowError):
                if self.kind != "O" or not any(isinstance(value, str) for value in self.values):
                    return np.asarray(self.values, np.float64)
            words = require("pyarrow", "data").array(self.texts)
        compute = require("pyarrow.compute", "data")
        try:
            reals = words.cast("float64")
        except ValueError:  # some are no plain numbers
            if not self._match(words, r"\d[\s%.]*").any():
                return np.full(len(self), np.nan)
            words = compute.utf8_trim_whitespace(words)
            if 2 * self._match(words, "%").sum() > self.known.sum():
                words = compute.utf8_rtrim(words, "% ")
            words = self._replace_commas(words)
            plain = compute.if_else(self._match(words, NUMBER), words, None)
            reals = compute.utf8_ltrim(plain, "+").cast("float64")
        return np.asarray(reals.to_numpy(zero_copy_only=False))

    @staticmethod
    def _match(words: Any, pattern: str) -> Array:
        """Which words end as the pattern says."""
        found = require("pyarrow.compute", "data").match_substring_regex(words, f"{pattern}$")
        return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False))

    def _replace_commas(self, words: Any) -> Any:
        """Words with a point for a decimal comma."""
        commas = self._match(words, COMMA)
        if not commas.any():
            return words
        first = words[int(commas.argmax())].as_py()
        if 2 * commas.sum() > len(words) and self._match(words, THOUSANDS)[commas].all():
            raise InputError(
                f"column {self.name!r}: {first} may be {first.replace(',', '.')} or {first.replace(',', '')}; write it "
                "with a point, or without one"
            )
        return require("pyarrow.compute", "data").replace_substring(words, ",", ".")

    @property
    def is_vector(self) -> bool:
        """Whether they are vectors."""
        if self.kind != "O" or not self.known.any():
            return False
        first = self.values[self.known.argmax()]
        return isinstance(first, list | tuple | np.ndarray) and len(np.shape(first)) == 1

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all are numbers."""
        if self.kind in "biuf":
            return True
        known = self._may_be_text and bool(self.known.any())
        return known and not np.isnan(self.numbers[self.known]).any()

    @property
    def are_texts(self) -> bool:
        """Whether they are texts to read: no numbers, no vectors, no bytes."""
        return self._may_be_text and not self.are_numbers

    @property
    def _may_be_text(self) -> bool:
        odd = (bytes, dict, list, tuple, np.ndarray)
        objects = self.values[:100] if self.kind == "O" else ()
        return self.kind in ("words", "O") and not any(isinstance(v, odd) for v in objects)

    @property
    def levels(self) -> list[str]:
        """The values of a column that has few; none where it is a free text."""
        levels = {*self.texts} if self.are_texts else set()
        return sorted(levels) if 2 <= len(levels) <= min(CATEGORIES, len(self) / 4) else []

    def is_numeric(self, named: bool) -> bool:
        """A stray word in a column of numbers is a finding, not a reason to leave the column out."""
        if self.kind in "biufc":
            return True
        return bool((~np.isnan(self.numbers)).mean() > (0.0 if named else 0.5))

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
        try:
            values = np.stack([np.asarray(vector) for vector in self.values[self.known]])
        except (TypeError, ValueError):
            raise InputError(f"{where}: column {self.name!r}: {ONE_LENGTH}") from None
        return as_finite(values, where, self.name)


class Rows:
    """Some rows of a table, column by column, and their ids."""

    def __init__(self, source: Source) -> None:
        assert source.table is not None
        self.table: Table = source.table
        self.ids, self.at = source.ids, None if source.rows is None else source.rows.numpy()
        if self.at is not None and np.array_equal(self.at, np.arange(len(self.table))):
            self.at = None
        self.names = list(dict.fromkeys(self.table.names))
        self._cells: dict[str, Cells] = {}

    def __getitem__(self, name: str) -> Cells:
        if name not in self._cells:
            values = self.table.array(name)
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
    left |= {c: _explain_rest(rows[c]) for c, levels in kinds.items() if not levels}
    kinds = {c: levels for c, levels in kinds.items() if levels}
    refused = [c for c in names if c not in numeric and c not in kinds]
    if named and refused:
        raise InputError(
            f"{rows.table.where}: column {refused[0]!r} holds neither numbers nor a few categories; leave it out of "
            "the features"
        )
    means = {c: _known_mean(rows[c].numbers) for c in numeric}
    return Reading(numbers=means, categories=kinds), left


def _explain_rest(cells: Cells) -> str:
    """Why a column that is neither numbers nor categories is left out."""
    if not cells.known.any():
        return "empty"
    return "texts" if cells.are_texts and len({*cells.texts}) > 1 else "neither numbers nor categories"


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


def map_vectors(table: ParquetFolder, column: str, folder: Path) -> Array:
    """The vectors of many files, copied once to an array on the disk, which lies in `folder` under the hash of the
    files' content; the row of a missing one is NaN."""
    digest = hashlib.sha256(column.encode())
    for part in table.parts:
        with open(part.where, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    place = folder / f"{digest.hexdigest()[:32]}.npy"
    with suppress(OSError, ValueError):  # a damaged entry is made again
        rows = np.lib.format.open_memmap(place, mode="r")
        if rows.ndim == 2 and len(rows) == len(table):
            return rows
    with TemporaryDirectory(ignore_cleanup_errors=True) as spare:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError:  # a cache that cannot be written costs time and nothing else
            place = Path(spare) / place.name
        replace_with(place, lambda at: _copy_vectors(at, table, column))
        return np.lib.format.open_memmap(place, mode="r")  # it stays, though its name may go


def _copy_vectors(place: Path, table: ParquetFolder, column: str) -> None:
    """Copy the vectors of all files to one array, piece by piece."""
    array, at, missing = None, 0, list[int]()
    with bar(len(table), description="reading") as shown:
        for part in table.parts:
            find_name(part.where, part.names, (column,), "others beside it have it")
            for piece in part.read_pieces(column):
                cells = Cells(column, piece)
                if cells.known.any():
                    rows = cells.stack(part.where).numpy()
                    if array is None:
                        shape = (len(table), rows.shape[1])
                        array = np.lib.format.open_memmap(place, "w+", np.float32, shape)
                    if rows.shape[1] != array.shape[1]:
                        raise InputError(f"{part.where}: column {column!r}: {ONE_LENGTH}")
                    array[at + np.flatnonzero(cells.known)] = rows
                missing += (at + np.flatnonzero(~cells.known)).tolist()
                at += len(piece)
                shown.update(at)
    if array is None:
        raise InputError(f"{table.where}: column {column!r}: no row has a vector; name others")
    array[missing] = np.nan
    array.flush()
