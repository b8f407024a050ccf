"""The columns of a table that can be learned from: numbers, categories and vectors; ids and row numbers are not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    """Whether it holds something to read: no numbers, no vectors, no bytes."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return False
    return not any(isinstance(v, bytes | dict | list | tuple | np.ndarray) for v in column[:100])


@dataclass(frozen=True)
class Features:
    """What is learned from in a table: one row per example, the statistics that standardise it, what was left out."""

    names: tuple[str, ...]
    rows: Tensor
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """The columns of the table that they come from."""


def choose_features(
    frame: Any,
    where: str,
    features: Sequence[str] | None,
    taken: Iterable[str | None],
    class_names: Sequence[str],
    train: Any = None,
    fill: bool = False,
) -> Features:
    """Columns of vectors as they are; else numbers (standardised by the rows of `train`) and categories as 0 and 1.

    `taken` are columns with another use. Without `features`, ids and row numbers are left out. A missing number is an
    error; with `fill` it counts as the mean of its column.
    """
    train = frame if train is None else train
    unknown = [column for column in features or () if column not in frame]
    if unknown:
        raise InputError(f"{where}: no column {unknown[0]!r} among the features")
    free = [c for c in frame if c not in {*taken, "id", "split", *PICTURES}]
    columns = list(features or free)
    vectors = [c for c in columns if _is_vector(frame[c])]
    if vectors:
        gaps = {c: int(frame[c].isna().sum()) for c in vectors}
        beside = {c: "beside vectors" for c in columns if c not in vectors}
        stacked = _stack(frame, vectors, where, fill)
        said = (*_say_left_out(beside), *_say_filled(gaps, "vectors"))
        return Features(tuple(vectors), stacked, None, None, said, tuple(vectors))
    numeric = [c for c in columns if _is_numeric(train[c], named=bool(features))]
    left = {c: why for c in numeric if not features and (why := _identifies(str(c), train[c]))}
    numeric = [c for c in numeric if c not in left]
    if {str(c) for c in numeric} == set(class_names):  # probabilities, in the order of the classes
        numeric.sort(key=lambda column: list(class_names).index(str(column)))
    kinds = {c: _categories(train[c]) for c in columns if c not in {*numeric, *left}}
    left |= {c: _describe(train[c]) for c, levels in kinds.items() if not levels}
    kinds = {c: levels for c, levels in kinds.items() if levels}
    refused = [c for c in features or () if c not in numeric and c not in kinds]
    if refused:
        raise InputError(
            f"{where}: column {refused[0]!r} holds neither numbers nor a few categories; leave it out of the features"
        )
    numbers = _numbers(frame, numeric, where, fill)
    gaps = {c: int(frame[c].isna().sum()) for c in numeric}
    known = numbers if train is frame else _numbers(train, numeric, where, fill)
    onehot = [np.equal.outer(_levels(frame[c]), levels) for c, levels in kinds.items()]
    rows = np.concatenate([numbers, *onehot], axis=1, dtype=np.float64)
    spread = known.std(0)
    rest = rows.shape[1] - len(numeric)
    return Features(
        (*map(str, numeric), *(f"{c}={level}" for c, levels in kinds.items() for level in levels)),
        torch.from_numpy(rows),
        (*known.mean(0).tolist(), *[0.0] * rest),
        (*np.where(spread > 0, spread, 1.0).tolist(), *[1.0] * rest),
        (*_say_left_out(left), *_say_filled(gaps, "numbers")),
        (*map(str, numeric), *map(str, kinds)),
    )


def _say_left_out(left: dict[Any, str]) -> list[str]:
    said = ", ".join(f"{str(c)!r} ({why})" for c, why in left.items())
    way_out = (
        "; `features` (--features) names the columns to learn from, `text` (--text) one of texts"
    )
    return [f"not learned from: {said}{way_out}"] if left else []


def _say_filled(gaps: dict[Any, int], what: str) -> list[str]:
    said = ", ".join(f"{count} in {str(c)!r}" for c, count in gaps.items() if count)
    return [f"missing {what} count as the mean of their column: {said}"] if said else []


def _is_vector(column: Any) -> bool:
    present = column.dropna()
    first = present.iloc[0] if len(present) else None
    return isinstance(first, list | tuple | np.ndarray) and len(np.shape(first)) == 1


def _stack(frame: Any, columns: Sequence[str], where: str, fill: bool) -> Tensor:
    parts = []
    for column in columns:
        known = frame[column].notna().to_numpy()
        if not (known.all() or fill):
            row = int(known.argmin()) + 1
            raise InputError(f"{where}, row {row}, column {column!r}: no vector; leave the row out")
        try:
            values = np.stack([np.asarray(v) for v in frame[column][known]])
        except (TypeError, ValueError):
            raise InputError(
                f"{where}: column {column!r}: its vectors must be numbers, all of one length"
            ) from None
        rows = as_finite(values, where, str(column))
        filled = rows.mean(0).repeat(len(frame), 1)
        filled[torch.tensor(known, dtype=torch.bool, device="cpu")] = rows
        parts.append(filled)
    return torch.cat(parts, 1)


def _as_numbers(column: Any) -> Any:
    """A column as floats, NaN where it is none; a comma is a decimal point unless it may mean thousands, 12% is 12."""
    pandas = require("pandas", extra="data")
    numbers = pandas.to_numeric(column, errors="coerce")
    if pandas.api.types.is_complex_dtype(numbers):
        raise InputError(
            f"column {column.name!r}: holds complex numbers; split them in two columns"
        )
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
    return numbers


def _is_numeric(column: Any, named: bool) -> bool:
    """A stray word in a column of numbers is an error to report, not a reason to leave the column out."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return True
    return bool(_as_numbers(column).notna().mean() > (0.0 if named else 0.5))


def _identifies(name: str, column: Any) -> str:
    """Why a column of numbers tells nothing about the class of a row; empty where it may."""
    word = name.lower().strip()
    if re.fullmatch(r"(unnamed: \d+|)", word):
        return "row numbers"
    if re.fullmatch(r"(id|uuid|guid|.*[_ .-]id)", word) or re.fullmatch(r".*[a-z]I[dD]", name):
        return "an id"
    if column.isna().all():
        return "empty"
    values = _as_numbers(column).to_numpy("float64", na_value=np.nan)
    if len(values) < 10 or not (np.isfinite(values) & (values == np.round(values))).all():
        return ""
    counts = (np.diff(values) > 0).all() or (np.diff(np.sort(values)) == 1).all()
    return "row numbers" if counts else ""


def _levels(column: Any) -> Array:
    return np.array(as_texts(column), object)


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


def _numbers(frame: Any, columns: Sequence[str], where: str, fill: bool) -> Array:
    numbers = [_as_numbers(frame[column]) for column in columns]
    if not numbers:
        return np.empty((len(frame), 0))
    values = np.column_stack([n.to_numpy("float64", na_value=np.nan) for n in numbers])
    if fill:
        gaps = np.column_stack([frame[column].isna() for column in columns])
        known = np.where(np.isfinite(values), values, 0).sum(0) / np.isfinite(values).sum(0).clip(1)
        values = np.where(gaps, known, values)
    broken = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(broken):
        row, column = broken[0]
        cell = frame[columns[column]].iloc[row]
        raise InputError(
            f"{where}, row {row + 1}, column {columns[column]!r}: {cell} is not a finite number; mend it, "
            "or name other columns with features="
        )
    return values
