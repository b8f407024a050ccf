"""Whatever a data set is kept in, as labelled examples: every check comes before the first long computation.

A folder of pictures, a table or a data frame, a Hugging Face data set on disk, arrays. Texts and pictures are embedded.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.audit.encoders import Encoder, cache_folder, embed_pictures, embed_texts
from bayesmooth.audit.evidence import check_labels
from bayesmooth.data import Examples
from bayesmooth.data.examples import Mapped
from bayesmooth.data.pictures import ImageFiles, folder
from bayesmooth.data.reading import map_npy, read_npy
from bayesmooth.data.tabular import (
    CLEAN,
    PICTURES,
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
from bayesmooth.progress import bar, track

ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".tsv", ".parquet", ".pq")
PIECE = 8192  # rows of a Parquet file that are copied at once
# Columns of labels where none is named: the first that is there counts.
LABELS = ("label", "labels", "target", "class", "y")
LONG = 20  # characters on average: texts that are more than names
RUN, HUGGING_FACE = "recipe.toml", ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table mean what (None: the usual names decide), and how to embed texts and pictures."""

    label: str | None = None
    clean_label: str | None = None
    text: str | None = None
    image: str | None = None
    id: str | None = None
    features: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    labels: str | None = None
    """A .npy of labels that goes with a .npy of embeddings."""
    probabilities: bool = False
    """The numbers are predicted probabilities."""
    encoder: Encoder = None
    cache: Path | None = None
    quiet: bool = False


DEFAULT = Columns()


def open_source(source: Any, columns: Columns = DEFAULT) -> Any:
    """A path or a data frame as `Examples`, ready to be audited; anything else as it is."""
    if isinstance(source, str | Path):
        return _embedded(_open_path(Path(source), columns), columns)
    if hasattr(source, "to_pandas"):  # an Arrow table, a polars frame, a data set of Hugging Face
        names = class_names_of(getattr(source, "features", None), columns.label)
        return _embedded(_from_frame(source.to_pandas(), "table", Path(), columns, names), columns)
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        return _embedded(_from_frame(source, "table", Path(), columns), columns)
    return source


def _open_path(path: Path, columns: Columns) -> Examples:
    if path.is_dir():
        return _open_folder(path, columns)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with labels, or a folder of pictures")
    kind = path.suffix.lower()
    if kind == ".npy":
        return _open_array(path, columns)
    if kind == ".npz":
        names = columns.class_names
        made = embeddings("train", Path(), str(path.absolute()), None, names, probabilities=True)
        return replace(made, name=path.stem)
    if kind not in TABLES:
        known = ", ".join(ARRAYS + TABLES)
        raise InputError(f"{path}: unknown kind of file; must be one of {known}, or a folder")
    clean = columns.clean_label or CLEAN
    frame = read_frame(path, (columns.label or LABELS[0], clean))
    label = _label_column(frame, columns, str(path))
    if label not in (columns.label, LABELS[0]):
        frame = read_frame(path, (label, clean))
    return _from_frame(frame, str(path), path.parent, columns)


def _open_folder(path: Path, columns: Columns) -> Examples:
    if (path / RUN).is_file():
        raise InputError(f"{path}: a run; it is audited by Run.open(path).audit()")
    if any((path / name).is_file() for name in HUGGING_FACE):
        return _open_hugging_face(path, columns)
    tables = sorted(path.glob("*.parquet"))
    if tables:
        return _open_parquets(path, tables, columns)
    pictures = folder("train", Path(), str(path.absolute()), SHOWN)
    shown = replace(pictures, inputs=torch.empty(len(pictures), 0), pictures=pictures.inputs)
    if (path / "test").is_dir() and (path / "train").is_dir():
        note = (
            f"these are the pictures in {path / 'train'}; {path / 'test'} can be audited by itself"
        )
        shown = replace(shown, notes=(note,))
    return replace(shown, name=path.name)


def _open_array(path: Path, columns: Columns) -> Examples:
    """Rows that stay on the disk, with the labels of another file."""
    if columns.labels is None:
        raise InputError(f"{path}: has no labels; name a .npy of them with labels (--labels)")
    rows, given = map_npy(path), read_npy(Path(columns.labels))
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or given.ndim != 1:
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}, {columns.labels}: shape {given.shape}; must be N × D "
            "numbers, and N labels"
        )
    words = plain(given.tolist(), columns.labels, columns.class_names or ())
    names = tuple(columns.class_names or names_of(words))
    return Examples(Mapped(rows), encode(words, names, columns.labels), names, name=path.stem)


def _open_parquets(path: Path, files: Sequence[Path], columns: Columns) -> Examples:
    """A table in several files. A column of vectors is copied once to an array on the disk, and read from there."""
    pandas, parquet = require("pandas", extra="data"), require("pyarrow.parquet", extra="data")
    schema = parquet.read_schema(files[0])
    vectors = [field.name for field in schema if "list" in str(field.type)]
    wanted = [name for name in columns.features or vectors if name in vectors]
    if not wanted or columns.text or columns.image:
        frame = pandas.concat(map(read_frame, files), ignore_index=True)
        return _from_frame(frame, str(path), path, columns)
    rest = [field.name for field in schema if field.name not in vectors]
    parts = [parquet.read_table(file, columns=rest).to_pandas() for file in files]
    frame = pandas.concat(parts, ignore_index=True)
    label = _label_column(frame, columns, str(path))
    if len(without_missing(frame, label, columns.class_names)) < len(frame):
        raise InputError(f"{path}: some rows have no label in column {label!r}; leave them out")
    clean, names = columns.clean_label, columns.class_names
    known = from_frame(
        frame,
        path.name,
        str(path),
        label=label,
        clean_label=clean,
        class_names=names,
        id=columns.id,
    )
    return replace(known, inputs=Mapped(_copied(files, wanted[0], len(frame), columns)))


def _copied(files: Sequence[Path], column: str, count: int, columns: Columns) -> Any:
    """The vectors of a column as one array in the cache, under what identifies the files."""
    parquet, compute = require("pyarrow.parquet", "data"), require("pyarrow.compute", "data")
    states = [
        (str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    digest = hashlib.sha256(repr((column, states)).encode()).hexdigest()[:32]
    place = (columns.cache or cache_folder()) / f"{digest}.npy"
    if place.exists():
        return map_npy(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(".tmp")
    array, at = None, 0
    with bar(count, description="reading", quiet=columns.quiet) as shown:
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


def _open_hugging_face(path: Path, columns: Columns) -> Examples:
    """What `datasets` writes with `save_to_disk`: Arrow files, and JSON that says what the columns are."""
    split, splits = split_folder(path)
    features = read_json(split / HUGGING_FACE[1]).get("features")
    frame = read_arrow(split).to_pandas()
    made = _from_frame(frame, str(path), split, columns, class_names_of(features, columns.label))
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


def _label_column(frame: Any, columns: Columns, where: str) -> str:
    found = [label for label in LABELS if label in frame]
    if columns.label is None and not found:
        known = ", ".join(map(str, frame.columns))[:200]
        raise InputError(
            f"{where}: no column {LABELS[0]!r}, only {known}; name the one of the labels with label "
            "(--label)"
        )
    return columns.label or found[0]


def _from_frame(
    frame: Any,
    where: str,
    place: Path,
    columns: Columns,
    class_names: Sequence[str] | None = None,
) -> Examples:
    """The rows that have a label; their inputs are numbers, or none yet where texts or pictures are to be embedded."""
    label = _label_column(frame, columns, where)
    names = columns.class_names or class_names
    for column in filter(None, (columns.text, columns.image)):
        if column not in frame:
            raise InputError(f"{where}: no column {column!r}; name another")
    kept = without_missing(frame, label, names, numbered=class_names is not None)
    notes = []
    if len(kept) < len(frame):
        notes.append(
            f"{len(frame) - len(kept)} of {len(frame)} rows have no label and are left out"
        )
    if not len(kept):
        raise InputError(f"{where}: no row has a label in column {label!r}")
    clean, key = columns.clean_label, columns.id
    known = from_frame(
        kept, Path(where).stem, where, label=label, clean_label=clean, class_names=names, id=key
    )
    pictures = pictures_of(kept, place, SHOWN, columns.image)
    texts = {} if columns.text is None else {"text": texts_of(kept[columns.text])}
    known = replace(known, pictures=pictures, meta=texts or known.meta)
    if columns.probabilities:
        rows, said = _probabilities(kept, known, columns, where, (label, clean or CLEAN, key))
        return replace(known, inputs=rows, notes=(*notes, *said))
    if columns.text is None and columns.image is None:
        taken = (label, clean or CLEAN, key)
        learned = features_of(kept, where, columns.features, taken, known.class_names, fill=True)
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
        elif pictures is None:
            known, column = _longest_text(known, where)
            notes.append(f"learned from the texts in column {column!r}")
    return replace(known, notes=tuple(notes))


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
    frame: Any, examples: Examples, columns: Columns, where: str, taken: Sequence[str | None]
) -> tuple[Any, tuple[str, ...]]:
    """Columns that are called as the classes, in the order of these; else all columns of numbers as they come."""
    names, present = examples.class_names, {str(column): column for column in frame}
    chosen = columns.features
    for column in present if chosen is None else ():
        before, found, after = column.partition(names[0])
        if found and all(f"{before}{name}{after}" in present for name in names):
            chosen = [present[f"{before}{name}{after}"] for name in names]
            break
    learned = features_of(frame, where, chosen, taken, names)
    return learned.rows, learned.notes


def _embedded(examples: Examples, columns: Columns) -> Examples:
    """Embed pictures or texts where there is nothing else to learn from, once everything else is known to be right."""
    check_labels(examples.labels, examples.class_names)
    twice = [name for name, times in Counter(examples.ids or ()).items() if times > 1]
    if twice:
        raise InputError(
            f"{examples.name}: the id {twice[0]!r} stands more than once; decisions need unique ids: name "
            "another column with id (--id)"
        )
    to_embed = examples.input_shape == (0,) and examples.predicted is None
    if isinstance(examples.pictures, ImageFiles):
        check_pictures(examples.pictures, columns.quiet)
    if not to_embed:
        return examples
    how: dict[str, Any] = {"cache": columns.cache, "quiet": columns.quiet}
    if examples.pictures is not None and columns.text is None:
        rows, said = embed_pictures(examples.pictures, columns.encoder, **how)
    elif "text" in examples.meta:
        rows, said = embed_texts(examples.meta["text"], columns.encoder, **how)
    else:
        raise InputError(
            f"{examples.name}: no embeddings, texts or pictures: nothing to learn from"
        )
    return replace(examples, inputs=rows, notes=(*examples.notes, said))


def check_pictures(pictures: ImageFiles, quiet: bool = False) -> None:
    """Open every picture, without decoding it: one that is missing or none is found before the work, not after."""
    for number in track(range(len(pictures)), description="checking pictures", quiet=quiet):
        with pictures.open(number):
            pass
