"""A CSV as its text: rows and fields by their places, so that what is not changed can be written again as it was."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmooth.data.reading import decode_text, name_errors
from bayesmooth.errors import InputError


class CsvText:
    """The text of a CSV and the places of its rows; what is not changed is written again to the byte."""

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        self.path = path
        with name_errors(path, "file"):
            data = path.read_bytes()
        self.text, self.encoding, self.notes = decode_text(data, str(path), encoding)
        self.exact = self.text.encode(self.encoding) == data
        start = 1 if self.text.startswith("\ufeff") else 0
        self.mark = find_separator(self.text, start)
        self._field = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{self.mark}]*)({self.mark}|\Z)')
        lines = list(self._lines(start))
        if not lines:
            raise InputError(f"{path}: empty; its first line must name the columns")
        self.lines = lines[1:]
        self.header = self._values(lines[0])
        check_columns(path, [name for name in self.header if name])

    def _lines(self, start: int) -> Iterator[tuple[int, int]]:
        """The (start, end) of every row that is not blank; a row may have line breaks between quotation marks."""
        m = self.mark
        field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{m}\r\n][^{m}\r\n]*|)'
        row = re.compile(rf"({field}(?:{m}{field})*)(\r\n|\r|\n|\Z)")
        while start < len(self.text):
            found = row.match(self.text, start)
            if found is None:
                line = self.text.count("\n", 0, start) + 1
                raise InputError(
                    f"{self.path}: line {line} has a stray quotation mark; double those inside of a field"
                )
            if found[1].strip(" "):
                yield found.span(1)
            start = found.end()

    def __len__(self) -> int:
        return len(self.lines)

    def _values(self, line: tuple[int, int]) -> list[str]:
        text = self.text[slice(*line)]
        if '"' not in text:
            return text.split(self.mark)
        fields = (text[start:end] for start, end in self._places(text))
        return [f[1:-1].replace('""', '"') if f.startswith('"') else f for f in fields]

    def _places(self, line: str) -> list[tuple[int, int]]:
        """The (start, end) of every field of a row."""
        places = []
        for found in self._field.finditer(line):
            places.append(found.span(1))
            if not found[2]:
                break
        return places

    def rows(self) -> Iterator[list[str]]:
        """The values of all rows; a row that is too short is filled up with empty values."""
        width = len(self.header)
        for number, line in enumerate(self.lines, start=1):
            values = self._values(line)
            if len(values) > width:
                raise InputError(
                    f"{self.path}: row {number} has {len(values)} fields, the header {width}; quote the field that "
                    f"has a {self.mark!r} in it"
                )
            yield values + [""] * (width - len(values))

    def columns(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The values of the named columns that the file has, by name."""
        found: dict[str, list[str]] = {name: [] for name in names if name in self.header}
        places = [(self.header.index(name), values) for name, values in found.items()]
        for row in self.rows():
            for at, values in places:
                values.append(row[at])
        return found

    def replace(self, column: str, changed: Mapping[int, str], rows: Sequence[int]) -> bytes:
        """The content of the file with these rows alone, and with the `changed` values in one column."""
        at, text = self.header.index(column), self.text
        starts = [start for start, _ in self.lines] + [len(text)]
        parts = [text[: starts[0]]]
        for row in rows:
            line = text[starts[row] : starts[row + 1]]
            if row in changed:
                start, end = self._places(text[slice(*self.lines[row])])[at]
                line = line[:start] + self._quote(changed[row], line[start:end]) + line[end:]
            parts.append(line)
        try:
            return "".join(parts).encode(self.encoding)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            raise InputError(
                f"{self.path}: its encoding {self.encoding} has no {odd!r}; save the file as UTF-8 first"
            ) from None

    def _quote(self, value: str, before: str) -> str:
        needed = before.startswith('"') or any(sign in value for sign in (self.mark, *'"\n\r'))
        return '"' + value.replace('"', '""') + '"' if needed else value


def find_separator(text: str, start: int = 0) -> str:
    """What stands between the fields: the most frequent of tab, semicolon and comma in the first line."""
    found = re.compile(r"[^\r\n]*").match(text, start)
    first = re.sub(r'"[^"]*"', "", found[0] if found else "")
    return max("\t;,", key=first.count) if first else ","


def check_columns(where: Path | str, names: Sequence[Any]) -> None:
    """Refuse a table in which a column appears twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} appears twice; rename one")


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
