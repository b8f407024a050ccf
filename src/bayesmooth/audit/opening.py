"""Whatever a data set is kept in, as labelled examples whose texts and pictures are not embedded yet.

A folder of pictures, a table or a data frame, a Hugging Face data set on disk, arrays.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.audit.encoders import cache_folder
from bayesmooth.audit.settings import Settings
from bayesmooth.data import Examples
from bayesmooth.data.examples import Mapped
from bayesmooth.data.pictures import find_pictures
from bayesmooth.data.reading import map_npy, read_npy
from bayesmooth.data.tabular import (
    CLEAN,
    PICTURES,
    SHEET_ROW,
    SHOWN,
    embeddings,
    encode,
    features_of,
    from_frame,
    names_of,
    pictures_of,
    plain,
    read_frame,
    texts_of,
    without_missing,
)
from bayesmooth.errors import InputError
from bayesmooth.files import read_json
from bayesmooth.optional import require
from bayesmooth.progress import bar

ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".tsv", ".parquet", ".pq")
PIECE = 8192  # rows of a Parquet file that are copied at once
# Columns of labels where none is named: the first that is there counts.
LABELS = ("label", "labels", "target", "class", "y")
SPREADSHEETS = (".csv", ".tsv")
MOST_NUMBERS = 60  # columns of numbers that are shown
LONG = 20  # characters on average: texts that are more than names
RUN, HUGGING_FACE = "recipe.toml", ("dataset_dict.json", "dataset_info.json")


def open_data(source: Any, settings: Settings) -> Examples:
    """A path or a data frame as `Examples`; these as they are."""
    if isinstance(source, Examples):
        return source
    if isinstance(source, str | Path):
        return _open_path(Path(source), settings)
    if hasattr(source, "to_pandas"):  # an Arrow table, a polars frame, a data set of Hugging Face
        names = class_names_of(getattr(source, "features", None), settings.label)
        return _from_frame(source.to_pandas(), "table", Path(), settings, names)
    if is_frame(source):
        return _from_frame(source, "table", Path(), settings)
    raise InputError(
        f"a {type(source).__name__}: no source for an audit; give a model, an Examples, "
        "a path, embeddings= or probabilities="
    )


def is_frame(source: Any) -> bool:
    """Whether it is a data frame of pandas, which is not loaded to find out."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def _open_path(path: Path, settings: Settings) -> Examples:
    if path.is_dir():
        return _open_folder(path, settings)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with labels, or a folder of pictures")
    kind = path.suffix.lower()
    if kind == ".npy":
        return _open_array(path, settings)
    if kind == ".npz":
        names = settings.class_names
        made = embeddings("train", Path(), str(path.absolute()), None, names, probabilities=True)
        return replace(made, name=path.stem)
    if kind not in TABLES:
        known = ", ".join(ARRAYS + TABLES)
        raise InputError(f"{path}: unknown kind of file; must be one of {known}, or a folder")
    clean = settings.clean_label or CLEAN
    frame = read_frame(path, (settings.label or LABELS[0], clean))
    label = _label_column(frame, settings, str(path))
    if label not in (settings.label, LABELS[0]):
        frame = read_frame(path, (label, clean))
    return _from_frame(frame, str(path), path.parent, settings)


def _open_folder(path: Path, settings: Settings) -> Examples:
    if (path / RUN).is_file():
        raise InputError(f"{path}: a run; it is audited by Run.open(path).audit()")
    if any((path / name).is_file() for name in HUGGING_FACE):
        return _open_hugging_face(path, settings)
    tables = sorted(path.glob("*.parquet"))
    if tables:
        return _open_parquets(path, tables, settings)
    pictures = find_pictures(path.absolute(), "train", SHOWN)
    # An id is the path below the folder; the rest of it is nobody else's business.
    shown = replace(
        pictures, inputs=torch.empty(len(pictures), 0), pictures=pictures.inputs, meta={}
    )
    if (path / "test").is_dir() and (path / "train").is_dir():
        note = "these are the pictures in train; test can be audited by itself"
        shown = replace(shown, notes=(note,))
    return replace(shown, name=path.name)


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
    words = plain(given.tolist(), where, settings.class_names or ())
    names = tuple(settings.class_names or names_of(words))
    return Examples(Mapped(rows), encode(words, names, where), names, name=path.stem)


def _open_parquets(path: Path, files: Sequence[Path], settings: Settings) -> Examples:
    """A table in several files. A column of vectors is copied once to an array on the disk, and read from there."""
    pandas, parquet = require("pandas", extra="data"), require("pyarrow.parquet", extra="data")
    schema = parquet.read_schema(files[0])
    vectors = [field.name for field in schema if "list" in str(field.type)]
    wanted = [name for name in settings.features or vectors if name in vectors]
    if not wanted or settings.text or settings.image:
        frame = pandas.concat(map(read_frame, files), ignore_index=True)
        return _from_frame(frame, str(path), path, settings)
    rest = [field.name for field in schema if field.name not in vectors]
    parts = [parquet.read_table(file, columns=rest).to_pandas() for file in files]
    frame = pandas.concat(parts, ignore_index=True)
    label = _label_column(frame, settings, str(path))
    if len(without_missing(frame, label, settings.class_names)) < len(frame):
        raise InputError(f"{path}: some rows have no label in column {label!r}; leave them out")
    clean, names = settings.clean_label, settings.class_names
    known = from_frame(
        frame,
        path.name,
        str(path),
        label=label,
        clean_label=clean,
        class_names=names,
        id=settings.id,
    )
    return replace(known, inputs=Mapped(_copied(files, wanted[0], len(frame), settings)))


def _copied(files: Sequence[Path], column: str, count: int, settings: Settings) -> Any:
    """The vectors of a column as one array in the cache, under what identifies the files."""
    parquet, compute = require("pyarrow.parquet", "data"), require("pyarrow.compute", "data")
    states = [
        (str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    digest = hashlib.sha256(repr((column, states)).encode()).hexdigest()[:32]
    place = cache_folder(settings.cache) / f"{digest}.npy"
    if place.exists():
        return map_npy(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(".tmp")
    array, at = None, 0
    with bar(count, description="reading", quiet=settings.quiet) as shown:
        for file in files:
            for batch in parquet.ParquetFile(file).iter_batches(PIECE, columns=[column]):
                width = {*compute.list_value_length(batch[0]).unique().to_pylist()}
                if array is None and len(width) == 1 and None not in width:
                    shape = (count, *width)
                    array = np.lib.format.open_memmap(beside, "w+", np.float32, shape)
                if array is None or width != {array.shape[1]}:
                    raise InputError(f"{file}: column {column!r}: its vectors must have one length")
                rows = np.asarray(batch[0].flatten(), np.float32).reshape(len(batch), -1)
                array[at : at + len(rows)] = rows
                at += len(rows)
                shown.update(at)
    assert array is not None
    array.flush()
    beside.replace(place)
    return map_npy(place)


def _open_hugging_face(path: Path, settings: Settings) -> Examples:
    """What `datasets` writes with `save_to_disk`: Arrow files, and JSON that says what the columns are."""
    split, splits = split_folder(path)
    features = read_json(split / HUGGING_FACE[1]).get("features")
    frame = read_arrow(split).to_pandas()
    made = _from_frame(frame, str(path), split, settings, class_names_of(features, settings.label))
    note = f"this is the split {split.name!r}, of {', '.join(splits)}"
    return replace(made, notes=(note, *made.notes)) if len(splits) > 1 else made


def split_folder(path: Path) -> tuple[Path, list[str]]:
    """Where the training split (else the first) of a Hugging Face data set lies, and the names of all."""
    if not (path / HUGGING_FACE[0]).is_file():
        return path, []
    splits = [str(split) for split in read_json(path / HUGGING_FACE[0]).get("splits", ())]
    return path / ("train" if "train" in splits or not splits else splits[0]), splits


def read_arrow(path: Path) -> Any:
    """The table in the Arrow files of a Hugging Face data set."""
    arrow, ipc = require("pyarrow", extra="data"), require("pyarrow.ipc", extra="data")
    try:
        files = [entry["filename"] for entry in read_json(path / "state.json")["_data_files"]]
        parts = [
            ipc.open_stream((path / Path(file).name).read_bytes()).read_all() for file in files
        ]
        return arrow.concat_tables(parts)
    except (OSError, ValueError, LookupError, TypeError, arrow.ArrowException) as error:
        raise InputError(f"{path}: not a data set that can be read ({error})") from None


def class_names_of(features: Any, label: str | None) -> Sequence[str] | None:
    """The names that a Hugging Face data set gives to the numbers of its labels."""
    for column in (label,) if label else LABELS:
        kind = (features or {}).get(column)
        names = kind.get("names") if isinstance(kind, dict) else getattr(kind, "names", None)
        if isinstance(names, list) and names:
            return [str(name) for name in names]
    return None


def _label_column(frame: Any, settings: Settings, where: str) -> str:
    found = [label for label in LABELS if label in frame]
    if settings.label is None and not found:
        known = ", ".join(map(str, frame.columns))[:200]
        raise InputError(
            f"{where}: no column {LABELS[0]!r}, only {known}; name the one of the labels with label "
            "(--label)"
        )
    return settings.label or found[0]


def _from_frame(
    frame: Any,
    where: str,
    place: Path,
    settings: Settings,
    class_names: Sequence[str] | None = None,
) -> Examples:
    """The rows that have a label; their inputs are numbers, or none yet where texts or pictures are to be embedded."""
    label = _label_column(frame, settings, where)
    names = settings.class_names or class_names
    for column in filter(None, (settings.text, settings.image)):
        if column not in frame:
            present = ", ".join(map(str, frame.columns))[:200]
            raise InputError(f"{where}: no column {column!r}, only {present}; name another")
    kept = without_missing(frame, label, names, numbered=class_names is not None)
    notes = []
    if len(kept) < len(frame):
        notes.append(
            f"{len(frame) - len(kept)} of {len(frame)} rows have no label and are left out"
        )
    if not len(kept):
        raise InputError(f"{where}: no row has a label in column {label!r}")
    clean, key = settings.clean_label, settings.id
    known = from_frame(
        kept, Path(where).stem, where, label=label, clean_label=clean, class_names=names, id=key
    )
    pictures = pictures_of(kept, place, SHOWN, settings.image)
    texts = {} if settings.text is None else {"text": texts_of(kept[settings.text])}
    known = replace(known, pictures=pictures, meta=texts or known.meta)
    if settings.predicted:
        rows, said = _probabilities(kept, known, settings, where, (label, clean or CLEAN, key))
        return replace(known, inputs=rows, notes=(*notes, *said))
    if settings.text is None and settings.image is None:
        taken = (label, clean or CLEAN, key)
        learned = features_of(kept, where, settings.features, taken, known.class_names, fill=True)
        notes.extend(learned.notes)
        if learned.names:
            known = replace(
                known,
                inputs=learned.rows,
                mean=learned.mean,
                std=learned.std,
                columns=learned.names,
            )
            notes.extend(_unread(known, learned.names, (*PICTURES, "id", key)))
            known = replace(known, meta=_all_columns(kept, known, (*taken, *PICTURES, "id")))
        elif pictures is None:
            known, column = _longest_text(known, where)
            notes.append(f"learned from the texts in column {column!r}")
    if Path(where).suffix.lower() in SPREADSHEETS:
        rows = [str(number + 2) for number in kept.index]  # the first is the header
        known = replace(known, meta={SHEET_ROW: rows} | known.meta)
    return replace(known, notes=tuple(notes))


def _all_columns(frame: Any, examples: Examples, taken: Sequence[str | None]) -> dict[str, Any]:
    """Texts and numbers of a table, to show beside its labels; numbers only if someone could read so many."""
    numbers = [column for column in frame.select_dtypes("number") if column not in taken]
    shown = {*examples.meta, *map(str, numbers if len(numbers) <= MOST_NUMBERS else ())}
    return {
        str(column): texts_of(frame[column])
        for column in frame
        if str(column) in shown and column not in taken
    }


def _unread(examples: Examples, names: Sequence[str], taken: Sequence[str | None]) -> list[str]:
    """Say which columns of long texts are only shown: someone may have meant them."""
    columns = [
        column
        for column, texts in examples.meta.items()
        if column not in taken
        and not any(name.startswith(f"{column}=") for name in names)
        and sum(map(len, texts)) > LONG * len(texts)
    ]
    return [
        f"the texts in {c!r} are not learned from; `text` (--text) names such a column"
        for c in columns
    ]


def _longest_text(examples: Examples, where: str) -> tuple[Examples, str]:
    lengths = {name: sum(map(len, texts)) for name, texts in examples.meta.items() if name != "id"}
    if not lengths:
        raise InputError(f"{where}: no column of numbers, texts or pictures: nothing to learn from")
    column = max(lengths, key=lambda name: lengths[name])
    return replace(examples, meta={"text": examples.meta[column]}), column


def _probabilities(
    frame: Any, examples: Examples, settings: Settings, where: str, taken: Sequence[str | None]
) -> tuple[Any, tuple[str, ...]]:
    """Columns that are called as the classes, in the order of these; else all columns of numbers as they come."""
    names, present = examples.class_names, {str(column): column for column in frame}
    chosen = settings.features
    for column in present if chosen is None else ():
        before, found, after = column.partition(names[0])
        if found and all(f"{before}{name}{after}" in present for name in names):
            chosen = [present[f"{before}{name}{after}"] for name in names]
            break
    learned = features_of(frame, where, chosen, taken, names)
    return learned.rows, learned.notes
