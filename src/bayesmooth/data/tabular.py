"""Your own rows: a CSV, TSV or Parquet table or a data frame, or arrays of embeddings; each with labels."""

import csv
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.csvtext import CsvText, check_columns
from bayesmooth.data.examples import Examples, Inputs
from bayesmooth.data.formats import (
    KEYS,
    PARQUET,
    find_array,
    find_id,
    read_parquet,
)
from bayesmooth.data.labels import LABELS, MISSING, as_text, encode, name_classes, read_labels
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.data.reading import Array, MissingError, read_npy, read_npz, split_path
from bayesmooth.errors import InputError
from bayesmooth.optional import require

CLEAN = "clean_label"  # the column of the true labels, where no other is named
PICTURES = ("path", "image")  # columns of pictures
CATEGORIES = 50  # of a column at most, and each must occur four times on average
SHEET_ROW = "row"  # in `meta`: the row of a spreadsheet that an example stands in
SHOWN = 96  # pixels of the pictures that are only shown


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
    rows, unless `standardize` is false; a category becomes columns of 0 and 1. Columns of text become `meta`, the
    column `id` the ids, the column `clean_label` (if there is one) the clean labels.
    """
    labels = (label, clean_label or CLEAN)
    file = split_path(path, split, root)
    frame = read_frame(file, label, clean_label)
    # The training rows number the classes and categories of the others, which may lack one, and standardise them.
    if "{split}" in path:
        rows, train = frame, read_frame(split_path(path, "train", root), label, clean_label)
    else:
        rows, train = _rows(frame, split, file), _rows(frame, "train", file, default=frame)
    options: dict[str, Any] = {
        "label": label,
        "clean_label": clean_label,
        "class_names": class_names,
    }
    known = from_frame(rows, f"{file.stem}/{split}", str(file), train=train, **options)
    learned = choose_features(rows, str(file), features, labels, known.class_names, train)
    pictures = open_pictures(rows, file.parent, SHOWN if learned.names else size)
    if learned.names:
        mean, std = (learned.mean, learned.std) if standardize else (None, None)
        known = replace(
            known, inputs=learned.rows, mean=mean, std=std, pictures=pictures, columns=learned.names
        )
    elif pictures is not None:
        known = replace(known, inputs=pictures)
    else:
        raise InputError(
            f"{file}: no column of numbers and no column `path`: nothing to learn from"
        )
    return replace(known, notes=learned.notes)


def from_frame(
    frame: Any,
    name: str,
    where: str,
    *,
    label: str = "label",
    clean_label: str | None = None,
    class_names: Sequence[str] | None = None,
    id: str | None = None,
    train: Any = None,
    numbered: bool = False,
) -> Examples:
    """Labels, clean labels, ids and texts of a pandas frame; the inputs, which have no columns yet, are to be put in.

    The classes are numbered as in `train` (default: the frame itself); labels that are `numbered` are positions in
    `class_names`. The frame, or what it is a part of, comes from `number_rows`.
    """
    for column in (label, clean_label):
        if column is not None and column not in frame:
            known = ", ".join(map(str, frame.columns))[:200]
            raise InputError(f"{where}: no column {column!r}, only {known}; name another")
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
    shown = [c for c in frame if c not in (*columns, "split") and _is_text(frame[c])]
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
    try:
        with warnings.catch_warnings():
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
    except (
        ValueError, OSError, OverflowError, MemoryError, LookupError, TypeError, Warning, csv.Error,
    ) as error:  # fmt: skip
        raise InputError(f"{file}: not a table that can be read ({str(error)[:200]})") from None
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
    """The same from an Arrow table: pandas would make reals of whole numbers with gaps."""
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
    """The frame with its rows numbered from 0, which is what names a row without an id; a named index is a column."""
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


def without_missing(
    frame: Any, label: str, class_names: Sequence[str] | None, numbered: bool = False
) -> Any:
    """The rows whose label is there. "NA" is missing unless it is a class, and −1 where positions are `numbered`."""
    if label not in frame:
        return frame
    missing = set(MISSING) - set(class_names or ()) | ({"-1"} if numbered else set())
    return frame[[text.strip() not in missing for text in as_texts(frame[label])]]


def _labels(frame: Any, column: str, where: str, names: Sequence[str] = ()) -> list[str]:
    values = frame[column].astype(object)
    return read_labels(values.where(values.notna(), None).tolist(), f"{where}: {column}", names)


def _is_text(column: Any) -> bool:
    """Whether it holds something to read: no numbers, no vectors, no bytes."""
    if require("pandas", extra="data").api.types.is_numeric_dtype(column):
        return False
    return not any(isinstance(v, bytes | dict | list | tuple | np.ndarray) for v in column[:100])


def as_texts(column: Any) -> list[str]:
    """The values of a column as texts; missing ones are empty."""
    values = column.astype(object)
    return [as_text(value) for value in values.where(values.notna(), None).tolist()]


def open_pictures(frame: Any, folder: Path, size: int, column: str | None = None) -> Inputs | None:
    """The pictures of a column (default: `path` or `image`): paths below `folder`, or encoded bytes."""
    found = [c for c in ((column,) if column else PICTURES) if c in frame]
    if not found:
        return None
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in frame[found[0]]]
    return ImageFiles(folder, [v if isinstance(v, bytes) else str(v) for v in items], size)


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
        rows = _finite(values, where, str(column))
        filled = rows.mean(0).repeat(len(frame), 1)
        filled[torch.tensor(known, dtype=torch.bool, device="cpu")] = rows
        parts.append(filled)
    return torch.cat(parts, 1)


def _as_numbers(column: Any) -> Any:
    """A column as floats, NaN where it is none; a comma is a decimal point unless it may mean thousands, 12% is 12."""
    pandas = require("pandas", extra="data")
    if pandas.api.types.is_complex_dtype(column):
        raise InputError(
            f"column {column.name!r}: holds complex numbers; split them in two columns"
        )
    numbers = pandas.to_numeric(column, errors="coerce")
    if not pandas.api.types.is_numeric_dtype(column):
        texts = column.astype(str).str.strip()
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
    if not _is_text(column):
        return []
    levels = sorted(set(as_texts(column)))
    return levels if 2 <= len(levels) <= min(CATEGORIES, len(column) / 4) else []


def _describe(column: Any) -> str:
    """Why a column that is neither numbers nor categories is left out."""
    if column.isna().all():
        return "empty"
    return (
        "texts" if _is_text(column) and column.nunique() > 1 else "neither numbers nor categories"
    )


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


# Embeddings: a .npz with labels, or a .npy beside a .npy of labels.


WAYS_OUT = {
    "embeddings": "predicted probabilities are read with probabilities=True",
    "labels": "name a .npy of labels with labels=",
}


def embeddings(
    split: str,
    root: Path,
    path: str,
    labels: str | None = None,
    class_names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> Examples:
    """Rows of numbers from `path` (.npz or .npy); `labels` names a .npy of labels kept apart.

    A path with {split} in it has one file per split. In a .npz: embeddings (or features, X), labels (or y), and, if you
    have them, clean_labels, class_names, ids, texts, and images (paths, or pictures as bytes). `probabilities` is for
    audits: it reads those that a model predicted (probabilities, or pred_probs) too, and where there are no embeddings
    beside them, or beside images or texts, the inputs have no columns.
    """
    if split != "train" and "{split}" not in path:
        raise MissingError(
            f"path={path!r}: put {{split}} in it, to read {split!r} from another file"
        )

    def content(split: str) -> dict[str, Array]:
        apart = None if labels is None else read_npy(split_path(labels, split, root))
        return read_arrays(split_path(path, split, root), apart, probabilities)

    file = split_path(path, split, root)
    names = tuple(class_names or ())
    if not names and split != "train":
        # The train file numbers the classes of the others, which may lack one.
        names = _npz_names(content("train"), split_path(path, "train", root))
    made = arrays_as_examples(content(split), file, names)
    return replace(made, name=f"{file.stem}/{split}")


def read_arrays(
    file: Path,
    labels: Array | None = None,
    probabilities: bool = False,
    *,
    label: str | None = None,
    id: str | None = None,
) -> dict[str, Array]:
    """The arrays of a file under the names of KEYS, of which the first counts; `label` and `id` name others."""
    found = {"embeddings": read_npy(file)} if file.suffix == ".npy" else read_npz(file)
    content = {k: found[name] for k, names in KEYS.items() for name in names[::-1] if name in found}
    for key, name in {"labels": label, "ids": id}.items():
        if name is not None:
            content[key] = found[find_array(file, found, name, key)]
    if not probabilities:
        content.pop("predicted", None)
    for key in ("predicted", "images", "texts") if probabilities else ():
        if key in content:
            content.setdefault("embeddings", np.empty((*content[key].shape[:1], 0), np.float32))
    if labels is not None:
        content["labels"] = labels
    for key, way_out in WAYS_OUT.items():
        if key not in content:
            known, asked = ", ".join(sorted(found))[:200], " or ".join(KEYS[key])
            raise InputError(f"{file}: has no {asked}, only {known}; {way_out}")
    for key, ndim in {"embeddings": 2, "predicted": 2, "labels": 1}.items():
        if key in content and content[key].ndim != ndim:
            shape = content[key].shape
            raise InputError(f"{file}: {key} of shape {shape}: must be N × D, and N labels")
    if "class_names" in found:
        content["class_names"] = found["class_names"]
    return content


def arrays_as_examples(content: dict[str, Array], file: Path, names: Sequence[str]) -> Examples:
    """The arrays as examples; without `names` the file itself names its classes, or they are those that occur."""
    names = tuple(names) or _npz_names(content, file)
    given = encode(_npz_labels(content, "labels", file), names, f"{file}: labels")
    clean = None
    if "clean_labels" in content:
        clean = encode(_npz_labels(content, "clean_labels", file), names, f"{file}: clean_labels")
    return Examples(
        _finite(content["embeddings"], str(file), "embeddings"),
        given,
        names,
        clean,
        tuple(map(as_text, content["ids"].tolist())) if "ids" in content else None,
        file.stem,
        meta=_meta(content, file),
        pictures=_pictures(content.get("images"), file),
        predicted=_predicted(content.get("predicted"), file),
    )


def _npz_names(content: dict[str, Array], file: Path) -> tuple[str, ...]:
    if "class_names" in content:
        return tuple(_strings(content["class_names"], file, "class_names"))
    present = [key for key in ("labels", "clean_labels") if key in content]
    return name_classes([label for key in present for label in _npz_labels(content, key, file)])


def _npz_labels(content: dict[str, Array], key: str, file: Path) -> list[str]:
    return read_labels(content[key].tolist(), f"{file}: {key}")


def _finite(array: Array, file: str, key: str) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{file}: {key} are {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    broken = np.argwhere(~np.isfinite(numbers))
    if len(broken):
        row, column = broken[0]
        raise InputError(f"{file}: {key}[{row}, {column}] is {array[row, column]}; must be finite")
    return torch.from_numpy(numbers)


def _predicted(array: Array | None, file: Path) -> Tensor | None:
    return None if array is None else _finite(array, str(file), "probabilities")


def _strings(array: Array, file: Path, key: str) -> list[str]:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise InputError(
            f"{file}: {key} are {array.dtype} of shape {array.shape}; must be N strings"
        )
    return [str(value) for value in array]


def _meta(content: dict[str, Array], file: Path) -> dict[str, list[str]]:
    """Texts, and images where they are paths."""
    shown = {"text": content.get("texts"), "path": content.get("images")}
    return {
        name: _strings(array, file, name)
        for name, array in shown.items()
        if array is not None and (name == "text" or array.dtype.kind == "U")
    }


def _pictures(array: Array | None, file: Path) -> Inputs | None:
    """(N, C, H, W) bytes from (N, H, W) or (N, H, W, C); or the pictures at paths beside the file."""
    if array is None:
        return None
    if array.dtype.kind == "U" and array.ndim == 1:
        return ImageFiles(file.parent, array.tolist(), SHOWN)
    flat = array.ndim == 3
    if array.dtype != np.uint8 or not (flat or (array.ndim == 4 and array.shape[3] in (1, 3))):
        raise InputError(
            f"{file}: images are {array.dtype} of shape {array.shape}; must be paths, or bytes (uint8) "
            "of shape N × H × W or N × H × W × 3"
        )
    pictures = torch.from_numpy(array)
    return pictures.unsqueeze(1) if flat else pictures.permute(0, 3, 1, 2)
