"""The columns of a table that can be learned from: numbers, categories and vectors; ids and row numbers are not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.formats import find_name
from bayesmooth.data.labels import as_text
from bayesmooth.data.reading import Array, as_finite
from bayesmooth.errors import InputError
from bayesmooth.optional import require

PICTURES = ("path", "image")  # columns of pictures
CATEGORIES = 50  # of a column at most, and each must occur four times on average


def as_texts(column: Any) -> list[str]:
    """The values of a column as texts; missing ones are empty."""
    return [as_text(value) for value in as_values(column)]


def as_values(column: Any) -> list[Any]:
    """The values of a column; missing ones are None."""
    values = column.astype(object)
    return list(values.where(values.notna(), None))


def is_text(column: Any) -> bool:
    """Whether a column holds texts to read: no numbers, no vectors, no bytes."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return False
    return not any(isinstance(v, bytes | dict | list | tuple | np.ndarray) for v in column[:100])


@dataclass(frozen=True)
class Reading:
    """How the inputs of training were read, so that new ones are read alike; plain data, as JSON keeps it."""

    label: str | None = None  # the columns of the labels, of the texts and of the pictures
    text: str | None = None
    image: str | None = None
    encoder: str | None = None  # what made rows of numbers of texts or pictures
    numbers: dict[str, float] = field(default_factory=dict)
    """By column, its mean over the training rows, which a missing number counts as."""
    categories: dict[str, list[str]] = field(default_factory=dict)
    """By column, the values that become a column of 0 and 1 each."""
    vectors: dict[str, list[float]] = field(default_factory=dict)
    """By column, the mean of its vectors, which a missing one counts as."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the inputs are called: the columns of vectors, or one name per number."""
        ones = (f"{c}={level}" for c, levels in self.categories.items() for level in levels)
        return (*self.vectors, *self.numbers, *ones)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that the inputs come from."""
        return (*self.vectors, *self.numbers, *self.categories)

    def read(self, frame: Any, where: str, fill: bool = True) -> tuple[Tensor, list[str]]:
        """The rows of a table as numbers, and what is worth a note; without `fill` a gap is an error."""
        columns = {str(column): column for column in frame}
        for name in self.sources:
            find_name(where, columns, (name,), "the columns must be those of the training rows")
        frame = frame[[columns[name] for name in self.sources]].set_axis(list(self.sources), axis=1)
        gaps = {name: int(frame[name].isna().sum()) for name in (*self.vectors, *self.numbers)}
        filled = ", ".join(f"{count} in {name!r}" for name, count in gaps.items() if count)
        what, notes = "vectors" if self.vectors else "numbers", list[str]()
        if filled:
            notes.append(f"missing {what} count as the mean of their column: {filled}")
        if self.vectors:
            parts = [_stack(frame[c], where, mean, fill) for c, mean in self.vectors.items()]
            return torch.cat(parts, 1), notes
        levels = {name: np.array(as_texts(frame[name]), object) for name in self.categories}
        onehot = [np.equal.outer(levels[name], known) for name, known in self.categories.items()]
        new = {c: sorted({*levels[c]} - {*known}) for c, known in self.categories.items()}
        unknown = ", ".join(f"{texts[0]!r} in {c!r}" for c, texts in new.items() if texts)
        if unknown:
            notes.append(f"not in the training rows, and counted as no category: {unknown}")
        numbers = _numbers(frame, self.numbers, where, fill)
        rows = np.concatenate([numbers, *onehot], axis=1, dtype=np.float64)
        return torch.from_numpy(rows), notes


@dataclass(frozen=True)
class Features:
    """What is learned from in a table: one row per example, the statistics that standardise it, what was left out."""

    reading: Reading
    rows: Tensor
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers of a row are called."""
        return self.reading.names


def choose_features(
    frame: Any,
    where: str,
    features: Sequence[str] | None,
    taken: Iterable[str | None],
    class_names: Sequence[str],
    train: Any = None,
    fill: bool = True,
) -> Features:
    """Columns of vectors as they are; else numbers (standardised by the rows of `train`) and categories as 0 and 1.

    `taken` are columns with another use. Without `features`, ids and row numbers are left out. A missing number counts
    as the mean of its column in `train`; without `fill` it is an error.
    """
    train = frame if train is None else train
    if unknown := [column for column in features or () if column not in train]:
        raise InputError(f"{where}: no column {unknown[0]!r} among the features")
    columns = features or [c for c in train if c not in {*taken, "id", "split", *PICTURES}]
    reading, left = learn_reading(train, where, columns, bool(features), class_names)
    rows, notes = reading.read(frame, where, fill)
    if left:
        said = ", ".join(f"{str(column)!r} ({why})" for column, why in left.items())
        way_out = "names the columns to learn from, `text` (--text) one of texts"
        notes.insert(0, f"not learned from: {said}; `features` (--features) {way_out}")
    if reading.vectors:
        return Features(reading, rows, None, None, tuple(notes))
    known = rows if train is frame else reading.read(train, where, fill)[0]
    numbers = known[:, : len(reading.numbers)].numpy()
    spread, rest = numbers.std(0), rows.shape[1] - numbers.shape[1]
    mean = (*numbers.mean(0).tolist(), *[0.0] * rest)
    std = (*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest)
    return Features(reading, rows, mean, std, tuple(notes))


def learn_reading(
    train: Any, where: str, columns: Sequence[Any], named: bool, class_names: Sequence[str]
) -> tuple[Reading, dict[Any, str]]:
    """How these columns are learned from, and why some are not: an error where the user `named` them."""
    vectors = [c for c in columns if _is_vector(train[c])]
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


def _is_vector(column: Any) -> bool:
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


def _stack(column: Any, where: str, mean: Sequence[float], fill: bool) -> Tensor:
    known = column.notna().to_numpy()
    if not (known.all() or fill):
        at = f"row {int(known.argmin()) + 1}, column {column.name!r}"
        raise InputError(f"{where}, {at}: no vector; leave the row out")
    if not known.any():
        raise InputError(f"{where}: column {column.name!r}: no row has a vector")
    rows = _known_vectors(column, where)
    if rows.shape[1] != len(mean):
        raise InputError(
            f"{where}: column {column.name!r}: vectors of {rows.shape[1]} numbers; in training they had {len(mean)}"
        )
    filled = torch.tensor(mean, dtype=rows.dtype, device="cpu").repeat(len(column), 1)
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
    """A stray word in a column of numbers is an error to report, not a reason to leave the column out."""
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
    known = np.isfinite(values)
    return float(np.where(known, values, 0).sum() / max(known.sum(), 1))


def _numbers(frame: Any, means: dict[str, float], where: str, fill: bool) -> Array:
    if not means:
        return np.empty((len(frame), 0))
    values = np.column_stack([_as_numbers(frame[column]) for column in means])
    if fill:
        gaps = np.column_stack([frame[column].isna() for column in means])
        values = np.where(gaps, list(means.values()), values)
    broken = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(broken):
        row, column = broken[0]
        name = list(means)[column]
        raise InputError(
            f"{where}, row {row + 1}, column {name!r}: {frame[name].iloc[row]} is not a finite number; mend it, "
            "or name other columns with features="
        )
    return values
