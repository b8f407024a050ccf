"""The formats of tables, read and written: CSV and JSON, packed or not, Excel, Parquet, frames, Hugging Face.

Unchanged values are written again as they were, text to the byte.
"""

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmooth.data.labels import LABELS
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Changes, Table, guard, make_cells, unguard, write_folder
from bayesmooth.errors import InputError, require
from bayesmooth.files import name_errors, write_atomically

LONGEST = 2**31 - 1  # field of a CSV; by itself the library stops at 128 kB
AUDIT = ["id", "rank", "given"]  # the first columns of the table of an audit; its texts are guarded
BY_MARK = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def read_text(path: Path, encoding: str | None) -> tuple[str, Callable[[Path, str], None]]:
    """The content of a text file, packed or not, and a function that writes another text as this one is written.

    Without `encoding` it is UTF-8, or UTF-16 with a mark. No other encoding is guessed: letters that are read wrong
    would be in every result.
    """
    with name_errors(path, "file"):
        data = path.read_bytes()
        if packed := data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    codec = encoding or BY_MARK.get(data[:2], "utf-8")
    try:
        decoded = data.decode(codec)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as {codec} ({error}); name its encoding with encoding (--encoding): Excel's is "
            "often cp1252, or save it as UTF-8"
        ) from None
    text = decoded.removeprefix("\ufeff")
    mark = decoded[: len(decoded) - len(text)]
    exact = codec == "utf-8" or decoded.encode(codec) == data

    def write(out: Path, new: str) -> None:
        if not exact:
            raise InputError(f"{path}: as {codec} it cannot be written again as it was; save it as UTF-8")
        try:
            encoded = (mark + new).encode(codec)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            raise InputError(f"{path}: its encoding {codec} has no {odd!r}; save the file as UTF-8 first") from None
        write_atomically(out, gzip.compress(encoded, mtime=0) if packed else encoded)

    return text, write


def read_csv(path: Path, columns: Columns | None = None) -> Table:
    """A CSV or TSV, of the user or of an audit. Blank lines are passed over, short ones filled up."""
    columns = columns or Columns()
    text, write_text = read_text(path, columns.encoding)
    first = re.split(r"[\r\n]", re.sub(r'"[^"]*"', "", text.lstrip("\r\n")[: 2**16]), maxsplit=1)[0]
    mark = max("\t;,|", key=first.count) if first else ","
    (_, header, head), *every = split_rows(path, text, mark)
    numbers, rows, lines = ([row[k] for row in every] for k in range(3))
    guarded, names = header[:3] == AUDIT, [name.strip(" ") or f"Unnamed: {at}" for at, name in enumerate(header)]
    values = zip(*rows, strict=True) if rows else [()] * len(header)
    pairs = [(n, [*map(unguard, column)] if guarded else column) for n, column in zip(names, values, strict=True)]

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """The text as it was, but for the values that changed and the lines that are left out."""
        parts = [head]
        for row in kept:
            line = lines[row]
            if new := {names.index(name): changed[row] for name, changed in changes.items() if row in changed}:
                body = line.rstrip("\r\n")
                fields = re.findall(rf'(?:^|{re.escape(mark)})("(?:[^"]|"")*"|[^{mark}]*)', body)
                fields += [""] * (max(new) + 1 - len(fields))  # of a short line
                for at, text in new.items():
                    value = guard(text) if guarded else text
                    if fields[at][:1] == '"' or any(sign in value for sign in (mark, *'"\n\r')):
                        value = '"' + value.replace('"', '""') + '"'
                    fields[at] = value
                line = mark.join(fields) + line[len(body) :]
            parts.append(line)
        write_text(out, "".join(parts))

    return Table(str(path), columns, make_cells(str(path), pairs), len(rows), write, path, numbers)


def split_rows(path: Path, text: str, mark: str) -> list[tuple[Any, ...]]:
    """The rows that are not blank, the header first and all as long as it: each with its number in a spreadsheet and
    its text, to which blank lines after it belong."""
    csv.field_size_limit(LONGEST)
    lines, number, end = list(io.StringIO(text, newline="")), 0, 0
    rows, starts, reader = list[tuple[int, list[str]]](), list[int](), csv.reader(lines, delimiter=mark, strict=True)
    try:
        for number, row in enumerate(reader, 1):
            if row:
                rows.append((number, row))
                starts.append(end if len(rows) > 1 else 0)
            end = reader.line_num
    except csv.Error:
        raise InputError(f"{path}: row {number + 1} has a stray quotation mark; double those in a field") from None
    if not rows:
        raise InputError(f"{path}: empty; its first line must name the columns")
    width = len(rows[0][1])
    for number, row in rows:
        if len(row) > width:
            raise InputError(
                f"{path}: row {number} has {len(row)} fields, the header {width}; quote the field with a {mark!r}"
            )
        row += [""] * (width - len(row))
    ends = [*starts[1:], len(lines)]
    return [(n, row, "".join(lines[a:b])) for (n, row), a, b in zip(rows, starts, ends, strict=True)]


def read_json_table(path: Path, columns: Columns) -> Table:
    """A file of JSON: one object per line (.jsonl), or one list of objects (.json)."""
    text, write_text = read_text(path, columns.encoding)
    with name_errors(path, "list of objects, or one object per line"):
        lines = (line for line in text.split("\n") if line.strip())
        rows = json.loads(text) if text.lstrip()[:1] == "[" else [*map(json.loads, lines)]
        if len(rows) == 1 and isinstance(rows[0], dict) and all(isinstance(v, list | dict) for v in rows[0].values()):
            raise InputError("one object of columns; write one per row: pandas has orient='records'")

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """The text as it was, but for the objects that change, indented if they were, and those that are left out."""
        new_rows: dict[int, dict[str, Any]] = {}
        for name, changed in changes.items():
            values = table.change(name, changed, [row.get(name) for row in rows])
            for row in changed:
                new_rows.setdefault(row, {**rows[row]})[name] = values[row]
        indent, decode = re.match(r"\s*\[\s*\n([ \t]+)", text), json.JSONDecoder().raw_decode
        end, parts = 0, list[tuple[str, str]]()
        for _ in rows:  # the text before an object, and that of the object
            before, start = end, text.index("{", end)
            _, end = decode(text, start)
            parts.append((text[before:start], text[start:end]))
        for row, value in new_rows.items():
            dumped = json.dumps([value], ensure_ascii=text.isascii(), indent=indent and indent[1])
            parts[row] = (parts[row][0], dumped[1:-1].strip())
        body = [(parts[row][0] if at else "") + parts[row][1] for at, row in enumerate(kept)]
        write_text(out, parts[0][0] + "".join(body) + text[end:])

    table = Table(str(path), columns, make_records(str(path), rows), len(rows), write, path)
    return table


def make_records(where: str, rows: Sequence[Any]) -> dict[str, Any]:
    """A list of dicts, one per row, as columns."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"{where}: row {number} is {str(row)[:40]!r}; must be an object with names")
    names = dict.fromkeys(name for row in rows for name in row)
    return make_cells(where, [(name, [row.get(name) for row in rows]) for name in names])


def read_frame(frame: Any, columns: Columns) -> Table:
    """A frame in memory; a named index of pandas becomes a column."""
    for convert in ("collect", "to_arrow"):
        frame = getattr(frame, convert)() if hasattr(frame, convert) else frame
    if hasattr(frame, "index"):
        named = any(name is not None and name not in frame.columns for name in frame.index.names)
        frame = frame.reset_index(drop=not named, allow_duplicates=True)
        pairs = [(name, frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    else:
        pairs = list(zip(frame.column_names, frame.columns, strict=True))
    return Table("table", columns, make_cells("table", pairs), len(frame))


def read_excel(path: Path, columns: Columns) -> Table:
    """The values of the first sheet of an .xlsx; a formula is read as its value when the file was saved."""
    library = require("openpyxl", "data")
    with name_errors(path, "workbook"):
        sheet = library.load_workbook(path, data_only=True).worksheets[0]
        every = {number: row for number, row in enumerate(sheet.values, 1) if any(cell is not None for cell in row)}
    if not every:
        raise InputError(f"{path}: empty; its first row must name the columns")
    header, *rows = every.values()
    places = {str(name): at for at, name in enumerate(header) if name is not None}

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """A workbook with the values of these rows, where no text becomes a formula."""
        new_rows = [[*row] for row in rows]
        for name, changed in changes.items():
            values = table.change(name, changed, [row[places[name]] for row in rows])
            for row in changed:
                new_rows[row][places[name]] = values[row]
        book = library.Workbook()
        for cells in [header, *(new_rows[row] for row in kept)]:
            book.active.append(cells)
        for cell in (cell for cells in book.active for cell in cells if cell.data_type == "f"):
            cell.data_type = "s"
        write_atomically(out, book.save)

    pairs = [(name, [row[at] for row in rows]) for at, name in enumerate(header) if name is not None]
    table = Table(str(path), columns, make_cells(str(path), pairs), len(rows), write, path, [*every][1:])
    return table


def read_parquet(path: Path, columns: Columns) -> Table:
    """A Parquet file."""
    parquet = require("pyarrow.parquet", "data")
    with name_errors(path, "table"):
        data = parquet.ParquetFile(path).read()

    def write(out: Path, changes: Changes, rows: list[int]) -> None:
        changed = change_arrow(table, data, changes, rows)
        write_atomically(out, lambda beside: parquet.write_table(changed, beside))

    cells = make_cells(str(path), zip(data.column_names, data.columns, strict=True))
    table = Table(str(path), columns, cells, len(data), write, path)
    return table


def read_hugging_face(what: Any, columns: Columns) -> Table:
    """A data set of Hugging Face, in memory or as `save_to_disk` wrote it; of several splits, the training split, else
    the first."""
    library = require("datasets", "huggingface")
    path = what if isinstance(what, Path) else None
    where = str(path or "data set")
    with name_errors(where, "data set"):
        content = library.load_from_disk(str(path)) if path else what
        splits = list(content) if isinstance(content, dict) else []
        split = "train" if "train" in splits else "".join(splits[:1])
        data = content[split] if splits else content
        if isinstance(data, library.IterableDataset):
            data = library.Dataset.from_list(list(data), features=data.features)
        rows = data.with_format("arrow")[:]

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """A folder of the same layout."""
        changed = library.table.InMemoryTable(change_arrow(table, rows, changes, kept))
        result: Any = library.Dataset(changed, info=data.info.copy())
        if split:
            result = library.DatasetDict({**content, split: result})
        library.disable_progress_bars()
        write_folder(out, path, lambda beside: result.save_to_disk(str(beside)))

    cells = make_cells(where, zip(rows.column_names, rows.columns, strict=True))
    table = Table(where, columns, cells, len(rows), write, path)
    if len(splits) > 1:
        table.notes = (Note(Kind.SPLIT, f"this is the split {split!r}, of {', '.join(splits)}"),)
    label = columns.label or next((name for name in LABELS if name in cells), "")
    if names := getattr(data.features.get(label), "names", None):
        table.class_names, table.numbered = tuple(map(str, names)), True
    return table


def change_arrow(table: Table, data: Any, changes: Changes, rows: Sequence[int]) -> Any:
    """Rows of an Arrow table with other values, in the type they had; categories keep their order."""
    arrow = require("pyarrow", "data")
    for name, changed in changes.items():
        at = data.column_names.index(name)
        field, column = data.schema.field(at), data[name].unify_dictionaries()
        old = column.chunk(0).dictionary if arrow.types.is_dictionary(field.type) else arrow.array([], field.type)
        values = table.change(name, changed)
        try:
            array = arrow.concat_arrays([old, arrow.array(values, old.type)])
            array = array if old.type == field.type else array.dictionary_encode().cast(field.type)
        except (ValueError, TypeError, OverflowError, arrow.ArrowException):
            odd = min({*changed.values()} - {*table.texts(name)})
            raise InputError(f"{table.where}: the labels in {name!r} are {field.type}; {odd!r} is not one") from None
        data = data.set_column(at, field, array[len(old) :])
    return data if len(rows) == len(data) else data.take(arrow.array(rows, arrow.int64()))
