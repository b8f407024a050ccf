"""The labels and ids of a data set in the format it is kept in: audits read them, and `clean` writes them again.

The id of a row is the text in its column `id`, or in the one that is named. Without such a column the id is the
position of the row, from 0, in the file, or in all files in the order of their names. The id of a picture is its path
below the folder of the classes. What is not changed is written as it was.
"""

import io
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.data.csvtext import CsvText, check_columns, guard, unguard
from bayesmooth.data.labels import LABELS, as_text
from bayesmooth.data.pictures import open_folder, picture_base
from bayesmooth.data.reading import Array, name_errors, read_npy, read_npz
from bayesmooth.errors import InputError
from bayesmooth.files import (
    copy_files,
    is_file_name,
    make_folder,
    read_json,
    replace_with,
    write_atomically,
    write_json,
)
from bayesmooth.optional import require

PARQUET = (".parquet", ".pq")
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
# Arrays of a .npz that have one entry per example, under their usual names: the first that is there counts.
KEYS = {
    "embeddings": ("embeddings", "features", "X"),
    "predicted": ("probabilities", "pred_probs"),
    "labels": ("labels", "y"),
    "clean_labels": ("clean_labels",),
    "ids": ("ids",),
    "texts": ("texts",),
    "images": ("images",),
}


class Labels:
    """Labels that can be written again, as texts and as they stand in the data set, and one id per row."""

    labels: Sequence[str]
    ids: Sequence[str]
    class_names: Sequence[str] | None = None  # where the data set itself names its classes
    numbered = False  # whether the labels are positions in the class names

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """Write these rows; `changed` has the new labels of some of them."""
        raise NotImplementedError


def open_labels(
    path: Path, label: str | None = None, id: str | None = None, encoding: str | None = None
) -> Labels:
    """The labels of a file or folder; `label` and `id` name its columns, or arrays in a .npz."""
    if path.is_dir():
        if any((path / name).is_file() for name in HUGGING_FACE):
            return HuggingFace(path, label, id)
        if files := sorted(path.glob("*.parquet")):
            return ParquetFolder(path, [Parquet(file, label, id) for file in files])
        return PictureFolder(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give what was audited, or its audit.csv")
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return Arrays(path, label, id)
    return Parquet(path, label, id) if kind in PARQUET else Csv(path, label, id, encoding)


def find_label(
    where: Path | str, columns: Sequence[str], label: str | None, usual: Sequence[str] = LABELS
) -> str:
    """The column of the labels: the one that is named, else the first with a usual name."""
    way_out = "name the one of the labels with label (--label)"
    return find_name(where, columns, (label,) if label else usual, way_out)


def find_id(where: Path | str, columns: Sequence[str], id: str | None) -> str | None:
    """The column of the ids: the one that is named, else `id`, else none."""
    if id is not None:
        return find_name(where, columns, (id,), "name another for the ids")
    return "id" if "id" in columns else None


def find_name(
    where: object, known: Iterable[str], wanted: Sequence[str], way_out: str, kind: str = "column"
) -> str:
    """The first of the wanted names that is known."""
    known = list(known)
    for name in wanted:
        if name in known:
            return name
    asked, there = " or ".join(map(repr, wanted)), ", ".join(map(str, known))[:200]
    raise InputError(f"{where}: no {kind} {asked}, only {there}; {way_out}")


def _find_rows(labels: Sequence[str], changed: Mapping[int, str]) -> tuple[list[str], Array]:
    """The new labels that no row has yet, to go after the last row, and for every row one that has its new label."""
    source = {text: row for row, text in enumerate(labels)}
    new = [text for text in dict.fromkeys(changed.values()) if text not in source]
    source |= {text: len(labels) + k for k, text in enumerate(new)}
    index = np.arange(len(labels))
    index[list(changed)] = [source[text] for text in changed.values()]
    return new, index


AUDIT = ["id", "rank", "given"]  # how the table of an audit begins; its texts are guarded


class Csv(Labels):
    """A CSV or TSV, of the user or of an audit."""

    def __init__(self, path: Path, label: str | None, id: str | None, encoding: str | None) -> None:
        self.table = table = CsvText(path, encoding)
        if not table.exact:
            raise InputError(
                f"{path}: as {table.encoding} it cannot be written again as it was; save it as UTF-8"
            )
        self.guarded = table.header[:3] == AUDIT
        self.label = find_label(path, table.header, label, (*LABELS, "given"))
        key = find_id(path, table.header, id)
        found = table.columns([name for name in (self.label, key) if name])
        read = unguard if self.guarded else str
        self.labels = [*map(read, found[self.label])]
        self.ids = [*map(read, found[key])] if key else [*map(str, range(len(table)))]

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """The text as it was, but for the labels that changed and the lines that are left out."""
        if self.guarded:
            changed = {row: guard(text) for row, text in changed.items()}
        write_atomically(out, self.table.replace(self.label, changed, rows))


class Arrays(Labels):
    """A .npz of arrays, or a .npy of labels."""

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        self.path, self.alone = path, path.suffix.lower() == ".npy"
        arrays = {"labels": read_npy(path, raw=True)} if self.alone else read_npz(path, raw=True)
        self.key, self.arrays = find_array(path, arrays, label, "labels"), arrays
        self.given = arrays[self.key]
        if self.given.ndim != 1:
            raise InputError(f"{path}: {self.key} of shape {self.given.shape}: must be N labels")
        self.labels = [*map(as_text, self.given.tolist())]
        self.id = id or ("ids" if "ids" in arrays else None)
        ids = arrays[find_array(path, arrays, id, "ids")] if self.id else np.arange(len(self.given))
        self.ids = [*map(as_text, ids.tolist())]
        if len(self.ids) != len(self.labels):
            raise InputError(
                f"{path}: {len(self.ids)} ids for {len(self.labels)} labels; must be one each"
            )
        names = arrays.get("class_names")
        self.class_names = None if names is None else [*map(as_text, names.tolist())]

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """Write all that is in the file, with these rows of the arrays that have one entry per example.

        Labels keep their type: a changed one is copied from a row that has it, or made.
        """
        new, index = _find_rows(self.labels, changed)
        values = np.concatenate([self.given, *map(self._make, new)]) if new else self.given
        made = {self.key: values[index]}
        if len(rows) < len(index):
            made = {k: (self.arrays | made)[k][list(rows)] for k in self._per_example()}
        if self.alone:
            write_atomically(out, _npy(made[self.key]))
        else:
            replace_with(out, lambda beside: self._copy_archive(beside, made))

    def _copy_archive(self, out: Path, made: Mapping[str, Array]) -> None:
        changed = {f"{name}.npy": array for name, array in made.items()}
        with zipfile.ZipFile(self.path) as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                array = changed.get(entry.filename)
                content = old.read(entry) if array is None else _npy(array)
                new.writestr(entry, content, entry.compress_type)

    def _make(self, text: str) -> Array:
        """A label that no row has yet, in the type of the others."""
        kind = self.given.dtype.kind
        try:
            if kind in "SU":
                return np.array([text.encode() if kind == "S" else text])
            value = np.array([text == "True" if kind == "b" else float(text)], self.given.dtype)
        except (ValueError, OverflowError):
            value = np.array([])
        if [*map(as_text, value.tolist())] != [text]:
            raise InputError(f"{self.path}: {self.key} are {self.given.dtype}; {text!r} is not one")
        return value

    def _per_example(self) -> list[str]:
        """The arrays that have one entry per example, by their names; nothing is cut if one is in doubt."""
        examples = len(self.ids)
        usual = {self.key, self.id, *(name for names in KEYS.values() for name in names)}
        long = [name for name, array in self.arrays.items() if array.shape[:1] == (examples,)]
        unsure = [name for name in long if name not in {*usual, "class_names"}]
        if unsure:
            raise InputError(
                f"{self.path}: {unsure[0]} has as many rows as there are examples ({examples}), and may belong "
                "to them or not; take it out of the file, or clean without its removals"
            )
        return [name for name in long if name in usual]


def find_array(path: Path, arrays: Mapping[str, Array], name: str | None, what: str) -> str:
    """The array of this kind: the one that is named, else the first with a usual name."""
    return find_name(path, sorted(arrays), (name,) if name else KEYS[what], "name another", "array")


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


class Parquet(Labels):
    """A Parquet file."""

    def __init__(self, path: Path, label: str | None, id: str | None, table: Any = None) -> None:
        self.path, self.table = path, read_parquet(path) if table is None else table
        columns = self.table.column_names
        self.label, self.key = find_label(path, columns, label), find_id(path, columns, id)
        self.labels = [*map(as_text, self.table[self.label].to_pylist())]
        named = self.key is not None
        ids = self.table[self.key].to_pylist() if named else range(len(self.labels))
        self.ids = [*map(as_text, ids)]

    def change(self, changed: Mapping[int, str], rows: Sequence[int]) -> Any:
        """The table with other labels, in the type they had: copied from a row that has them, or made."""
        arrow = require("pyarrow", "data")
        at = self.table.column_names.index(self.label)
        field, column = self.table.schema.field(at), self.table[self.label]
        new, index = _find_rows(self.labels, changed)
        if new:
            made = self._make(new, field.type)
            column = arrow.chunked_array([*column.chunks, made], field.type).unify_dictionaries()
        table = self.table
        if changed:
            table = table.set_column(at, field, column.take(arrow.array(index)))
        return table if len(rows) == len(index) else table.take(arrow.array(rows, arrow.int64()))

    def _make(self, texts: Sequence[str], kind: Any) -> Any:
        arrow = require("pyarrow", "data")
        try:
            inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
            made = arrow.array(texts, arrow.string()).cast(inner)
            return made.dictionary_encode().cast(kind) if inner != kind else made
        except (ValueError, TypeError, arrow.ArrowException):
            raise InputError(
                f"{self.path}: the labels in {self.label!r} are {kind}; {texts[0]!r} is not one"
            ) from None

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """One Parquet file."""
        made, parquet = self.change(changed, rows), require("pyarrow.parquet", "data")
        replace_with(out, lambda beside: parquet.write_table(made, beside))


def open_parquet(path: Path) -> Any:
    """A Parquet file: its schema is known, and its rows are not read yet."""
    with name_errors(path, "table"):
        file = require("pyarrow.parquet", "data").ParquetFile(path)
    check_columns(path, file.schema_arrow.names)
    return file


def read_parquet(path: Path, without: Sequence[str] = ()) -> Any:
    """The table in a Parquet file, as Arrow has it: nothing that pandas kept beside it counts."""
    file = open_parquet(path)
    names = [name for name in file.schema_arrow.names if name not in without]
    with name_errors(path, "table"):
        return file.read(columns=names if without else None)


class ParquetFolder(Labels):
    """A table in several files, which keep their names, their rows and their own columns."""

    def __init__(self, path: Path, parts: Sequence[Parquet]) -> None:
        self.path, self.parts = path, parts
        self.labels = [label for part in parts for label in part.labels]
        self.ids = [name for part in parts for name in part.ids]
        keyed = [part.key is not None for part in parts]
        if not any(keyed):
            self.ids = [*map(str, range(len(self.labels)))]
        elif not all(keyed):
            odd = parts[keyed.index(False)].path
            raise InputError(f"{odd}: has no column of ids, and others beside it have; add one")

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """A folder of files with the same names."""

        def fill(beside: Path) -> None:
            start, kept = 0, np.asarray(rows)
            for part in self.parts:
                end = start + len(part.labels)
                own = {row - start: text for row, text in changed.items() if start <= row < end}
                within = kept[(kept >= start) & (kept < end)] - start
                part.write(beside / part.path.name, own, within.tolist())
                start = end

        _write_folder(out, self.path, fill)


class HuggingFace(Parquet):
    """What `datasets` writes with `save_to_disk`; of several splits, the one that is audited."""

    def __init__(self, path: Path, label: str | None, id: str | None) -> None:
        self.split, _ = split_folder(path)
        super().__init__(path, label, id, read_arrow(self.split))
        features = read_json(self.split / HUGGING_FACE[1]).get("features")
        self.class_names = find_class_names(features, self.label)
        self.numbered = self.class_names is not None

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """A folder of the same layout, with one Arrow file for the split that changed."""
        made, name = self.change(changed, rows), "data-00000-of-00001.arrow"

        def fill(beside: Path) -> None:
            old = {file.relative_to(self.path) for file in self.split.glob("*.arrow")}
            copy_files(self.path, beside, lambda file: None if file in old else file)
            split = beside / self.split.relative_to(self.path)
            with require("pyarrow.ipc", "data").new_stream(split / name, made.schema) as stream:
                stream.write_table(made)
            state = read_json(split / "state.json")
            files = {"_data_files": [{"filename": name}], "_fingerprint": "cleaned"}
            write_json(split / "state.json", state | files)

        _write_folder(out, self.path, fill)


def split_folder(path: Path) -> tuple[Path, list[str]]:
    """Where the training split (else the first) of a Hugging Face data set lies, and the names of all."""
    file = path / HUGGING_FACE[0]
    if not file.is_file():
        return path, []
    splits = read_json(file).get("splits")
    if not isinstance(splits, list) or not all(map(is_file_name, splits)) or not splits:
        raise InputError(f"{file}: its splits are {str(splits)[:80]}; must be a list of names")
    return path / ("train" if "train" in splits else splits[0]), splits


def read_arrow(path: Path) -> Any:
    """The table in the Arrow files of a Hugging Face data set."""
    arrow, ipc = require("pyarrow", extra="data"), require("pyarrow.ipc", extra="data")
    state = read_json(path / "state.json")
    with name_errors(path, "data set"):
        files = [path / Path(part["filename"]).name for part in state["_data_files"]]
        table = arrow.concat_tables([ipc.open_stream(f.read_bytes()).read_all() for f in files])
    check_columns(path, table.column_names)
    return table


def find_class_names(features: Any, label: str | None) -> Sequence[str] | None:
    """The names that a Hugging Face data set gives to the numbers of its labels."""
    for column in (label,) if label else LABELS:
        kind = features.get(column) if hasattr(features, "get") else None
        names = kind.get("names") if isinstance(kind, dict) else getattr(kind, "names", None)
        if isinstance(names, list) and names:
            return [str(name) for name in names]
    return None


class PictureFolder(Labels):
    """One folder of pictures per class."""

    def __init__(self, path: Path) -> None:
        self.path, examples = path, open_folder(path, "train")
        self.inside = picture_base(path).relative_to(path)
        self.class_names = examples.class_names
        self.labels = [examples.class_names[int(k)] for k in examples.labels]
        self.ids = examples.ids or ()

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """A copy in which the pictures lie in the folders of their new classes; no two under one name."""
        for name in {*changed.values()}:
            if not is_file_name(name):
                raise InputError(f"class {name!r}: cannot be a folder's name; rename the class")
        kept = set(rows)
        places: dict[Path, Path | None] = {}
        taken = {name.casefold() for name in self.ids}  # some disks know no capitals
        for row, name in enumerate(self.ids):
            if row not in kept:
                places[self.inside / name] = None
            elif row in changed:
                old = self.labels[row]
                new = Path(changed[row]) / Path(name).relative_to(old)
                places[self.inside / name] = self.inside / _free(new, old, taken)

        def fill(beside: Path) -> None:
            copy_files(self.path, beside, lambda file: places.get(file, file))

        _write_folder(out, self.path, fill)


def _free(place: Path, old: str, taken: set[str]) -> Path:
    """A name that no picture has, or had; the class it came from tells it apart."""
    prefixes = chain(("", f"{old}-"), (f"{old}-{number}-" for number in count(2)))
    names = (place.with_name(prefix + place.name) for prefix in prefixes)
    free = next(path for path in names if path.as_posix().casefold() not in taken)
    taken.add(free.as_posix().casefold())
    return free


def _write_folder(out: Path, source: Path, fill: Callable[[Path], object]) -> None:
    """Make a folder in a place that is free, and not inside of the `source` that is read."""
    place = Path(os.path.realpath(out))
    if place.is_relative_to(source.resolve()):
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    make_folder(place, fill)
