"""The columns of a table that can be learned from: numbers, categories and vectors; ids and row numbers are not."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.reading import Array, as_finite
from bayesmooth.data.source import Kind, Note
from bayesmooth.data.tables import Table, as_values, find_name
from bayesmooth.data.tags import MISSING, as_text
from bayesmooth.errors import InputError
from bayesmooth.optional import require

PICTURES = ("path", "image")  # columns of pictures
CATEGORIES = 50  # of a column at most, and each must occur four times on average
SHOWN_CELLS = 3  # cells that are no numbers, in a note
LARGEST = float(np.finfo(np.float32).max)


def as_texts(column: Any) -> list[str]:
    """The values of a column as texts; missing ones are empty."""
    return [as_text(value) for value in as_values(column)]


def is_text(column: Any) -> bool:
    """Whether a column holds texts to read: no numbers, no vectors, no bytes."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return False
    return not any(isinstance(v, bytes | dict | list | tuple | np.ndarray) for v in column[:100])


@dataclass(frozen=True)
class Rows:
    """Some rows of a table as a pandas frame, whose index is their place in the table, and their ids."""

    frame: Any
    table: Table
    ids: Sequence[str]

    def place(self, at: int, column: str = "") -> str:
        """Where a row or a cell stands, in words."""
        row = self.table.place(int(self.frame.index[at]))
        return f"{self.table.where}, {row}, column {column!r}" if column else row


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
        where, frame = rows.table.where, rows.frame
        columns = {str(column): column for column in frame}
        for name in self.sources:
            find_name(where, columns, (name,), "the columns must be those of the training rows")
        frame = frame[[columns[name] for name in self.sources]].set_axis(list(self.sources), axis=1)
        notes = list[Note]()
        if self.vectors:
            gaps = {name: int(frame[name].isna().sum()) for name in self.vectors}
            parts = [_stack(frame[c], where, mean) for c, mean in self.vectors.items()]
            return torch.cat(parts, 1), _note_gaps(gaps, "vectors")
        levels = {name: np.array(as_texts(frame[name]), object) for name in self.categories}
        onehot = [np.equal.outer(levels[name], known) for name, known in self.categories.items()]
        new = {c: sorted({*levels[c]} - {*known}) for c, known in self.categories.items()}
        unknown = ", ".join(f"{texts[0]!r} in {c!r}" for c, texts in new.items() if texts)
        if unknown:
            text = f"not in the training rows, and counted as no category: {unknown}"
            notes.append(Note(Kind.FILLED, text))
        numbers, gaps = [np.empty((len(frame), 0))], {}
        for name, mean in self.numbers.items():
            values = _as_numbers(frame[name])
            odd = ~(np.abs(values) <= LARGEST)
            broken = _find_broken(frame[name], odd)
            if odd.any() and not fill:
                at = int(odd.argmax())
                raise InputError(
                    f"{rows.place(at, name)}: {frame[name].iloc[at]} is not a finite number; mend it, or name other "
                    "columns with features (--features)"
                )
            notes += _note_broken(frame[name], broken, rows)
            gaps[name] = int(odd.sum()) - len(broken)
            numbers.append(np.where(odd, mean, values)[:, None])
        joined = np.concatenate([*numbers, *onehot], axis=1, dtype=np.float64)
        return torch.from_numpy(joined), [*_note_gaps(gaps, "numbers"), *notes]


def _note_gaps(gaps: Mapping[str, int], what: str) -> list[Note]:
    filled = ", ".join(f"{count} in {name!r}" for name, count in gaps.items() if count)
    text = f"missing {what} count as the mean of their column: {filled}"
    return [Note(Kind.FILLED, text)] if filled else []


def _find_broken(column: Any, odd: Array) -> list[int]:
    """Where a cell holds something that is no number, and is not a word for a missing one."""
    places = np.flatnonzero(odd).tolist()
    return [at for at in places if as_text(column.iloc[at]).strip() not in MISSING]


def _note_broken(column: Any, broken: Sequence[int], rows: Rows) -> list[Note]:
    """The cells that are no numbers, as a finding."""
    if not broken:
        return []
    name, some = str(column.name), broken[:SHOWN_CELLS]
    cells = [f"{str(column.iloc[at])[:40]!r} ({rows.place(at)})" for at in some]
    text = (
        f"{len(broken)} of {len(column)} cells in {name!r} are no numbers and count as missing: "
        f"{', '.join(cells)}{', …' if len(broken) > len(some) else ''}; mend them, or name other columns with features "
        "(--features)"
    )
    return [Note(Kind.NOT_A_NUMBER, text, tuple(rows.ids[at] for at in broken))]


@dataclass(frozen=True)
class Features:
    """What is learned from in a table: one row per example, the statistics that standardise it, what was left out."""

    reading: Reading
    rows: Tensor
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[Note, ...] = ()


def choose_features(
    rows: Rows,
    features: Sequence[str] | None,
    taken: Iterable[str | None],
    class_names: Sequence[str],
    fill: bool = True,
) -> Features:
    """Columns of vectors as they are; else numbers, standardised, and categories as 0 and 1.

    `taken` are columns with another use. Without `features`, ids and row numbers are left out. A missing number counts
    as the mean of its column; without `fill` it is an error.
    """
    frame, where = rows.frame, rows.table.where
    if unknown := [column for column in features or () if column not in frame]:
        raise InputError(f"{where}: no column {unknown[0]!r} among the features")
    columns = features or [c for c in frame if c not in {*taken, "id", "split", *PICTURES}]
    reading, left = learn_reading(frame, where, columns, bool(features), class_names)
    values, notes = reading.read(rows, fill)
    if left:
        reasons = ", ".join(f"{str(column)!r} ({why})" for column, why in left.items())
        way_out = "names the columns to learn from, `text` (--text) one of texts"
        text = f"not learned from: {reasons}; `features` (--features) {way_out}"
        notes.insert(0, Note(Kind.NOT_LEARNED, text))
    if reading.vectors:
        return Features(reading, values, None, None, tuple(notes))
    numbers = values[:, : len(reading.numbers)].numpy()
    spread, rest = numbers.std(0), values.shape[1] - numbers.shape[1]
    mean = (*numbers.mean(0).tolist(), *[0.0] * rest)
    std = (*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest)
    return Features(reading, values, mean, std, tuple(notes))


def find_probabilities(names: Iterable[Any], classes: Sequence[str]) -> list[Any] | None:
    """The columns that are called as the classes, in the order of these; None if there are no such columns."""
    present = {str(column): column for column in names}
    for column in present:
        before, found, after = column.partition(classes[0])
        wanted = [f"{before}{name}{after}" for name in classes]
        if found and present.keys() >= {*wanted}:
            return [present[name] for name in wanted]
    return None


def learn_reading(
    train: Any, where: str, columns: Sequence[Any], named: bool, class_names: Sequence[str]
) -> tuple[Reading, dict[Any, str]]:
    """How these columns are learned from, and why some are not: an error where the user `named` them."""
    vectors = [c for c in columns if is_vector(train[c])]
    if vectors:
        beside = {c: "beside vectors" for c in columns if c not in vectors}
        centres = {str(c): _known_vectors(train[c], where).mean(0).tolist() for c in vectors}
        return Reading(vectors=centres), beside
    numeric = [c for c in columns if _is_numeric(train[c], named)]
    left = {c: why for c in numeric if not named and (why := _identifies(str(c), train[c]))}
    numeric = [c for c in numeric if c not in left]
    if {str(c) for c in numeric} == set(class_names):  # probabilities, in the order of the classes
        numeric.sort(key=lambda column: list(class_names).index(str(column)))
    kinds = {c: _categories(train[c]) for c in columns if c not in {*numeric, *left}}
    left |= {c: _describe(train[c]) for c, levels in kinds.items() if not levels}
    kinds = {str(c): levels for c, levels in kinds.items() if levels}
    refused = [c for c in columns if c not in numeric and str(c) not in kinds]
    if named and refused:
        raise InputError(
            f"{where}: column {refused[0]!r} holds neither numbers nor a few categories; leave it out of the features"
        )
    means = {str(c): _known_mean(_as_numbers(train[c])) for c in numeric}
    return Reading(numbers=means, categories=kinds), left


def is_vector(column: Any) -> bool:
    """Whether a column holds vectors."""
    present = column.dropna()
    first = present.iloc[0] if len(present) else None
    return isinstance(first, list | tuple | np.ndarray) and len(np.shape(first)) == 1


def _known_vectors(column: Any, where: str) -> Tensor:
    try:
        values = np.stack([np.asarray(vector) for vector in column.dropna()])
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: column {column.name!r}: its vectors must be numbers, all of one length"
        ) from None
    return as_finite(values, where, str(column.name))


def _stack(column: Any, where: str, mean: Sequence[float]) -> Tensor:
    known = column.notna().to_numpy()
    filled = torch.tensor(mean, dtype=torch.float32, device="cpu").repeat(len(column), 1)
    if known.any():
        rows = _known_vectors(column, where)
        if rows.shape[1] != len(mean):
            raise InputError(
                f"{where}: column {column.name!r}: vectors of {rows.shape[1]} numbers; in training they had {len(mean)}"
            )
        filled[torch.tensor(known, dtype=torch.bool, device="cpu")] = rows
    return filled


def _as_numbers(column: Any) -> Array:
    """Floats, NaN for what is no number. A comma is a decimal point unless it may mean thousands, and 12% is 12."""
    pandas = require("pandas", extra="data")
    numbers = pandas.to_numeric(column, errors="coerce")
    if pandas.api.types.is_complex_dtype(numbers):
        raise InputError(f"column {column.name!r}: complex numbers; split them in two columns")
    if not pandas.api.types.is_numeric_dtype(column):
        texts = pandas.Series(as_texts(column), column.index, object).str.strip()
        if 2 * texts.str.endswith("%").sum() > column.notna().sum():
            texts = texts.str.removesuffix("%").str.strip()
            numbers = pandas.to_numeric(texts, errors="coerce")
        commas = texts[texts.str.fullmatch(r"[+-]?\d*,\d+([eE][+-]?\d+)?")]
        if 2 * len(commas) > len(texts) and commas.str.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}").all():
            raise InputError(
                f"column {column.name!r}: {commas.iloc[0]} may be {commas.iloc[0].replace(',', '.')} or "
                f"{commas.iloc[0].replace(',', '')}; write it with a point, or without one"
            )
        if len(commas):
            numbers = pandas.to_numeric(texts.str.replace(",", "."), errors="coerce")
    return np.asarray(numbers.to_numpy("float64", na_value=np.nan))


def _is_numeric(column: Any, named: bool) -> bool:
    """A stray word in a column of numbers is a finding, not a reason to leave the column out."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return True
    return bool((~np.isnan(_as_numbers(column))).mean() > (0.0 if named else 0.5))


def _identifies(name: str, column: Any) -> str:
    """Why a column of numbers tells nothing about the class of a row; empty where it may."""
    word = name.lower().strip()
    if re.fullmatch(r"(unnamed: \d+|)", word):
        return "row numbers"
    if re.fullmatch(r"(id|uuid|guid|.*[_ .-]id)", word) or re.fullmatch(r".*[a-z]I[dD]", name):
        return "an id"
    if column.isna().all():
        return "empty"
    values = _as_numbers(column)
    if len(values) < 10 or not (np.isfinite(values) & (values == np.round(values))).all():
        return ""
    counts = (np.diff(values) > 0).all() or (np.diff(np.sort(values)) == 1).all()
    return "row numbers" if counts else ""


def _categories(column: Any) -> list[str]:
    """The values of a column that has few; none where it is a free text."""
    if not is_text(column):
        return []
    levels = sorted(set(as_texts(column)))
    return levels if 2 <= len(levels) <= min(CATEGORIES, len(column) / 4) else []


def _describe(column: Any) -> str:
    """Why a column that is neither numbers nor categories is left out."""
    if column.isna().all():
        return "empty"
    return "texts" if is_text(column) and column.nunique() > 1 else "neither numbers nor categories"


def _known_mean(values: Array) -> float:
    """The mean of the finite values; 0 where there is none."""
    known = np.abs(values) <= LARGEST
    return float(np.where(known, values, 0).sum() / max(known.sum(), 1))
