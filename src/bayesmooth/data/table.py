"""A CSV or parquet table: a column of labels, numbers or paths of pictures, text to show."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.classes import encode, names_of, plain
from bayesmooth.data.examples import Examples, Inputs
from bayesmooth.data.files import MissingError, split_path
from bayesmooth.data.images import ImageFiles
from bayesmooth.errors import InputError
from bayesmooth.optional import require

CLEAN = "clean_label"  # the column of the true labels, where no other is named
RESERVED = ("id", "split", "path", "text")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None")


def table(
    split: str,
    root: Path,
    path: str,
    label: str = "label",
    clean_label: str | None = None,
    class_names: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    size: int = 64,
) -> Examples:
    """Rows of a table. The split is a column `split`, or stands in the path: `data/{split}.csv`.

    Inputs are `features` (default: all columns of numbers), else the pictures in the column `path`.
    Columns of text become `meta`, the column `id` the ids, the column `clean_label` (if there is one)
    the clean labels.
    """
    columns = (label, clean_label or CLEAN)
    file = split_path(path, split, root)
    frame = _read(file, columns)
    if clean_label is not None and clean_label not in frame:
        raise InputError(f"{file}: no column {clean_label!r} for the true labels; leave it out")
    names = tuple(class_names or ())
    if not names:  # the train file numbers the classes of the others, which may lack one
        train = _read(split_path(path, "train", root), columns) if "{split}" in path else frame
        names = names_of(
            [value for c in columns if c in train for value in _labels(train, c, file)]
        )
    given = encode(_labels(frame, label, file), names, f"{file}: {label}")
    clean = None
    if columns[1] in frame:
        clean = encode(_labels(frame, columns[1], file), names, f"{file}: {columns[1]}")
    inputs, pictures = _inputs(frame, features, columns, names, file, size)
    text = {
        str(c): _texts(frame[c])
        for c in frame
        if c not in (*columns, "split") and _is_text(frame[c])
    }
    ids = tuple(_texts(frame["id"])) if "id" in frame else None
    name = f"{file.stem}/{split}"
    whole = Examples(inputs, given, names, clean, ids, name, meta=text, pictures=pictures)
    return whole if "{split}" in path else _rows(whole, frame, split, file)


def _read(file: Path, labels: tuple[str, str]) -> Any:
    pandas = require("pandas", extra="data")
    try:
        if file.suffix in (".parquet", ".pq"):
            require("pyarrow", extra="data")
            frame = pandas.read_parquet(file)
        else:
            frame = _read_csv(pandas, file, labels)
    except InputError:
        raise
    except (
        ValueError,
        OSError,
        OverflowError,
        MemoryError,
        LookupError,
        TypeError,
        Warning,
    ) as error:
        raise InputError(f"{file}: not a table that can be read ({str(error)[:200]})") from None
    if not len(frame) or not frame.columns.is_unique:
        raise InputError(f"{file}: no rows" if not len(frame) else f"{file}: a column stands twice")
    if labels[0] not in frame:
        columns = ", ".join(map(str, frame.columns))[:200]
        raise InputError(
            f"{file}: no column {labels[0]!r}, only {columns}; name the labels' with label="
        )
    return frame


def _read_csv(pandas: Any, file: Path, labels: tuple[str, str]) -> Any:
    form = {"sep": "\t" if file.suffix == ".tsv" else ",", "index_col": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a row longer than the header only gets a warning
        columns = pandas.read_csv(file, nrows=0, **form).columns
        # Labels are read as they stand: a class may be called NA.
        missing = {column: MISSING for column in columns if column not in labels}
        return pandas.read_csv(
            file,
            dtype=dict.fromkeys(labels, str),
            na_values=missing,
            keep_default_na=False,
            low_memory=False,
            **form,
        )


def _rows(whole: Examples, frame: Any, split: str, file: Path) -> Examples:
    """The rows of a split, by the column `split`; without one, all rows are for training."""
    if "split" in frame:
        mask = torch.tensor([value == split for value in _texts(frame["split"])])
        if not mask.any():
            raise MissingError(f"{file}: no row whose column `split` is {split!r}")
        return whole.subset(mask)
    if split != "train":
        raise MissingError(
            f"{file}: has no {split!r}; add a column `split`, or put {{split}} in the path"
        )
    return whole


def _labels(frame: Any, column: str, file: Path) -> list[str]:
    values = frame[column].astype(object)
    return plain(values.where(values.notna(), None).tolist(), f"{file}: {column}")


def _is_text(column: Any) -> bool:
    return not require("pandas", extra="data").api.types.is_numeric_dtype(column)


def _mostly_numbers(column: Any) -> bool:
    """A stray word in a column of numbers is an error to report, not a reason to leave the column out."""
    if not _is_text(column):
        return True
    numbers = require("pandas", extra="data").to_numeric(column.astype(str), errors="coerce")
    return bool(numbers.notna().mean() > 0.5)


def _texts(column: Any) -> list[str]:
    values = column.astype(object)
    return [str(value) for value in values.where(values.notna(), "").tolist()]


def _inputs(
    frame: Any,
    features: Sequence[str] | None,
    labels: tuple[str, str],
    names: tuple[str, ...],
    file: Path,
    size: int,
) -> tuple[Inputs, Inputs | None]:
    """(inputs, pictures to show): numbers if there are any, pictures if there are paths."""
    free = [column for column in frame if column not in (*labels, *RESERVED)]
    columns = list(features or [column for column in free if _mostly_numbers(frame[column])])
    if {str(column) for column in columns} == set(
        names
    ):  # probabilities: in the order of the classes
        columns.sort(key=lambda column: names.index(str(column)))
    pictures = ImageFiles(file.parent, _texts(frame["path"]), size) if "path" in frame else None
    if columns:
        return _numbers(frame, columns, file), pictures
    if pictures is None:
        raise InputError(
            f"{file}: no column of numbers and no column `path`: nothing to learn from"
        )
    return pictures, None


def _numbers(frame: Any, columns: list[str], file: Path) -> Tensor:
    pandas = require("pandas", extra="data")
    unknown = [column for column in columns if column not in frame]
    if unknown:
        raise InputError(f"{file}: no column {unknown[0]!r} among the features")
    numbers = [pandas.to_numeric(frame[column], errors="coerce") for column in columns]
    with np.errstate(over="ignore"):
        values = np.column_stack(
            [n.to_numpy("float64", na_value=np.nan).astype("float32") for n in numbers]
        )
    broken = np.argwhere(~np.isfinite(values))
    if len(broken):
        row, column = broken[0]
        cell = (
            f"{file}, row {row + 1}, column {columns[column]!r}: {frame[columns[column]].iloc[row]}"
        )
        raise InputError(
            f"{cell} is not a finite number; mend it, or name other columns with features="
        )
    return torch.from_numpy(values)
