"""`Table`: data as columns with one value per row, and a function that writes them again in their format.

A row is named by its column `id`, or by the one that is named. Without such a column its name is its place and a digest
of its content without the label, `17-9f3a2c10de`: no decision ever hits another row. A table in memory, which nothing
can change in the meantime, names its rows by their positions; so do data without labels, on which nobody decides.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bayesmooth.data.labels import (
    LABELS,
    MISSING,
    SEPARATOR,
    VALUES,
    Labels,
    Vocabulary,
    as_text,
    encode,
    label_texts,
    name_classes,
    read_tag_cell,
    split_tags,
)
from bayesmooth.data.source import Columns, Note
from bayesmooth.errors import InputError, require
from bayesmooth.files import make_folder

CLEAN = ("clean_label", "clean_labels")
IDS = ("id", "ids")
DIGITS = 10  # of a digest: two of a million rows are alike once in a thousand data sets

Array = np.ndarray[Any, Any]
Changes = Mapping[str, Mapping[int, str]]
"""Other values by column and row."""
Write = Callable[[Path, Changes, list[int]], object]
"""Writes these rows to a path, with other values, and all else as it was."""


@dataclass(eq=False)
class Table:
    """A data set as columns, each an array of numpy or of Arrow."""

    where: str
    columns: Columns
    cells: Mapping[str, Any]
    count: int
    write: Write | None = None
    path: Path | None = None
    numbers: Sequence[int] | None = None
    """Of the rows, as a spreadsheet counts them."""
    notes: tuple[Note, ...] = ()
    class_names: tuple[str, ...] | None = None
    """The classes, where the data set itself names them."""
    numbered: bool = False
    """Whether the labels are positions in the class names."""
    given: Labels | None = None
    """Labels that need not be read."""
    parts: dict[str, Any] | None = None
    """Fields of its `Source`, where the format itself has the inputs to learn from, as arrays and folders do."""
    known_by: Sequence[Array] = ()
    """Arrays by which a row is known, instead of its cells."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.cells)

    @property
    def names_rows(self) -> bool:
        """Whether a row is named by its content: that of a file, which may change, without a column of ids."""
        return self.path is not None and self.id_column is None

    def values(self, name: str) -> list[Any]:
        """The values of a column, one per row; missing ones are None."""
        cells = self.cells[name]
        values: list[Any] = cells.tolist() if isinstance(cells, np.ndarray) else cells.to_pylist()
        if len(values) != self.count:
            raise InputError(f"{self.where}: {len(values)} {name} for {self.count} rows; give one each")
        return values

    def texts(self, name: str) -> list[str]:
        """The values of a column as texts; missing ones are empty, and a list of tags is one text."""
        if str(getattr(self.cells[name], "type", "")) == "string":  # which `as_text` would leave as they are
            texts: list[str] = self.cells[name].fill_null("").to_pylist()
            return texts
        values, mark = self.values(name), self.columns.separator or SEPARATOR
        if list in {*map(type, values)}:
            values = [mark.join(map(as_text, value)) if isinstance(value, list) else value for value in values]
        return [*map(as_text, values)]

    def place(self, row: int) -> str:
        """The place of a row, in words."""
        return f"row {row} (counted from 0)" if self.numbers is None else f"row {self.numbers[row]}"

    def find(self, *wanted: str, way_out: str = "name another") -> str:
        """The first of these columns that is there."""
        for name in wanted:
            if name in self.cells:
                return name
        asked, names = " or ".join(map(repr, wanted)), ", ".join(self.cells)[:200]
        raise InputError(f"{self.where}: no column {asked}, only {names}; {way_out}")

    def find_usual(self, wanted: str | None, usual: Sequence[str]) -> str | None:
        """The column that is named, which must be there; else the first with a usual name."""
        return next((name for name in usual if name in self.cells), None) if wanted is None else self.find(wanted)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold the labels: one, or one per tag."""
        if self.columns.tags is not None:
            way_out = "name the columns of 0 and 1 with tags (--tags)"
            return tuple(self.find(str(name), way_out=way_out) for name in self.columns.tags)
        wanted = LABELS if self.columns.label is None else (self.columns.label,)
        return (self.find(*wanted, way_out="name the one of the labels with label (--label)"),)

    @property
    def clean_column(self) -> str | None:
        """The column of true labels."""
        return self.find_usual(self.columns.clean_label, CLEAN)

    @property
    def id_column(self) -> str | None:
        """The column of ids."""
        return self.find_usual(self.columns.id, IDS)

    def ids(self, labelled: bool = True) -> list[str]:
        """The name of every row."""
        if (column := self.id_column) is not None:
            return self.texts(column)
        if self.path is None or not labelled:
            return [str(row) for row in range(self.count)]
        numbers = range(self.count) if self.numbers is None else self.numbers
        return [f"{number}-{content}" for number, content in zip(numbers, self.digests(), strict=True)]

    def digests(self) -> list[str]:
        """The content of every row in a few letters, without the labels, vectors and pictures."""
        if self.known_by:
            rows = zip(*map(np.ascontiguousarray, self.known_by), strict=True)
            contents = [b"\x1f".join(np.asarray(cell).tobytes() for cell in row) for row in rows]
        else:
            others = {name: cells for name, cells in self.cells.items() if name not in self.label_columns}
            columns = [self.texts(name) for name, cells in others.items() if is_plain(cells)]
            if not columns:
                return [str(self.count)] * self.count
            contents = ["\x1f".join(row).encode() for row in zip(*columns, strict=True)]
        return [hashlib.blake2b(content, digest_size=DIGITS // 2).hexdigest() for content in contents]

    def change(self, name: str, changed: Mapping[int, str], values: list[Any] | None = None) -> list[Any]:
        """The values of a column with some changed, in its types: taken from a row that has them, or converted."""
        values = self.values(name) if values is None else values
        kinds = {type(value) for value in values if value is not None}
        by_text: dict[str, Any] = {} if list in kinds else dict(zip(self.texts(name), values, strict=True))
        for text in {*changed.values()} - {*by_text}:
            if list in kinds:
                by_text[text] = split_tags(text, self.columns.separator or SEPARATOR)
            elif kinds == {bytes}:
                by_text[text] = text.encode()
            elif kinds and kinds <= {int, float, bool}:
                try:
                    number = VALUES[text.lower()] if kinds == {bool} else int(text)
                except (KeyError, ValueError):
                    names = "true and false" if kinds == {bool} else "numbers"
                    raise InputError(f"{self.where}: its labels are {names}; {text!r} is not one") from None
                by_text[text] = next(iter(kinds))(number) if len(kinds) == 1 else number
        return [by_text.get(changed[row], changed[row]) if row in changed else old for row, old in enumerate(values)]


Read = tuple[Sequence[int], Labels, Tensor | None]
"""The rows that have a label, their labels, and the clean ones."""


def read_labels(table: Table, predicted: bool) -> Read:
    """The labels of a table: votes, classes or tags."""
    columns = table.columns
    if columns.annotator is not None:
        return _read_votes(table)
    if columns.tags is None and columns.separator is None:
        values = table.values(table.label_columns[0])
        if list not in {*map(type, values)}:
            return _read_classes(table, values)
    if predicted and "inputs" not in (table.parts or {}):
        raise InputError(f"{table.where}: with tags, give probabilities= as an array N × T, and labels=")
    return _read_tags(table)


def _read_classes(table: Table, values: Sequence[Any]) -> Read:
    """One class per row. −1 is missing where classes have names and none is −1, and where labels are positions."""
    label, clean, where = table.label_columns[0], table.clean_column, table.where
    names = tuple(table.columns.class_names or table.class_names or ())
    absent = {*MISSING, *(["-1"] if names else [])} - {*names} | ({"-1"} if table.numbered else set())
    kept = [row for row, value in enumerate(values) if as_text(value).strip() not in absent]
    columns = {label: values} | ({} if clean is None else {clean: table.values(clean)})
    texts = {name: label_texts([cells[row] for row in kept]) for name, cells in columns.items()}
    for name, cells in columns.items():
        for row, text in zip(kept, texts[name], strict=True):
            if text in absent or (isinstance(cells[row], float) and not cells[row].is_integer()):
                raise InputError(
                    f"{where}: {name}, {table.place(row)}: {cells[row]!r} is not a class (a word or a whole number); "
                    "mend it, or leave the row out"
                )
    names = names or name_classes(text for some in texts.values() for text in some)
    numbers = [
        encode(some, names, f"{where}: {name}", table.numbered, lambda at: table.place(kept[at]))
        for name, some in texts.items()
    ]
    return kept, Labels(numbers[0], names), (*numbers, None)[1]


def _read_tags(table: Table) -> Read:
    """Sets of tags, in columns of 0 and 1 or in one column of texts or lists."""
    columns, labels = table.columns, table.label_columns
    separator = columns.separator or SEPARATOR
    if columns.tags is not None:
        words = Vocabulary(tuple(map(str, columns.tags)), separator)
        texts = words.join_columns(map(table.texts, labels), table.where, table.place)
    else:
        given = [read_tag_cell(value, separator) for value in table.values(labels[0])]
        every = {tag for cell in given for tag in split_tags(cell, separator)}
        words = Vocabulary(tuple(map(str, columns.class_names or name_classes(every))), separator)
        where = f"{table.where}, {{}}, column {labels[0]!r}"
        texts = [
            cell and words.write(split_tags(cell, separator), where.format(table.place(row)))
            for row, cell in enumerate(given)
        ]
    kept = [row for row, text in enumerate(texts) if text]
    sets = [texts[row] for row in kept]
    names = name_classes(sets)
    return kept, Labels(encode(sets, names, table.where), names, words), None


def _read_votes(table: Table) -> Read:
    """One row per vote: of the rows of an example the first is kept, with the label that most people gave."""
    who, key, names = table.columns.annotator, table.id_column, table.columns.class_names
    if who is None or who not in table.names or key is None:
        raise InputError(
            f"{table.where}: needs the columns of annotators ({who!r}) and of ids, which name the example of a vote "
            f"(--id), and has only {', '.join(table.names)[:200]}"
        )
    label = table.label_columns[0]
    ids, people, given = table.texts(key), table.texts(who), label_texts(table.values(label))
    rows = [row for row, text in enumerate(given) if text not in {*MISSING} - {*(names or ())}]
    first = {ids[row]: row for row in reversed(rows)}
    place = {id: at for at, id in enumerate(dict.fromkeys(ids[row] for row in rows))}
    votes = [(place[ids[row]], people[row], given[row]) for row in rows]
    labels, kept = Labels.of_votes(votes, names, f"{table.where}: {label}"), [first[id] for id in place]
    if table.clean_column is None:
        return kept, labels, None
    true = label_texts(table.values(table.clean_column))
    return kept, labels, encode([true[row] for row in kept], labels.names, table.where)


def make_cells(where: str, columns: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Columns by name, as arrays of Arrow; a name that appears twice is refused."""
    pairs = [(str(name), values) for name, values in columns]
    twice = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} appears twice; rename one")
    return {name: as_arrow(values) for name, values in pairs}


def as_arrow(values: Any) -> Any:
    """A column as an array of Arrow. Where its values have no common type, they become texts."""
    arrow = require("pyarrow", "data")
    if isinstance(values, arrow.ChunkedArray):
        plain = values.cast(values.type.value_type) if arrow.types.is_dictionary(values.type) else values
        return plain.cast("string") if str(plain.type) in ("large_string", "string_view") else plain
    try:
        array = arrow.array(values, from_pandas=True)
    except (ValueError, TypeError, OverflowError, arrow.ArrowException):
        array = arrow.array([as_text(value) or None for value in values], "string")
    return as_arrow(arrow.chunked_array([array]))


def is_plain(cells: Any) -> bool:
    """Whether a column holds no vectors and no bytes."""
    if isinstance(cells, np.ndarray):
        return cells.ndim == 1
    return not require("pyarrow", "data").types.is_nested(cells.type) and "binary" not in str(cells.type)


def write_folder(out: Path, source: Path | None, fill: Callable[[Path], object]) -> None:
    """Make a folder in a place that is free, and not inside of the `source` that is read."""
    place = Path(os.path.realpath(out))
    if source is not None and place.is_relative_to(source.resolve()):
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    make_folder(place, fill)


# A spreadsheet takes a cell that begins so for a formula, and runs it.
FORMULA = re.compile(r"['=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?[\d.,]+([eE][+-]?\d+)?", re.ASCII)


def guard(text: str) -> str:
    """A cell that no spreadsheet runs: an apostrophe before a text that looks like a formula.

    >>> guard("=cmd|' /C calc'!A0"), guard("-3"), guard("'tis"), guard("cat")
    ("'=cmd|' /C calc'!A0", '-3', "''tis", 'cat')
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def unguard(text: str) -> str:
    """The text that was guarded."""
    return text[1:] if text.startswith("'") else text
