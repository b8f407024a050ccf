"""Whatever a data set is kept in, as labelled examples whose texts and pictures are not embedded yet.

A folder of pictures, a table or a data frame, a Hugging Face data set on disk, arrays.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
import torch

from bayesmooth.audit.problems import leave_out, leave_out_missing
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.tags import join_tags
from bayesmooth.data import Examples
from bayesmooth.data.arrays import arrays_as_examples, read_arrays, read_names
from bayesmooth.data.columns import PICTURES, Features, Reading, as_texts, choose_features
from bayesmooth.data.encoders import cache_folder
from bayesmooth.data.examples import Mapped, Part, Problem
from bayesmooth.data.formats import (
    HUGGING_FACE,
    PARQUET,
    find_class_names,
    find_label,
    find_name,
    open_parquet,
    read_arrow,
    read_parquet,
    split_folder,
)
from bayesmooth.data.labels import encode, name_classes, read_labels
from bayesmooth.data.pictures import SHOWN_SIZE, open_folder
from bayesmooth.data.reading import map_npy, read_npy
from bayesmooth.data.tabular import (
    CLEAN,
    SHEET_ROW,
    drop_missing,
    frame_from_arrow,
    from_frame,
    number_rows,
    open_pictures,
    read_frame,
)
from bayesmooth.errors import InputError
from bayesmooth.files import read_json, replace_with
from bayesmooth.optional import require
from bayesmooth.progress import bar

ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".tsv", *PARQUET)
PIECE = 8192  # rows of a Parquet file that are copied at once
SPREADSHEETS = (".csv", ".tsv")
MOST_NUMBERS = 60  # columns of numbers that are shown
RUN = "recipe.toml"
NO_TABLE = (
    "tags are read from tables; for arrays use Python, with embeddings= and labels= (N × T, or a list of sets), for "
    "pictures a table with a column of their paths"
)


def open_data(source: Any, settings: Settings) -> Examples:
    """A path or a data frame as `Examples`; an `Examples` as it is."""
    if isinstance(source, Examples):
        return source
    if isinstance(source, str | Path):
        return replace(_open_path(Path(source), settings), source=Path(source))
    names = None
    if hasattr(source, "to_pandas"):  # an Arrow table, a polars frame, a data set of Hugging Face
        names = find_class_names(getattr(source, "features", None), settings.label)
        if type(source).__module__.split(".")[0] == "pyarrow":
            source = frame_from_arrow(source, "table", *settings.exact_columns)
        else:
            source = source.to_pandas()
    elif not is_frame(source):
        raise InputError(
            f"a {type(source).__name__}: no source for an audit; give a model, an Examples, "
            "a path, embeddings= or probabilities="
        )
    return _from_frame(number_rows(source, "table"), "table", Path(), settings, names)


def is_frame(source: Any) -> bool:
    """Whether it is a data frame of pandas, which is not loaded to find out."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def _open_path(path: Path, settings: Settings) -> Examples:
    if path.is_dir():
        return _open_folder(path, settings)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with labels, or a folder of pictures")
    kind = path.suffix.lower()
    if settings.tagged and kind in ARRAYS:
        raise InputError(f"{path}: {NO_TABLE}")
    if kind == ".npy":
        return _open_array(path, settings)
    if kind == ".npz":
        content = read_arrays(path, None, True, label=settings.label, id=settings.id)
        names = tuple(settings.class_names or read_names(content, path))
        return leave_out_missing(
            content["labels"],
            lambda labels: arrays_as_examples(content | {"labels": labels}, path, names),
            names,
        )
    if kind not in TABLES:
        known = ", ".join(ARRAYS + TABLES)
        raise InputError(f"{path}: unknown kind of file; must be one of {known}, or a folder")
    frame = read_frame(path, *settings.exact_columns, encoding=settings.encoding)
    return _from_frame(frame, str(path), path.parent, settings)


def _open_folder(path: Path, settings: Settings) -> Examples:
    if (path / RUN).is_file():
        raise InputError(f"{path}: a run; it is audited by Run.open(path).audit()")
    if any((path / name).is_file() for name in HUGGING_FACE):
        return _open_hugging_face(path, settings)
    tables = sorted(path.glob("*.parquet"))
    if tables:
        return _open_parquets(path, tables, settings)
    if settings.tagged:
        raise InputError(f"{path}: {NO_TABLE}")
    pictures = open_folder(path.absolute(), "train", SHOWN_SIZE)
    # The id of a picture is its path below the folder: where the folder lies is private.
    shown = replace(
        pictures,
        inputs=torch.empty(len(pictures), 0, dtype=torch.float32, device="cpu"),
        pictures=pictures.inputs,
        meta={},
        name=path.name,
    )
    if (path / "test").is_dir() and (path / "train").is_dir():
        note = "these are the pictures in train; test can be audited by itself"
        return replace(shown, notes=(note,))
    return shown


def _open_array(path: Path, settings: Settings) -> Examples:
    """Rows that stay on the disk, with the labels of another file."""
    if settings.labels_file is None:
        raise InputError(f"{path}: has no labels; name a .npy of them with labels (--labels)")
    rows, given = map_npy(path), read_npy(settings.labels_file)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or given.ndim != 1:
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}, {settings.labels_file}: shape {given.shape}; must be N × D "
            "numbers, and N labels"
        )
    where = str(settings.labels_file)

    def make(labels: np.ndarray[Any, Any]) -> Examples:
        words = read_labels(labels.tolist(), where, settings.class_names or ())
        names = tuple(settings.class_names or name_classes(words))
        return Examples(Mapped(rows), encode(words, names, where), names, name=path.stem)

    return leave_out_missing(given, make, settings.class_names)


def _open_parquets(path: Path, files: Sequence[Path], settings: Settings) -> Examples:
    """A table in several files. A column of vectors is copied once to an array on the disk, and read from there."""
    arrow, pandas = require("pyarrow", extra="data"), require("pandas", extra="data")
    lists = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)

    def vectors(file: Path) -> list[str]:
        schema = open_parquet(file).schema_arrow
        return [field.name for field in schema if any(is_one(field.type) for is_one in lists)]

    wanted = [name for name in settings.features or vectors(files[0]) if name in vectors(files[0])]
    whole = not wanted or settings.tagged or settings.text is not None or settings.image is not None
    parts = []
    for file in files:
        table = read_parquet(file, () if whole else vectors(file))
        if settings.tags is None:
            find_label(file, table.column_names, settings.label)
        parts.append(frame_from_arrow(table, str(file), *settings.exact_columns))
    frame = pandas.concat(parts, ignore_index=True)
    if whole:
        return _from_frame(frame, str(path), path, settings)
    label = find_label(path, list(frame.columns), settings.label)
    rows = Mapped(_map_vectors(files, wanted[0], len(frame), settings))
    note = f"learned from the vectors in {wanted[0]!r}"

    def make(labels: np.ndarray[Any, Any]) -> Examples:
        known = from_frame(
            frame.assign(**{label: labels}),
            path.name,
            str(path),
            label=label,
            clean_label=settings.clean_label,
            class_names=settings.class_names,
            id=settings.id,
        )
        reading = Reading(label=label, vectors={wanted[0]: []})
        return replace(known, inputs=rows, reading=reading, notes=(note,))

    labels = frame[label].astype(object).to_numpy()
    examples = leave_out_missing(labels, make, settings.class_names)
    empty = np.isnan(rows.array[:, 0])  # the row of a missing vector is NaN
    empty[empty] = np.isnan(rows.array[empty]).all(1)
    index = examples.inputs.index if isinstance(examples.inputs, Part) else slice(None)
    gone = torch.from_numpy(empty)[index]
    if not bool(gone.any()):
        return examples
    text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
    return leave_out(examples, gone, "missing_vector", text)


def _map_vectors(files: Sequence[Path], column: str, count: int, settings: Settings) -> Any:
    """The vectors of a column as one array on the disk, in the cache under the hash of the files' content."""
    digest = hashlib.sha256(column.encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    folder = cache_folder(settings.cache)
    place = folder / f"{digest.hexdigest()[:32]}.npy"
    with suppress(InputError):  # a damaged entry is made again
        rows = map_npy(place)
        if rows.ndim == 2 and len(rows) == count:
            return rows
    with TemporaryDirectory(ignore_cleanup_errors=True) as spare:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError:  # a cache that cannot be written costs time and nothing else
            place = Path(spare) / place.name
        replace_with(place, lambda at: _copy_vectors(at, files, column, count, settings.quiet))
        return map_npy(place)  # what is mapped stays, though its name may go


def _copy_vectors(place: Path, files: Sequence[Path], column: str, count: int, quiet: bool) -> None:
    """Copy the vectors of all files to one array, piece by piece."""
    parquet = require("pyarrow.parquet", "data")
    array, at, missing = None, 0, list[int]()
    with bar(count, description="reading", quiet=quiet) as shown:
        for file in files:
            if column not in open_parquet(file).schema_arrow.names:
                raise InputError(f"{file}: no column {column!r}, which others beside it have")
            for batch in parquet.ParquetFile(file).iter_batches(PIECE, columns=[column]):
                there = batch[0].is_valid().to_numpy(zero_copy_only=False)
                if there.any():
                    width = None if array is None else array.shape[1]
                    rows = _as_rows(batch[0].drop_null(), width, f"{file}: column {column!r}")
                    if array is None:
                        shape = (count, rows.shape[1])
                        array = np.lib.format.open_memmap(place, "w+", np.float32, shape)
                    array[at + np.flatnonzero(there)] = rows
                missing += (at + np.flatnonzero(~there)).tolist()
                at += len(batch)
                shown.update(at)
    if array is None:
        raise InputError(f"{files[0]}: column {column!r}: no row has a vector; name other columns")
    array[missing] = np.nan
    array.flush()


def _as_rows(vectors: Any, width: int | None, where: str) -> np.ndarray[Any, Any]:
    """Lists of numbers as an array; all have the same length, `width` if that is known."""
    lengths = require("pyarrow.compute", "data").list_value_length(vectors).unique().to_pylist()
    if len(lengths) != 1 or lengths[0] != (width or lengths[0]):
        raise InputError(f"{where}: its vectors must all have the same length")
    try:
        return np.asarray(vectors.flatten(), np.float32).reshape(len(vectors), -1)
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: its vectors must be numbers; name other columns with features"
        ) from None


def _open_hugging_face(path: Path, settings: Settings) -> Examples:
    """What `datasets` writes with `save_to_disk`: Arrow files, and JSON that says what the columns are."""
    split, splits = split_folder(path)
    names = find_class_names(read_json(split / HUGGING_FACE[1]).get("features"), settings.label)
    frame = frame_from_arrow(read_arrow(split), str(path), *settings.exact_columns)
    if len(splits) > 1:
        frame.attrs["notes"] = [f"this is the split {split.name!r}, of {', '.join(splits)}"]
    return _from_frame(frame, str(path), split, settings, names)


def _from_frame(
    frame: Any,
    where: str,
    place: Path,
    settings: Settings,
    class_names: Sequence[str] | None = None,
) -> Examples:
    """The rows that have a label. Their inputs are numbers, or empty where texts or pictures are to be embedded."""
    if settings.tagged:
        frame, settings = join_tags(frame, where, settings)
        class_names = None
    label = find_label(where, list(frame.columns), settings.label)
    names, numbered = settings.class_names or class_names, class_names is not None
    for column in filter(None, (settings.text, settings.image)):
        find_name(where, frame.columns, (column,), "name another")
    kept = drop_missing(frame, label, names, numbered)
    if not len(kept):
        raise InputError(f"{where}: no row has a label in column {label!r}")
    taken = (label, settings.clean_label or CLEAN, settings.id)
    known = from_frame(
        kept,
        Path(where).stem,
        where,
        label=label,
        clean_label=settings.clean_label,
        class_names=names,
        id=settings.id,
        numbered=numbered,
    )
    if len(kept) < len(frame):
        known = replace(known, problems=(_report_missing(frame, kept, settings.id),))
    pictures = open_pictures(kept, place, SHOWN_SIZE, settings.image)
    known = replace(known, pictures=pictures, notes=tuple(frame.attrs.get("notes", ())))
    if settings.text is not None:
        known = replace(known, meta={"text": as_texts(kept[settings.text])})
    if settings.predicted:
        chosen = settings.features or _find_probabilities(kept, known.class_names)
        learned = choose_features(kept, where, chosen, taken, known.class_names, fill=False)
        return replace(known, inputs=learned.rows, notes=(*known.notes, *learned.notes))
    if settings.text is not None or settings.image is not None:
        reading = Reading(label, settings.text, settings.image)
        note = f"learned from column {settings.text or settings.image!r} alone"
        known = replace(known, reading=reading, notes=(*known.notes, note))
    else:
        learned = choose_features(kept, where, settings.features, taken, known.class_names)
        known = _choose_inputs(known, kept, where, learned, taken)
    if Path(where).suffix.lower() in SPREADSHEETS:
        rows = [str(number + 2) for number in kept.index]  # the first is the header
        known = replace(known, meta={SHEET_ROW: rows} | known.meta)
    return known


def _choose_inputs(
    known: Examples, frame: Any, where: str, learned: Features, taken: Sequence[str | None]
) -> Examples:
    """What is learned from if nobody named it: numbers and categories, else pictures, else the longest texts."""
    if learned.names:
        sources = ", ".join(map(repr, learned.reading.sources))[:300]
        return replace(
            known,
            inputs=learned.rows,
            mean=learned.mean,
            std=learned.std,
            columns=learned.names,
            meta=_all_columns(frame, known, (*taken, *PICTURES, "id")),
            reading=replace(learned.reading, label=taken[0]),
            notes=(*known.notes, f"learned from {sources}", *learned.notes),
        )
    if known.pictures is not None:
        return replace(known, reading=Reading(taken[0]))
    lengths = {name: sum(map(len, texts)) for name, texts in known.meta.items() if name != "id"}
    if not lengths:
        raise InputError(f"{where}: no column of numbers, texts or pictures: nothing to learn from")
    column = max(lengths, key=lambda name: lengths[name])
    return replace(
        known,
        meta={"text": known.meta[column]},
        reading=Reading(taken[0], text=column),
        notes=(*known.notes, f"learned from the texts in column {column!r} alone"),
    )


def _all_columns(frame: Any, examples: Examples, taken: Sequence[str | None]) -> dict[str, Any]:
    """Texts and numbers of a table, to show beside its labels; numbers only if they are few enough to read."""
    numbers = [column for column in frame.select_dtypes("number") if column not in taken]
    shown = {*examples.meta, *map(str, numbers if len(numbers) <= MOST_NUMBERS else ())}
    return {
        str(column): as_texts(frame[column])
        for column in frame
        if str(column) in shown and column not in taken
    }


def _report_missing(frame: Any, kept: Any, id: str | None) -> Problem:
    """The rows without a label, by their ids."""
    gone, key = frame[~frame.index.isin(kept.index)], id or ("id" if "id" in frame else None)
    text = f"{len(frame) - len(kept)} of {len(frame)} rows have no label and are left out"
    ids = map(str, gone.index) if key is None else as_texts(gone[key])
    return Problem("missing_label", text, tuple(ids))


def _find_probabilities(frame: Any, names: Sequence[str]) -> list[Any] | None:
    """The columns that are called as the classes, in the order of these; None if there are no such columns."""
    present = {str(column): column for column in frame}
    for column in present:
        before, found, after = column.partition(names[0])
        wanted = [f"{before}{name}{after}" for name in names]
        if found and present.keys() >= {*wanted}:
            return [present[name] for name in wanted]
    return None
