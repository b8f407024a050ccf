"""Tables that are text: CSV and JSON, packed by gzip or not.

What is not changed is written again to the byte.
"""

import codecs
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesmooth.data.labels import SEPARATOR, split_tags
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Changes, Table, guard, make_cells, restore_types
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors, write_atomically
from bayesmooth.optional import require

AUDIT = ["id", "rank", "given"]  # how the table of an audit begins; its texts are guarded
MARKS = "“”„‘’‚«»–—…•€£§°©®™ \u00a0"  # that stand around words
LOOKED_AT = 1 << 20  # bytes that decide on an encoding
BY_MARK = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True)
class TextFile:
    """The content of a file, and how to write such a file again."""

    path: Path
    text: str
    """Without a byte order mark."""
    codec: str
    mark: str
    """The byte order mark, where the file has one."""
    packed: bool
    exact: bool
    """Whether the text in this codec is the file again."""
    notes: tuple[Note, ...]

    def write(self, out: Path, text: str) -> None:
        """Another text in the same encoding, packed if this one was."""
        if not self.exact:
            raise InputError(f"{self.path}: as {self.codec} it cannot be written again as it was; save it as UTF-8")
        try:
            data = (self.mark + text).encode(self.codec)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            raise InputError(
                f"{self.path}: its encoding {self.codec} has no {odd!r}; save the file as UTF-8 first"
            ) from None
        write_atomically(out, gzip.compress(data, mtime=0) if self.packed else data)


def read_text(path: Path, encoding: str | None) -> TextFile:
    """A text file, unpacked.

    Without `encoding` it is UTF-8, UTF-16 with a mark, or cp1252, in which Excel saves a CSV, if that makes a Western
    text. The rest is refused: letters read in a wrong encoding would be in every result.
    """
    with name_errors(path, "file"):
        data = path.read_bytes()
        if packed := data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    codec = encoding or _detect_codec(data, path)
    try:
        text = data.decode(codec)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as {codec} ({error}); name its encoding with encoding (--encoding)"
        ) from None
    notes: tuple[Note, ...] = ()
    if encoding is None and codec == "cp1252":
        words = f"{path} is not UTF-8 and was read as cp1252; `encoding` (--encoding) names another"
        notes = (Note(Kind.ENCODING, words),)
    exact = codec == "utf-8" or text.encode(codec) == data
    bare = text.removeprefix("\ufeff")
    return TextFile(path, bare, codec, text[: len(text) - len(bare)], packed, exact, notes)


def _detect_codec(data: bytes, path: Path) -> str:
    if codec := BY_MARK.get(data[:2]):
        return codec
    try:
        data.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        if is_western(data[:LOOKED_AT]):
            return "cp1252"
    raise InputError(
        f"{path}: neither UTF-8 nor cp1252; name its encoding with encoding (--encoding), or save the file as UTF-8"
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


@dataclass(frozen=True)
class CsvText:
    """The text of a CSV, and what stands between its fields: a tab, a semicolon or a comma."""

    file: TextFile
    mark: str

    @property
    def field(self) -> str:
        """The pattern of a field; one between quotation marks may have line breaks."""
        return rf'(?:"[^"]*(?:""[^"]*)*"|[^"{self.mark}\r\n][^{self.mark}\r\n]*|)'

    def split_lines(self) -> dict[int, tuple[int, int]]:
        """Where each row that is not blank begins and ends, by its number in a spreadsheet."""
        line = re.compile(rf"({self.field}(?:{self.mark}{self.field})*)(\r\n|\r|\n|\Z)")
        rows, at, number, text = dict[int, tuple[int, int]](), 0, 0, self.file.text
        while at < len(text):
            number, matched = number + 1, line.match(text, at)
            if matched is None:
                raise InputError(
                    f"{self.file.path}: row {number} has a stray quotation mark; double those inside of a field"
                )
            if matched[1].strip(" "):
                rows[number] = matched.span(1)
            at = matched.end()
        return rows

    def split_fields(self, start: int, end: int) -> list[tuple[int, int]]:
        """Where each field of a row begins and ends."""
        pattern, spans = re.compile(self.field), list[tuple[int, int]]()
        while start <= end and (matched := pattern.match(self.file.text, start, end)) is not None:
            spans.append(matched.span())
            start = matched.end() + 1
        return spans

    def read_field(self, start: int, end: int) -> str:
        """What a field says."""
        field = self.file.text[start:end]
        return field[1:-1].replace('""', '"') if field.startswith('"') else field

    def read_regular(self) -> tuple[list[str], list[Any], Sequence[int]] | None:
        """The header, the columns and the numbers of the rows, by Arrow, which is fast; None where a line is odd: with
        a stray quotation mark, blank, or of another length."""
        text, m = self.file.text, self.mark
        quoted = rf'"(?<![^{m}\r\n]")[^"]*(?:""[^"]*)*"(?=[{m}\r\n]|\Z)'
        bare = re.sub(quoted, "", text) if '"' in text else text
        if any(sign in bare for sign in ('"', "\n\n", "\n\r", "\r\r")) or m not in bare:
            return None
        arrow, reader = require("pyarrow", "data"), require("pyarrow.csv", "data")
        # Arrow's own memory: a thread of Arrow that frees Python's while the process ends would abort it.
        held = arrow.BufferOutputStream()
        held.write(text.encode())
        data = held.getvalue()
        names = [f"f{at}" for at in range(re.split(r"[\r\n]", bare, maxsplit=1)[0].count(m) + 1)]
        try:
            table = reader.read_csv(
                arrow.BufferReader(data),
                read_options=reader.ReadOptions(use_threads=False, block_size=data.size, column_names=names),
                parse_options=reader.ParseOptions(delimiter=m, newlines_in_values=True, ignore_empty_lines=False),
                convert_options=reader.ConvertOptions(column_types=dict.fromkeys(names, arrow.string())),
            )
        except (arrow.ArrowInvalid, OverflowError):
            return None
        header = [column[0].as_py() for column in table.columns]
        return header, [column[1:] for column in table.columns], range(2, len(table) + 1)

    def read_irregular(self) -> tuple[list[str], list[Any], Sequence[int]]:
        """The same, line by line; short ones are filled up."""
        lines = self.split_lines()
        rows = {n: [self.read_field(*span) for span in self.split_fields(*line)] for n, line in lines.items()}
        if not rows:
            raise InputError(f"{self.file.path}: empty; its first line must name the columns")
        header = rows.pop(min(rows))
        for number, row in rows.items():
            if len(row) > len(header):
                raise InputError(
                    f"{self.file.path}: row {number} has {len(row)} fields, the header {len(header)}; quote the field "
                    f"that has a {self.mark!r} in it"
                )
            row += [""] * (len(header) - len(row))
        arrow = require("pyarrow", "data")
        columns = zip(*rows.values(), strict=True) if rows else [()] * len(header)
        return header, [arrow.chunked_array([arrow.array(column, "string")]) for column in columns], [*rows]


def read_csv(path: Path, columns: Columns | None = None) -> Table:
    """A CSV or TSV, of the user or of an audit."""
    columns = columns or Columns()
    file = read_text(path, columns.encoding)
    first = re.sub(r'"[^"]*"', "", re.split(r"[\r\n]", file.text, maxsplit=1)[0])
    csv = CsvText(file, max("\t;,", key=first.count) if first else ",")
    header, cells, numbers = csv.read_regular() or csv.read_irregular()
    names = [name or f"Unnamed: {at}" for at, name in enumerate(header)]
    guarded = header[:3] == AUDIT
    if guarded:
        compute = require("pyarrow.compute", "data")
        cells = [compute.replace_substring_regex(column, "^'", "") for column in cells]

    def write(out: Path, changes: Changes, rows: list[int]) -> None:
        """The text as it was, but for the values that changed and the lines that are left out."""
        lines, text = csv.split_lines(), file.text
        starts = [start for start, _ in lines.values()] + [len(text)]
        places = sorted(((names.index(name), changed) for name, changed in changes.items()), reverse=True)
        parts = [text[: starts[1]]]
        for row in rows:
            start, end = lines[numbers[row]]
            line = text[start : starts[row + 2]]
            for at, changed in places:  # the last first, so that the others stay
                if row in changed:
                    begin, stop = csv.split_fields(start, end)[at]
                    value = guard(changed[row]) if guarded else changed[row]
                    if text[begin : begin + 1] == '"' or any(sign in value for sign in (csv.mark, *'"\n\r')):
                        value = '"' + value.replace('"', '""') + '"'
                    line = line[: begin - start] + value + line[stop - start :]
            parts.append(line)
        file.write(out, "".join(parts))

    made = make_cells(str(path), list(zip(names, cells, strict=True)))
    return Table(str(path), columns, made, len(numbers), write, path, path.parent, numbers, file.notes)


def read_json(path: Path, columns: Columns) -> Table:
    """A file of JSON: one object per line (.jsonl), or one list of objects (.json)."""
    file = read_text(path, columns.encoding)
    is_list = file.text.lstrip()[:1] == "["
    lines = [] if is_list else [line for line in file.text.split("\n") if line.strip()]
    with name_errors(path, "list of objects, or one object per line"):
        rows = json.loads(file.text) if is_list else [*map(json.loads, lines)]
        if len(rows) == 1 and isinstance(rows[0], dict) and all(isinstance(v, list | dict) for v in rows[0].values()):
            raise InputError("one object of columns; write one per row: pandas has orient='records'")
    cells = make_records(str(path), rows)
    separator = columns.separator or SEPARATOR

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """Lines that do not change stay as they are; a list is written anew, indented if it was."""
        made: dict[int, dict[str, Any]] = {}
        for name, changed in changes.items():
            values = [row.get(name) for row in rows]
            for row, value in restore_types(values, table.texts(name), changed, str(path)).items():
                tags = isinstance(values[row], list)
                made.setdefault(row, {**rows[row]})[name] = split_tags(changed[row], separator) if tags else value
        ascii_only = file.text.isascii()
        if is_list:
            every = [made.get(row, rows[row]) for row in kept]
            indent = 2 if "\n" in file.text.strip() else None
            file.write(out, json.dumps(every, ensure_ascii=ascii_only, indent=indent) + "\n")
        else:
            dumped = {row: json.dumps(value, ensure_ascii=ascii_only) for row, value in made.items()}
            file.write(out, "".join(dumped.get(row, lines[row]) + "\n" for row in kept))

    table = Table(str(path), columns, cells, len(rows), write, path, path.parent, notes=file.notes)
    return table


def make_records(where: str, rows: Sequence[Any]) -> dict[str, Any]:
    """A list of dicts, one per row, as columns."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"{where}: row {number} is {str(row)[:40]!r}; must be an object with names")
    names = dict.fromkeys(name for row in rows for name in row)
    return make_cells(where, [(name, [row.get(name) for row in rows]) for name in names])
