"""Tables: a data frame, a list of dicts, a spreadsheet. Each class reads one format and writes it again.

A row is named by its column `id`, or by the one that is named. Without such a column its name is its place and a digest
of its content without the label, `17-9f3a2c10de`: no decision ever hits another row. A table in memory, which nothing
can change in the meantime, names its rows by their positions; so do data without labels, on which nobody decides.
"""

import gzip
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.data.labels import LABELS, Labels, as_texts
from bayesmooth.data.source import Columns, Note, Source, Written
from bayesmooth.errors import InputError
from bayesmooth.files import make_folder, name_errors, replace_with, write_atomically
from bayesmooth.optional import require

CLEAN = ("clean_label", "clean_labels")
IDS = ("id", "ids")
DIGITS = 10  # of a digest: two of a million rows are alike once in a thousand data sets
MAX_RATIO = 100  # unpacked to packed: data that carry information stay far below
LIMIT = 256 << 20  # bytes that may be unpacked in any case

Array = np.ndarray[Any, Any]
Changes = Mapping[str, Mapping[int, str]]
"""Other values by column and row."""


class Table:
    """A data set as columns with one value per row, which can be written again."""

    path: Path | None = None
    folder = Path()  # where the paths of pictures begin
    notes: tuple[Note, ...] = ()
    class_names: tuple[str, ...] | None = None  # where the data set itself names its classes
    numbered = False  # whether the labels are positions in the class names
    is_spreadsheet = False  # whether people look at its rows by number
    names_rows = True  # whether a row without an id is named by its content
    usual_labels: tuple[str, ...] = LABELS
    part = "column"
    names: Sequence[str]

    def __init__(self, where: str, columns: Columns) -> None:
        self.where, self.columns = where, columns

    def __len__(self) -> int:
        raise NotImplementedError

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        raise NotImplementedError

    def array(self, name: str) -> Array:
        """A column to learn from: numbers as numbers, else objects."""
        return np.fromiter(self.values(name), object, len(self))

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """Write these rows, with other values, and all else as it was."""
        raise InputError(f"{self.where}: lies in memory, so it cannot be written again")

    def fill(self, source: Source, rows: Array) -> Source:
        """The source of some rows, with what can be shown or learned from without a choice."""
        return source

    def digests(self, without: Iterable[str]) -> list[str]:
        """The content of every row in a few letters, without some columns."""
        names = [name for name in self.plain_names() if name not in {*without}]
        if not names:
            return [digest(str(len(self)))] * len(self)
        return [digest(repr(row)) for row in zip(*map(self.values, names), strict=True)]

    def plain_names(self) -> Sequence[str]:
        """The columns by which a row is known."""
        return self.names

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the rows, as a reader counts them."""
        return range(len(self))

    def place(self, row: int) -> str:
        """Where a row stands, in words."""
        return f"row {self.numbers[row]}{'' if self.is_spreadsheet else ' (counted from 0)'}"

    def texts(self, name: str) -> list[str]:
        """The values of a column as texts; missing ones are empty."""
        return as_texts(self.values(name))

    def find(self, wanted: str | None, usual: Sequence[str], way_out: str, needed: bool = False) -> str | None:
        """The column that is named, which must be there; else the first with a usual name."""
        if wanted is not None or needed:
            names = usual if wanted is None else (str(wanted),)
            return find_name(self.where, self.names, names, way_out, self.part)
        return next((name for name in usual if name in self.names), None)

    @property
    def label(self) -> str:
        """The column of labels."""
        way_out = "name the one of the labels with label (--label)"
        return self.find(self.columns.label, self.usual_labels, way_out, needed=True) or ""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold the labels: one, or one per tag."""
        if self.columns.tags is None:
            return (self.label,)
        way_out = "name the columns of 0 and 1 with tags (--tags)"
        return tuple(find_name(self.where, self.names, (n,), way_out, self.part) for n in self.columns.tags)

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
                raise InputError(f"{self.where}: {len(names)} ids for {len(self)} rows; give one each")
            return names
        if not self.names_rows or not labelled:
            return [str(row) for row in range(len(self))]
        digests = self.digests(self.label_columns)
        return [f"{row}-{content}" for row, content in zip(self.numbers, digests, strict=True)]

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


def find_name(where: object, names: Iterable[str], wanted: Sequence[str], way_out: str, part: str = "column") -> str:
    """The first of the wanted names that is there."""
    names = list(names)
    for name in wanted:
        if name in names:
            return name
    asked, there = " or ".join(map(repr, wanted)), ", ".join(map(str, names))[:200]
    raise InputError(f"{where}: no {part} {asked}, only {there}; {way_out}")


def check_table(where: Path | str, names: Sequence[Any], count: int) -> None:
    """Refuse a table without rows, or in which a column appears twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} appears twice; rename one")
    if not count:
        raise InputError(f"{where}: no rows; give a table with some")


def restore_types(
    values: Sequence[Any], texts: Sequence[str], changed: Mapping[int, str], where: str
) -> dict[int, Any]:
    """Changed texts as values of the column's type: taken from a row that has them, or made."""
    known = dict(zip(texts, values, strict=True))
    present = [value for value in values if value is not None]
    numbers = bool(present) and all(isinstance(value, int | float) for value in present)
    made: dict[int, Any] = {}
    for row, text in changed.items():
        if text not in known and numbers:
            try:
                known[text] = int(text)
            except ValueError:
                raise InputError(f"{where}: its labels are numbers; {text!r} is not one") from None
        made[row] = known.get(text, text)
    return made


def read_packed(path: Path) -> tuple[bytes, bool]:
    """The content of a file, unpacked if it is gzip, and whether it was."""
    with name_errors(path, "file"):
        data = path.read_bytes()
        if data[:2] != b"\x1f\x8b":
            return data, False
        most = max(LIMIT, MAX_RATIO * len(data))
        with gzip.open(path) as file:
            unpacked = file.read(most + 1)
        if len(unpacked) > most:
            raise InputError(f"unpacks to more than {most >> 20} MB; unpack it first")
        return unpacked, True


def write_packed(out: Path, data: bytes, packed: bool) -> None:
    """Write a file, as gzip if the one that was read is."""
    write_atomically(out, gzip.compress(data, mtime=0) if packed else data)


def write_folder(out: Path, source: Path | None, fill: Callable[[Path], object]) -> None:
    """Make a folder in a place that is free, and not inside of the `source` that is read."""
    place = Path(os.path.realpath(out))
    if source is not None and place.is_relative_to(source.resolve()):
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    make_folder(place, fill)


class Frame(Table):
    """A data frame in memory, of pandas, or one that becomes such: of polars, lazy too, or of Arrow.

    A named index becomes a column."""

    names_rows = False

    def __init__(self, frame: Any, columns: Columns) -> None:
        super().__init__("table", columns)
        for convert in ("collect", "to_pandas"):
            frame = getattr(frame, convert)() if hasattr(frame, convert) else frame
        named = any(name is not None for name in frame.index.names)
        self.frame = frame.reset_index(drop=not named)
        self.names = [str(name) for name in self.frame.columns]
        check_table(self.where, self.names, len(self.frame))
        self.frame.columns = self.names

    def __len__(self) -> int:
        return len(self.frame)

    def values(self, name: str) -> list[Any]:
        """The values of a column; missing ones are None."""
        values = self.frame[name].astype(object)
        return list(values.where(values.notna(), None))

    def array(self, name: str) -> Array:
        """The column itself where it holds numbers."""
        kind = self.frame[name].dtype
        if isinstance(kind, np.dtype) and kind.kind in "biufc":
            return np.asarray(self.frame[name])
        return super().array(name)


class Records(Table):
    """A list of dicts, one per row."""

    names_rows = False

    def __init__(self, rows: Sequence[Any], columns: Columns, where: str = "rows") -> None:
        super().__init__(where, columns)
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: row {number} is {str(row)[:40]!r}; must be an object with names")
        self.rows = rows
        self.names = list(dict.fromkeys(str(name) for row in rows for name in row))
        check_table(where, self.names, len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """The values under a name; None where a row does not have it."""
        return [row.get(name) for row in self.rows]


class Excel(Table):
    """The first sheet of an .xlsx; what openpyxl does not keep (pictures, charts) is lost in writing."""

    is_spreadsheet = True
    numbers: Sequence[int] = ()

    def __init__(self, path: Path, columns: Columns) -> None:
        super().__init__(str(path), columns)
        self.path, self.folder = path, path.parent
        with name_errors(path, "workbook"):
            book = require("openpyxl", extra="data").load_workbook(path, data_only=True)
            every = [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]
        numbers = [at for at, row in enumerate(every) if any(v is not None for v in row)]
        if not numbers:
            raise InputError(f"{path}: empty; its first row must name the columns")
        header = every[numbers[0]]
        self.places = {str(name): at for at, name in enumerate(header) if name is not None}
        self.rows, self.numbers = [every[at] for at in numbers[1:]], [at + 1 for at in numbers[1:]]
        self.names = list(self.places)
        check_table(path, [name for name in header if name is not None], len(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """The values of a column, as the program that saved it had computed them."""
        return [row[self.places[name]] for row in self.rows]

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """The workbook with other values in some cells, and without some rows."""
        book = require("openpyxl", extra="data").load_workbook(self.path)
        sheet = book.worksheets[0]
        for name, changed in changes.items():
            made = restore_types(self.values(name), self.texts(name), changed, self.where)
            for row, value in made.items():
                sheet.cell(self.numbers[row], self.places[name] + 1).value = value
        for row in sorted({*range(len(self))} - {*rows}, reverse=True):
            sheet.delete_rows(self.numbers[row])
        replace_with(out, book.save)
