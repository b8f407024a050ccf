"""A CSV: its rows, and its text with other values in it; what is not changed is written again to the byte."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmooth.data.labels import LABELS
from bayesmooth.data.reading import check_columns, decode_text, name_errors
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Table, digest
from bayesmooth.data.tags import MISSING
from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically
from bayesmooth.optional import require

LONGEST_FIELD = 2**31 - 1
AUDIT = ["id", "rank", "given"]  # how the table of an audit begins; its texts are guarded


class Csv(Table):
    """A CSV or TSV, of the user or of an audit."""

    is_spreadsheet = True
    usual_labels = (*LABELS, "given")

    def __init__(self, path: Path, columns: Columns | None = None) -> None:
        super().__init__(str(path), columns or Columns())
        self.path, self.folder = path, path.parent
        with name_errors(path, "file"):
            data = path.read_bytes()
        self.text, self.encoding, notes = decode_text(data, str(path), self.columns.encoding)
        self.notes = tuple(Note(Kind.ENCODING, note) for note in notes)
        self.exact = self.text.encode(self.encoding) == data
        self.start = 1 if self.text.startswith("\ufeff") else 0
        self.mark = find_separator(self.text, self.start)
        rows, self.sheet_rows = self._read_rows()
        if not rows:
            raise InputError(f"{path}: empty; its first line must name the columns")
        self.names = self.header = rows[0]
        check_columns(path, [name for name in self.header if name])
        self.guarded = self.header[:3] == AUDIT
        del self.sheet_rows[0]
        self.rows = self._check_widths(rows[1:])
        cells = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        self.cells = dict(zip(self.header[::-1], cells[::-1], strict=True))

    def _read_rows(self) -> tuple[list[list[str]], list[int]]:
        """All rows that are not blank, and where each stands in a spreadsheet, from 1."""
        rows, places, text = [], [], self.text[self.start :]
        if '"' not in text:
            for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
                if line.strip(" "):
                    rows.append(line.split(self.mark))
                    places.append(number)
            return rows, places
        csv.field_size_limit(LONGEST_FIELD)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.mark, strict=True)
        line = number = 0
        try:
            for number, row in enumerate(reader, 1):
                line = reader.line_num
                if len(row) > 1 or (row and (not row[0] or row[0].strip(" "))):
                    rows.append(row)
                    places.append(number)
        except csv.Error:
            raise InputError(
                f"{self.path}: line {line + 1} has a stray quotation mark; double those inside of a field"
            ) from None
        return rows, places

    def _check_widths(self, rows: list[list[str]]) -> list[list[str]]:
        """The rows, of which those that are too short are filled up with empty values."""
        width = len(self.header)
        for number, row in enumerate(rows):
            if len(row) > width:
                raise InputError(
                    f"{self.path}: {self.place(number)} has {len(row)} fields, the header {width}; quote the field "
                    f"that has a {self.mark!r} in it"
                )
            if len(row) < width:
                row += [""] * (width - len(row))
        return rows

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """The cells of a column, as they stand in the file."""
        cells = self.cells.get(name, ())
        return [unguard(cell) for cell in cells] if self.guarded else list(cells)

    def place(self, row: int) -> str:
        """The row of the spreadsheet."""
        return f"row {self.sheet_rows[row]}"

    def number(self, row: int) -> int:
        """The row of the spreadsheet."""
        return self.sheet_rows[row]

    def digests(self, without: Iterable[str]) -> list[str]:
        """From all other cells."""
        left = {*without}
        kept = [at for at, name in enumerate(self.header) if name not in left]
        if not kept:
            return super().digests(without)
        return [digest("\x1f".join([row[at] for at in kept])) for row in self.rows]

    def frame(self) -> Any:
        """A pandas frame in which columns of numbers are numbers; missing values are None."""
        if not self.rows:
            raise InputError(f"{self.path}: no rows; give a table with some")
        pandas = require("pandas", extra="data")
        columns = zip(*self.rows, strict=True)
        frame = {
            name or f"Unnamed: {at}": _as_series(cells)
            for at, (name, cells) in enumerate(zip(self.header, columns, strict=True))
        }
        return pandas.DataFrame(frame, copy=False)

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
        """The text as it was, but for the values that changed and the lines that are left out."""
        if not self.exact:
            raise InputError(
                f"{self.path}: as {self.encoding} it cannot be written again as it was; save it as UTF-8"
            )
        write_atomically(out, self.replace(changes, rows))

    def replace(self, changes: Mapping[str, Mapping[int, str]], rows: Sequence[int]) -> bytes:
        """The content of the file with these rows alone, and with other values in some columns."""
        lines, text = list(self._lines()), self.text
        if len(lines) != len(self.rows) + 1:
            raise InputError(f"{self.path}: stray quotation marks; double those inside of a field")
        starts = [start for start, _ in lines] + [len(text)]
        places = [(self.header.index(name), changed) for name, changed in changes.items()]
        places.sort(key=lambda place: -place[0])  # the last first, so that the others stay
        parts = [text[: starts[1]]]
        for row in rows:
            start, end = lines[row + 1]
            line, rest = text[start:end], text[end : starts[row + 2]]
            for at, changed in places:
                if row in changed:
                    line = self._change(line, at, changed[row], row)
            parts.append(line + rest)
        try:
            return "".join(parts).encode(self.encoding)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            raise InputError(
                f"{self.path}: its encoding {self.encoding} has no {odd!r}; save the file as UTF-8 first"
            ) from None

    def _lines(self) -> Iterator[tuple[int, int]]:
        """The (start, end) of every row that is not blank; a row may have line breaks between quotation marks."""
        m, at = self.mark, self.start
        field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{m}\r\n][^{m}\r\n]*|)'
        row = re.compile(rf"({field}(?:{m}{field})*)(\r\n|\r|\n|\Z)")
        while at < len(self.text) and (found := row.match(self.text, at)) is not None:
            if found[1].strip(" "):
                yield found.span(1)
            at = found.end()

    def _change(self, line: str, at: int, value: str, row: int) -> str:
        """A line with another value in one of its fields."""
        field = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{self.mark}]*)({self.mark}|\Z)')
        start, end = [found.span(1) for found in field.finditer(line)][at]
        before = line[start:end]
        if self._unquote(before) != self.rows[row][at]:
            raise InputError(f"{self.path}: {self.place(row)} has stray quotation marks; mend it")
        value = guard(value) if self.guarded else value
        quoted = before.startswith('"') or any(sign in value for sign in (self.mark, *'"\n\r'))
        value = '"' + value.replace('"', '""') + '"' if quoted else value
        return line[:start] + value + line[end:]

    @staticmethod
    def _unquote(field: str) -> str:
        return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _as_series(cells: Sequence[str]) -> Any:
    """A column of pandas: numbers or truths where all cells are, else texts; missing ones are None."""
    pandas = require("pandas", extra="data")
    texts = pandas.Series(cells, dtype=object)
    gone = texts.isin(MISSING)
    present = texts.where(~gone, None)
    if gone.all():
        return present
    numbers = pandas.to_numeric(present, errors="coerce")
    if bool((numbers.notna() | gone).all()):
        return numbers
    if texts.isin(["True", "False"]).all():
        return texts == "True"
    return present


def find_separator(text: str, start: int = 0) -> str:
    """What stands between the fields: the most frequent of tab, semicolon and comma in the first line."""
    found = re.compile(r"[^\r\n]*").match(text, start)
    first = re.sub(r'"[^"]*"', "", found[0] if found else "")
    return max("\t;,", key=first.count) if first else ","


# A spreadsheet takes a cell that begins so for a formula, and runs it.
FORMULA = re.compile(r"['=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?[\d.,]+([eE][+-]?\d+)?", re.ASCII)


def guard(text: str) -> str:
    """A cell that no spreadsheet runs: an apostrophe before what looks like a formula.

    >>> guard("=cmd|' /C calc'!A0"), guard("-3"), guard("'tis"), guard("cat")
    ("'=cmd|' /C calc'!A0", '-3', "''tis", 'cat')
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def unguard(text: str) -> str:
    """The text that was guarded."""
    return text[1:] if text.startswith("'") else text
