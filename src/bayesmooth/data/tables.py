"""Tables: a data frame, Parquet files, Hugging Face data sets. Each class reads one format and writes it again.

A row is named by its column `id`, or by the one that is named. Without such a column its name is its place and a digest
of its content without the label, `17-9f3a2c10de`: no decision ever hits another row. A frame in memory, which nothing
can change in the meantime, names its rows by their positions; so do data without labels, on which nobody decides.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.data.labels import LABELS, Labels
from bayesmooth.data.reading import Array, check_columns, name_errors
from bayesmooth.data.source import Columns, Kind, Note, Written
from bayesmooth.data.tags import as_text
from bayesmooth.errors import InputError
from bayesmooth.files import make_folder, replace_with
from bayesmooth.optional import require

CLEAN = ("clean_label", "clean_labels")
IDS = ("id", "ids")
DIGITS = 10  # of a digest: two of a million rows are alike once in a thousand data sets


class Table:
    """A data set as columns with one value per row, which can be written again."""

    path: Path | None = None
    folder = Path()  # where the paths of pictures begin
    notes: tuple[Note, ...] = ()
    class_names: tuple[str, ...] | None = None  # where the data set itself names its classes
    numbered = False  # whether the labels are positions in the class names
    is_spreadsheet = False  # whether people look at its rows by number
    names_rows = True  # whether a row without an id is named by its content
    names: Sequence[str]

    def __init__(self, where: str, columns: Columns) -> None:
        self.where, self.columns = where, columns

    def __len__(self) -> int:
        raise NotImplementedError

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        raise NotImplementedError

    def frame(self) -> Any:
        """All of it as a pandas frame, its rows numbered from 0."""
        raise NotImplementedError

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """Write these rows, with other values (by column and row), and all else as it was."""
        raise InputError(f"{self.where}: lies in memory, so it cannot be written again")

    def digests(self, without: Iterable[str]) -> list[str]:
        """The content of every row in a few letters, without some columns."""
        return [digest(str(len(self)))] * len(self)

    def place(self, row: int) -> str:
        """Where a row stands, in words."""
        return f"row {row} (counted from 0)"

    def texts(self, name: str) -> list[str]:
        """The values of a column as texts; missing ones are empty."""
        return [as_text(value) for value in self.values(name)]

    def find(self, wanted: str | None, usual: Sequence[str], way_out: str) -> str | None:
        """The column that is named, which must be there; else the first with a usual name, or none."""
        if wanted is not None:
            return find_name(self.where, self.names, (wanted,), way_out)
        return next((name for name in usual if name in self.names), None)

    @property
    def label(self) -> str:
        """The column of labels."""
        way_out = "name the one of the labels with label (--label)"
        found = self.find(self.columns.label, self.usual_labels, way_out)
        return found or find_name(self.where, self.names, self.usual_labels, way_out)

    usual_labels: tuple[str, ...] = LABELS

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold the labels: one, or one per tag."""
        if self.columns.tags is None:
            return (self.label,)
        for name in self.columns.tags:
            way_out = "name the columns of 0 and 1 with labels (--labels)"
            find_name(self.where, self.names, (name,), way_out)
        return tuple(self.columns.tags)

    @property
    def clean_column(self) -> str | None:
        """The column of true labels."""
        return self.find(self.columns.clean_label, CLEAN, "name another")

    @property
    def id_column(self) -> str | None:
        """The column of ids."""
        return self.find(self.columns.id, IDS, "name another for the ids")

    def ids(self, labelled: bool = True) -> list[str]:
        """The name of every row."""
        if self.id_column is not None:
            names = self.texts(self.id_column)
            if len(names) != len(self):
                raise InputError(
                    f"{self.where}: {len(names)} ids for {len(self)} rows; give one each"
                )
            return names
        if not self.names_rows or not labelled:
            return [str(row) for row in range(len(self))]
        digests = self.digests(self.label_columns)
        return [f"{self.number(row)}-{content}" for row, content in enumerate(digests)]

    def number(self, row: int) -> int:
        """The number of a row, as its reader counts."""
        return row

    def rewrite(self, out: Path, labels: Labels, by_row: Mapping[int, str | None]) -> Written:
        """Write it with other labels by row, without those that are None."""
        cells = {name: self.texts(name) for name in self.label_columns}
        wanted = {row: text for row, text in by_row.items() if text is not None}
        changes = labels.edit_cells(cells, wanted, self.numbered)
        rows = [row for row in range(len(self)) if by_row.get(row, "") is not None]
        self.write(out, changes, rows)
        changed = {row for column in changes.values() for row in column}
        return Written(len(self), len(rows), len(changed))


def digest(content: str | bytes) -> str:
    """A content in a few letters."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=DIGITS // 2).hexdigest()


def find_name(
    where: object, names: Iterable[str], wanted: Sequence[str], way_out: str, kind: str = "column"
) -> str:
    """The first of the wanted names that is there."""
    names = list(names)
    for name in wanted:
        if name in names:
            return name
    asked, there = " or ".join(map(repr, wanted)), ", ".join(map(str, names))[:200]
    raise InputError(f"{where}: no {kind} {asked}, only {there}; {way_out}")


class Frame(Table):
    """A data frame of pandas in memory."""

    names_rows = False

    def __init__(self, frame: Any, columns: Columns, class_names: Sequence[str] | None = None):
        super().__init__("table", columns)
        self._frame = number_rows(frame, self.where)
        self.names = list(self._frame.columns)
        if class_names:
            self.class_names, self.numbered = tuple(class_names), True

    def __len__(self) -> int:
        return len(self._frame)

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        return as_values(self._frame[name])

    def frame(self) -> Any:
        """The frame itself."""
        return self._frame


def as_values(column: Any) -> list[Any]:
    """The values of a column of pandas; missing ones are None."""
    values = column.astype(object)
    return list(values.where(values.notna(), None))


def number_rows(frame: Any, where: str) -> Any:
    """The frame with its rows numbered from 0. A named index becomes a column."""
    named = any(name is not None for name in frame.index.names)
    frame = frame.reset_index(drop=not named)
    check_columns(where, [str(column) for column in frame.columns])
    if not len(frame):
        raise InputError(f"{where}: no rows; give a table with some")
    return frame


class ArrowTable(Table):
    """A table that Arrow reads, column by column."""

    names_rows = False

    def __init__(self, where: str, columns: Columns, schema: Any, count: int, read: Any) -> None:
        super().__init__(where, columns)
        check_columns(where, schema.names)
        if not count:
            raise InputError(f"{where}: no rows; give a table with some")
        self.schema, self.names, self.count, self.read = schema, schema.names, count, read

    def __len__(self) -> int:
        return self.count

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        found: list[Any] = self.read([name])[name].to_pylist()
        return found

    def frame(self, without: Sequence[str] = ()) -> Any:
        """All of it, or without some columns, as a pandas frame."""
        names = [name for name in self.names if name not in without]
        return self.read(names).to_pandas(ignore_metadata=True)

    @cached_property
    def vectors(self) -> list[str]:
        """The columns of lists."""
        return [field.name for field in self.schema if is_list(field.type)]

    def digests(self, without: Iterable[str]) -> list[str]:
        """From the columns of texts, numbers, truths and times."""
        types = require("pyarrow", "data").types
        odd = (types.is_nested, types.is_binary, types.is_large_binary)
        plain = [f.name for f in self.schema if not any(is_odd(f.type) for is_odd in odd)]
        names = [name for name in plain if name not in {*without}]
        if not names:
            return super().digests(without)
        rows = zip(*(self.values(name) for name in names), strict=True)
        return [digest(repr(row)) for row in rows]

    def change(self, changes: Mapping[str, Mapping[int, str]], rows: Sequence[int]) -> Any:
        """The Arrow table with other values, in the type they had: copied from a row that has them, or made."""
        arrow = require("pyarrow", "data")
        table = self.read(self.names)
        for name, changed in changes.items():
            at = table.column_names.index(name)
            field, column = table.schema.field(at), table[name]
            new, index = find_rows(self.texts(name), changed)
            if new:
                extra = self._make(new, field.type, name)
                chunks = [*column.chunks, extra]
                column = arrow.chunked_array(chunks, field.type).unify_dictionaries()
            table = table.set_column(at, field, column.take(arrow.array(index)))
        return table if len(rows) == len(self) else table.take(arrow.array(rows, arrow.int64()))

    def _make(self, texts: Sequence[str], kind: Any, name: str) -> Any:
        arrow = require("pyarrow", "data")
        try:
            inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
            made = arrow.array(texts, arrow.string()).cast(inner)
            return made.dictionary_encode().cast(kind) if inner != kind else made
        except (ValueError, TypeError, arrow.ArrowException):
            raise InputError(
                f"{self.where}: the labels in {name!r} are {kind}; {texts[0]!r} is not one"
            ) from None


def is_list(kind: Any) -> bool:
    """Whether a type of Arrow is one of lists, such as vectors."""
    types = require("pyarrow", "data").types
    return any(f(kind) for f in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def find_rows(texts: Sequence[str], changed: Mapping[int, str]) -> tuple[list[str], Array]:
    """The new values that no row has yet, to go after the last row, and for every row one that has its new value."""
    source = {text: row for row, text in enumerate(texts)}
    new = [text for text in dict.fromkeys(changed.values()) if text not in source]
    source |= {text: len(texts) + k for k, text in enumerate(new)}
    index = np.arange(len(texts))
    index[list(changed)] = [source[text] for text in changed.values()]
    return new, index


def open_arrow(table: Any, columns: Columns) -> ArrowTable:
    """A table of Arrow in memory."""
    return ArrowTable("table", columns, table.schema, len(table), table.select)


class Parquet(ArrowTable):
    """A Parquet file."""

    names_rows = True

    def __init__(self, path: Path, columns: Columns) -> None:
        parquet = require("pyarrow.parquet", "data")
        with name_errors(path, "table"):
            file = parquet.ParquetFile(path)
            schema, count = file.schema_arrow, file.metadata.num_rows

        def read(names: Sequence[str]) -> Any:
            with name_errors(path, "table"):
                return parquet.ParquetFile(path).read(columns=list(names))

        super().__init__(str(path), columns, schema, count, read)
        self.path, self.folder = path, path.parent

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """One Parquet file."""
        changed, parquet = self.change(changes, rows), require("pyarrow.parquet", "data")
        replace_with(out, lambda beside: parquet.write_table(changed, beside))


class ParquetFolder(Table):
    """A table in several files, which keep their names, their rows and their own columns."""

    def __init__(self, path: Path, files: Sequence[Path], columns: Columns) -> None:
        super().__init__(str(path), columns)
        self.path = self.folder = path
        self.parts = [Parquet(file, columns) for file in files]
        self.names = list(dict.fromkeys(name for part in self.parts for name in part.names))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold the labels, which every file must have."""
        return [part.label_columns for part in self.parts][-1]

    def ids(self, labelled: bool = True) -> list[str]:
        """The name of every row; either all files have a column of ids, or none."""
        named = [part.id_column is not None for part in self.parts]
        if any(named) and not all(named):
            odd = self.parts[named.index(False)].where
            raise InputError(f"{odd}: has no column of ids, and others beside it have; add one")
        return super().ids(labelled)

    @property
    def vectors(self) -> list[str]:
        """The columns of lists in the first file."""
        return self.parts[0].vectors

    def values(self, name: str) -> list[Any]:
        """The values of a column in all files; those without it have None."""
        every: list[Any] = []
        for part in self.parts:
            every += part.values(name) if name in part.names else [None] * len(part)
        return every

    def frame(self, without: Sequence[str] = ()) -> Any:
        """All files as one pandas frame, without some columns."""
        parts = [part.frame(without) for part in self.parts]
        return require("pandas", "data").concat(parts, ignore_index=True)

    def digests(self, without: Iterable[str]) -> list[str]:
        """Those of all files."""
        return [each for part in self.parts for each in part.digests(without)]

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """A folder of files with the same names."""

        def fill(beside: Path) -> None:
            start, kept = 0, np.asarray(rows)
            for part in self.parts:
                end = start + len(part)
                own = {
                    name: {row - start: text for row, text in some.items() if start <= row < end}
                    for name, some in changes.items()
                }
                within = kept[(kept >= start) & (kept < end)] - start
                assert part.path is not None
                part.write(beside / part.path.name, own, within.tolist())
                start = end

        write_folder(out, self.folder, fill)


class HuggingFace(ArrowTable):
    """What `datasets` writes with `save_to_disk`; of several splits, the training split, else the first."""

    names_rows = True

    def __init__(self, path: Path, columns: Columns) -> None:
        library = require("datasets", "huggingface")
        with name_errors(path, "data set"):
            self.whole = library.load_from_disk(str(path))
            splits = list(self.whole) if isinstance(self.whole, dict) else []
            self.split = "train" if "train" in splits else "".join(splits[:1])
            data = self.whole[self.split] if splits else self.whole
            table = data.with_format("arrow")[:]
        super().__init__(str(path), columns, table.schema, len(table), table.select)
        self.path, self.folder, self.info = path, path / self.split, data.info
        if len(splits) > 1:
            text = f"this is the split {self.split!r}, of {', '.join(splits)}"
            self.notes = (Note(Kind.SPLIT, text),)
        names = find_class_names(data.features, columns.label)
        self.class_names, self.numbered = names, names is not None

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """A folder of the same layout."""
        library = require("datasets", "huggingface")
        changed = library.table.InMemoryTable(self.change(changes, rows))
        data: Any = library.Dataset(changed, info=self.info.copy())
        if self.split:
            data = library.DatasetDict({**self.whole, self.split: data})
        library.disable_progress_bars()
        write_folder(out, self.path or Path(), lambda beside: data.save_to_disk(str(beside)))


def find_class_names(features: Any, label: str | None) -> tuple[str, ...] | None:
    """The names that a Hugging Face data set gives to the numbers of its labels."""
    for column in (label,) if label else LABELS:
        kind = features.get(column) if hasattr(features, "get") else None
        names = getattr(kind, "names", None)
        if isinstance(names, list) and names:
            return tuple(str(name) for name in names)
    return None


def write_folder(out: Path, source: Path, fill: Callable[[Path], object]) -> None:
    """Make a folder in a place that is free, and not inside of the `source` that is read."""
    place = Path(os.path.realpath(out))
    if place.is_relative_to(source.resolve()):
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    make_folder(place, fill)
