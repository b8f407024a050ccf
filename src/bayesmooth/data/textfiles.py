"""Tables that are text: CSV and JSON, in any encoding that is certain, packed by gzip or not.

What is not changed is written again to the byte.
"""

import codecs
import csv
import gc
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bayesmooth.data.labels import LABELS, MISSING, SEPARATOR, as_text, split_tags
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import (
    Changes,
    Records,
    Table,
    check_table,
    digest,
    read_packed,
    restore_types,
    write_packed,
)
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors
from bayesmooth.optional import require

LONGEST_FIELD = 2**31 - 1
AUDIT = ["id", "rank", "given"]  # how the table of an audit begins; its texts are guarded
COHERENT = 0.2  # of a detected encoding: below it charset-normalizer took Russian for Japanese
MARKS = "“”„‘’‚«»–—…•€£§°©®™ \u00a0"  # that stand around words
LOOKED_AT = 1 << 20  # bytes that decide on an encoding


def decode_text(data: bytes, name: str, encoding: str | None = None) -> tuple[str, str, list[Note]]:
    """A text, the codec that writes it again with its byte order mark, and a note where the codec was guessed.

    Without `encoding` it is UTF-8 or UTF-16; else cp1252, in which Excel saves a CSV, if it reads as a Western text;
    else what charset-normalizer detects with a language, if no other encoding makes another likely text. The rest is
    refused.
    """
    asked = encoding or _guess_codec(data, name)
    try:
        codec = codecs.lookup(asked).name
        if codec in ("utf-16", "utf-32"):  # which keep their byte order mark
            codec += "-be" if data[:1] in b"\xfe\x00" else "-le"
        codec = codec.removesuffix("-sig")
        text = data.decode(codec)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{name}: cannot be read as {asked} ({error}); name its encoding with encoding (--encoding)"
        ) from None
    if encoding is not None or asked.startswith("utf"):
        return text, codec, []
    said = f"{name} is not UTF-8 and was read as {asked}; `encoding` (--encoding) names another"
    return text, codec, [Note(Kind.ENCODING, said)]


def _guess_codec(data: bytes, name: str) -> str:
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a mark: most characters of a table have a byte of zero, all on the same side.
    zeros = [data[side:4096:2].count(0) for side in (0, 1)]
    if max(zeros) > min(len(data), 4096) / 8 and not min(zeros):
        return "utf-16-be" if zeros[0] else "utf-16-le"
    try:
        data.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        if is_western(data[:LOOKED_AT]):
            return "cp1252"
    likely = list[Any]()
    if find_spec("charset_normalizer"):
        found = require("charset_normalizer", extra="data").from_bytes(data[:LOOKED_AT])
        likely = [each for each in found if each.coherence >= COHERENT]
        if len({str(each) for each in likely}) == 1:
            return str(likely[0].encoding)
    maybe = f" (it may be {likely[0].encoding})" if likely else ""
    raise InputError(
        f"{name}: neither UTF-8 nor cp1252, and no other encoding is certain{maybe}; name it with encoding "
        "(--encoding), or save the file as UTF-8"
    )


def is_western(data: bytes) -> bool:
    """Whether bytes read as cp1252 make words: accents stand among plain letters, and no signs inside of words.

    >>> is_western("café; Müller".encode("cp1252")), is_western("кошка".encode("cp1251"))
    (True, False)
    """
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return False
    words = re.findall(r"[^\W\d_]*[^\x00-\x7f]+[^\W\d_]*", text)
    odd = [word for word in words if word.strip(MARKS)]
    wrong = [w for w in odd if re.search(r"[^\x00-\x7f]{3}|[^\W_][¡-¿ˆ˜†‡¤×÷]+[^\W_]", w)]
    bare = [w for w in odd if len(w.strip(MARKS)) > 1 and not re.search("[a-zA-Z]", w)]
    return 4 * len({*wrong, *bare}) < len({*odd}) or not odd


class Csv(Table):
    """A CSV or TSV, of the user or of an audit."""

    is_spreadsheet = True
    usual_labels = (*LABELS, "given")
    numbers: Sequence[int] = ()

    def __init__(self, path: Path, columns: Columns | None = None) -> None:
        super().__init__(str(path), columns or Columns())
        self.path, self.folder = path, path.parent
        data, self.packed = read_packed(path)
        self.text, self.encoding, notes = decode_text(data, str(path), self.columns.encoding)
        self.notes, utf8 = tuple(notes), self.encoding == "utf-8"
        self.exact = utf8 or self.text.encode(self.encoding) == data
        self.start = 1 if self.text.startswith("\ufeff") else 0
        self.mark = find_separator(self.text, self.start)
        self.header, self.cells, self.numbers = self._split_lines() or self._read_rows()
        self.names = [name or f"Unnamed: {at}" for at, name in enumerate(self.header)]
        check_table(path, self.names, 1)
        self.guarded = self.header[:3] == AUDIT

    def _split_lines(self) -> tuple[list[str], list[Any], Sequence[int]] | None:
        """The header, the columns and the numbers of the rows, by Arrow, which is fast; None where a line is odd: with
        a stray quotation mark, blank, or of another length."""
        text, m = self.text[self.start :], self.mark
        quoted = rf'"(?<![^{m}\r\n]")[^"]*(?:""[^"]*)*"(?=[{m}\r\n]|\Z)'
        bare = re.sub(quoted, "", text) if '"' in text else text
        if any(sign in bare for sign in ('"', "\n\n", "\n\r", "\r\r")) or m not in bare:
            return None
        arrow, reader = require("pyarrow", "data"), require("pyarrow.csv", "data")
        data = text.encode()
        names = [f"f{at}" for at in range(re.split(r"[\r\n]", bare, maxsplit=1)[0].count(m) + 1)]
        try:
            table = reader.read_csv(
                arrow.BufferReader(data),
                read_options=reader.ReadOptions(block_size=len(data), column_names=names),
                parse_options=reader.ParseOptions(delimiter=m, newlines_in_values=True, ignore_empty_lines=False),
                convert_options=reader.ConvertOptions(column_types=dict.fromkeys(names, arrow.string())),
            )
        except (arrow.ArrowInvalid, OverflowError):
            return None
        header = [column[0].as_py() for column in table.columns]
        columns = [column[1:].combine_chunks() for column in table.columns]
        return header, columns, range(2, len(table) + 1)

    def _read_rows(self) -> tuple[list[str], list[Any], Sequence[int]]:
        """The same; blank lines are no rows, and short ones are filled up."""
        csv.field_size_limit(LONGEST_FIELD)
        text = io.StringIO(self.text[self.start :], newline="")
        reader = csv.reader(text, delimiter=self.mark, strict=True)
        every = list[list[str]]()
        try:
            with uncollected():
                every.extend(reader)
        except csv.Error:
            raise InputError(
                f"{self.path}: line {reader.line_num} has a stray quotation mark; double those inside of a field"
            ) from None
        rows = {n: row for n, row in enumerate(every, 1) if len(row) > 1 or self._is_row(row)}
        if not rows:
            raise InputError(f"{self.path}: empty; its first line must name the columns")
        header = rows.pop(min(rows))
        for number, row in rows.items():
            if len(row) > len(header):
                raise InputError(
                    f"{self.path}: row {number} has {len(row)} fields, the header {len(header)}; quote the field "
                    f"that has a {self.mark!r} in it"
                )
            row += [""] * (len(header) - len(row))
        arrow = require("pyarrow", "data")
        with uncollected():
            cells = list(zip(*rows.values(), strict=True)) or [()] * len(header)
            return header, [arrow.array(column, arrow.string()) for column in cells], [*rows]

    @staticmethod
    def _is_row(row: list[str]) -> bool:
        """Whether a row of at most one field is one: a line of blanks is none, a quoted empty field is."""
        return bool(row) and (not row[0] or bool(row[0].strip(" ")))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """All rows, as they stand in the file."""
        return list(zip(*(column.to_pylist() for column in self.cells), strict=True))

    def values(self, name: str) -> list[Any]:
        """The cells of a column, as they stand in the file."""
        cells: list[Any] = self.array(name, missing=()).to_pylist()
        return cells

    texts = values

    def array(self, name: str, missing: Sequence[str] = MISSING) -> Any:
        """The cells as strings of Arrow; missing ones are null."""
        compute, arrow = require("pyarrow.compute", "data"), require("pyarrow", "data")
        cells = self.cells[self.names.index(name)]
        if self.guarded:
            cells = compute.replace_substring_regex(cells, "^'", "")
        gone = compute.is_in(cells, arrow.array(missing, arrow.string()))
        return compute.if_else(gone, None, cells)

    def digests(self, without: Iterable[str]) -> list[str]:
        """From all other cells."""
        left = {*without}
        kept = [c for name, c in zip(self.header, self.cells, strict=True) if name not in left]
        if not kept:
            return super().digests(self.names)
        join = require("pyarrow.compute", "data").binary_join_element_wise
        return [digest(row) for row in join(*kept, "\x1f").to_pylist()]

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """The text as it was, but for the values that changed and the lines that are left out."""
        if not self.exact:
            raise InputError(f"{self.path}: as {self.encoding} it cannot be written again as it was; save it as UTF-8")
        write_packed(out, self.replace(changes, rows), self.packed)

    def replace(self, changes: Changes, rows: Sequence[int]) -> bytes:
        """The content of the file with these rows alone, and with other values in some columns."""
        lines, text = list(self._lines()), self.text
        if len(lines) != len(self) + 1:
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
        if self._unquote(before) != self.cells[at][row].as_py():
            raise InputError(f"{self.path}: {self.place(row)} has stray quotation marks; mend it")
        value = guard(value) if self.guarded else value
        quoted = before.startswith('"') or any(sign in value for sign in (self.mark, *'"\n\r'))
        value = '"' + value.replace('"', '""') + '"' if quoted else value
        return line[:start] + value + line[end:]

    @staticmethod
    def _unquote(field: str) -> str:
        return field[1:-1].replace('""', '"') if field.startswith('"') else field


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the search for cycles, which would go through a million new cells again and again."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def find_separator(text: str, start: int = 0) -> str:
    """What stands between the fields: the most frequent of tab, semicolon and comma in the first line."""
    found = re.compile(r"[^\r\n]*").match(text, start)
    first = re.sub(r'"[^"]*"', "", found[0] if found else "")
    return max("\t;,", key=first.count) if first else ","


class Json(Records):
    """A file of JSON: one object per line (.jsonl), or one list of objects (.json); packed or not."""

    names_rows = True

    def __init__(self, path: Path, columns: Columns) -> None:
        data, self.packed = read_packed(path)
        text, self.encoding, notes = decode_text(data, str(path), columns.encoding)
        self.text = text.removeprefix("\ufeff")
        self.is_list = self.text.lstrip()[:1] == "["
        self.lines = [] if self.is_list else [x for x in self.text.split("\n") if x.strip()]
        with name_errors(path, "list of objects, or one object per line"):
            rows = self._parse()
        super().__init__(rows, columns, str(path))
        self.path, self.folder = path, path.parent
        self.notes = tuple(notes)

    def _parse(self) -> list[Any]:
        rows = json.loads(self.text) if self.is_list else [*map(json.loads, self.lines)]
        one = rows[0] if len(rows) == 1 and isinstance(rows[0], dict) else {"": 0}
        if all(isinstance(value, list | dict) for value in one.values()):
            raise InputError("one object of columns; write one per row: pandas has orient='records'")
        return rows

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """Lines that do not change stay as they are; a list is written anew, indented if it was."""
        made: dict[int, dict[str, Any]] = {}
        for name, changed in changes.items():
            values = self.values(name)
            for row, value in self._as_values(name, values, changed).items():
                made.setdefault(row, dict(self.rows[row]))[name] = value
        ascii_only = self.text.isascii()
        if self.is_list:
            every = [made.get(row, self.rows[row]) for row in rows]
            indent = 2 if "\n" in self.text.strip() else None
            text = json.dumps(every, ensure_ascii=ascii_only, indent=indent) + "\n"
        else:
            dumped = {r: json.dumps(v, ensure_ascii=ascii_only) for r, v in made.items()}
            text = "\n".join([*(dumped.get(row, self.lines[row]) for row in rows), ""])
        write_packed(out, text.encode(self.encoding), self.packed)

    def texts(self, name: str) -> list[str]:
        """As texts; a list of tags is one text."""
        mark = self.columns.separator or SEPARATOR
        return [mark.join(map(as_text, v)) if isinstance(v, list) else as_text(v) for v in self.values(name)]

    def _as_values(self, name: str, values: list[Any], changed: Mapping[int, str]) -> dict[int, Any]:
        made = restore_types(values, self.texts(name), changed, self.where)
        mark = self.columns.separator or SEPARATOR
        return {
            row: split_tags(changed[row], mark) if isinstance(values[row], list) else value
            for row, value in made.items()
        }


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
