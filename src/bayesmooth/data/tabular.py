"""Your own rows: a CSV, TSV or Parquet table, or a data frame."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesmooth.data.columns import PICTURES, as_texts, as_values, choose_features, is_text
from bayesmooth.data.csvtext import CsvText, check_columns
from bayesmooth.data.examples import Examples, Inputs
from bayesmooth.data.formats import PARQUET, find_id, find_name, read_parquet
from bayesmooth.data.labels import LABELS, MISSING, encode, find_missing, name_classes, read_labels
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.reading import MissingError, locate, name_errors
from bayesmooth.errors import InputError
from bayesmooth.optional import require

CLEAN = "clean_label"  # the column of the true labels, where no other is named
SHEET_ROW = "row"  # in `meta`: the row of a spreadsheet that an example stands in


def table(
    split: str,
    root: Path,
    path: str,
    label: str = "label",
    clean_label: str | None = None,
    class_names: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    size: int = 64,
    standardize: bool = True,
) -> Examples:
    """Rows of a table. The split is a column `split`, or stands in the path: `data/{split}.csv`.

    Inputs are `features` (default: all columns of numbers and of categories, without row numbers and ids), else the
    pictures in the column `path`. Numbers are standardised by the mean and the standard deviation of the training
    rows, unless `standardize` is false, and a missing one counts as that mean; a category becomes columns of 0 and 1.
    Columns of text become `meta`, the column `id` the ids, the column `clean_label` (if there is one) the clean labels.
    """
    file = locate(path, root, split)
    name, where = f"{file.stem}/{split}", str(file)
    frame = read_frame(file, label, clean_label)
    # The training rows number the classes and categories of the others, which may lack one, and standardise them.
    if "{split}" in path:
        rows, train = frame, read_frame(locate(path, root, "train"), label, clean_label)
    else:
        rows, train = _rows(frame, split, file), _rows(frame, "train", file, default=frame)
    known = from_frame(rows, name, where, label, clean_label, class_names, train=train)
    taken = (label, clean_label or CLEAN)
    learned = choose_features(rows, where, features, taken, known.class_names, train)
    pictures = open_pictures(rows, file.parent, SHOWN_SIZE if learned.names else size)
    known = replace(known, notes=learned.notes, reading=replace(learned.reading, label=label))
    if learned.names:
        known = replace(known, inputs=learned.rows, columns=learned.names, pictures=pictures)
        return replace(known, mean=learned.mean, std=learned.std) if standardize else known
    if pictures is None:
        raise InputError(f"{where}: no column of numbers, no column `path`: nothing to learn from")
    return replace(known, inputs=pictures)


def from_frame(
    frame: Any,
    name: str,
    where: str,
    label: str,
    clean_label: str | None,
    class_names: Sequence[str] | None,
    *,
    id: str | None = None,
    train: Any = None,
    numbered: bool = False,
) -> Examples:
    """Labels, clean labels, ids and texts of a pandas frame, as examples whose inputs have no columns yet.

    The classes are numbered as in `train` (default: the frame itself); labels that are `numbered` are positions in
    `class_names`. The frame, or what it is a part of, comes from `number_rows`.
    """
    for column in (label, clean_label):
        if column is not None:
            find_name(where, frame.columns, (column,), "name another")
    columns = [column for column in (label, clean_label or CLEAN) if column in frame]
    names = tuple(class_names or ())
    if not names:
        source = frame if train is None else train
        names = name_classes(v for c in columns for v in _labels(source, c, where))
    numbers = [
        encode(_labels(frame, c, where, names), names, f"{where}: {c}", numbered) for c in columns
    ]
    key = find_id(where, list(frame.columns), id)
    ids = [str(i) for i in frame.index] if key is None else as_texts(frame[key])
    shown = [c for c in frame if c not in (*columns, "split") and is_text(frame[c])]
    return Examples(
        torch.empty(len(frame), 0, dtype=torch.float32, device="cpu"),
        numbers[0],
        names,
        numbers[1] if len(numbers) > 1 else None,
        tuple(ids),
        name,
        meta={str(column): as_texts(frame[column]) for column in shown},
    )


def read_frame(
    file: Path,
    label: str | None = None,
    clean_label: str | None = None,
    id: str | None = None,
    encoding: str | None = None,
) -> Any:
    """A CSV, TSV or Parquet file as a pandas frame; the columns of labels and ids hold what stands in the file."""
    if file.suffix.lower() in PARQUET:
        return frame_from_arrow(read_parquet(file), str(file), label, clean_label, id)
    pandas, text = require("pandas", extra="data"), CsvText(file, encoding)
    known = text.columns(_taken(text.header, label, clean_label, id))
    with name_errors(file, "table"), warnings.catch_warnings():
        warnings.simplefilter("error")  # a row longer than the header only gets a warning
        frame = pandas.read_csv(
            io.StringIO(text.text.removeprefix("\ufeff")),
            sep=text.mark,
            index_col=False,
            dtype=dict.fromkeys(known, str),
            na_values=MISSING,
            keep_default_na=False,
            low_memory=False,
        )
    if len(frame) != len(text):
        raise InputError(
            f"{file}: has {len(text)} rows by its quotation marks, and {len(frame)} as a table; look for stray marks"
        )
    for name, values in known.items():
        frame[name] = pandas.Series(values, dtype=object)
    frame.attrs["notes"] = text.notes
    return number_rows(frame, str(file))


def frame_from_arrow(
    table: Any,
    where: str,
    label: str | None = None,
    clean_label: str | None = None,
    id: str | None = None,
) -> Any:
    """The same from an Arrow table; pandas alone would make reals of labels that are whole numbers with gaps."""
    pandas, frame = require("pandas", extra="data"), table.to_pandas(ignore_metadata=True)
    for name in _taken(table.column_names, label, clean_label, id):
        frame[name] = pandas.Series(table[name].to_pylist(), dtype=object)
    return number_rows(frame, where)


def _taken(
    columns: Sequence[str], label: str | None, clean_label: str | None, id: str | None
) -> list[str]:
    """The columns of labels, clean labels and ids, as far as they are there."""
    usual = [name for name in LABELS if name in columns][:1]
    wanted = {label or "".join(usual), clean_label or CLEAN, id or "id"}
    return [name for name in columns if name in wanted]


def number_rows(frame: Any, where: str) -> Any:
    """The frame with its rows numbered from 0, as ids of rows that have no others. A named index becomes a column."""
    named = any(name is not None for name in frame.index.names)
    frame = frame.reset_index(drop=not named)
    check_columns(where, [str(column) for column in frame.columns])
    if not len(frame):
        raise InputError(f"{where}: no rows; give a table with some")
    return frame


def _rows(frame: Any, split: str, file: Path, default: Any = None) -> Any:
    """The rows of a split, by the column `split`; without one, all rows are for training."""
    if "split" in frame:
        rows = frame[[value == split for value in as_texts(frame["split"])]]
        if len(rows) or default is not None:
            return rows if len(rows) else default
        raise MissingError(f"{file}: no row whose column `split` is {split!r}")
    if split != "train":
        raise MissingError(
            f"{file}: has no {split!r}; add a column `split`, or put {{split}} in the path"
        )
    return frame


def drop_missing(
    frame: Any, label: str, class_names: Sequence[str] | None, numbered: bool = False
) -> Any:
    """The rows that have a label."""
    missing = find_missing(as_values(frame[label]), class_names or (), numbered)
    return frame[[not gone for gone in missing]]


def _labels(frame: Any, column: str, where: str, names: Sequence[str] = ()) -> list[str]:
    return read_labels(as_values(frame[column]), f"{where}: {column}", names)


def open_pictures(frame: Any, folder: Path, size: int, column: str | None = None) -> Inputs | None:
    """The pictures of a column (default: `path` or `image`): paths below `folder`, or encoded bytes."""
    found = [c for c in ((column,) if column else PICTURES) if c in frame]
    if not found:
        return None
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in frame[found[0]]]
    return ImageFiles(folder, [v if isinstance(v, bytes) else str(v) for v in items], size)
