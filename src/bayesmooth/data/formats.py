"""The formats of tables, read and written: CSV and JSON, packed or not, Excel, Parquet, frames, Hugging Face.

What is not changed is written again as it was, text to the byte.
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

import numpy as np

from bayesmooth.data.labels import LABELS, SEPARATOR, split_tags
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Changes, Table, guard, make_cells, restore_types, unguard, write_folder
from bayesmooth.errors import InputError, require
from bayesmooth.files import name_errors, write_atomically

LONGEST = 2**31 - 1  # field of a CSV; by itself the library stops at 128 kB
AUDIT = ["id", "rank", "given"]  # how the table of an audit begins; its texts are guarded
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
        whole = data.decode(codec)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as {codec} ({error}); name its encoding with encoding (--encoding): Excel's is "
            "often cp1252, or save it as UTF-8"
        ) from None
    exact = codec == "utf-8" or whole.encode(codec) == data
    text = whole.removeprefix("\ufeff")
    mark = whole[: len(whole) - len(text)]

    def write(out: Path, new: str) -> None:
        if not exact:
            raise InputError(f"{path}: as {codec} it cannot be written again as it was; save it as UTF-8")
        try:
            made = (mark + new).encode(codec)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            raise InputError(f"{path}: its encoding {codec} has no {odd!r}; save the file as UTF-8 first") from None
        write_atomically(out, gzip.compress(made, mtime=0) if packed else made)

    return text, write


def read_csv(path: Path, columns: Columns | None = None) -> Table:
    """A CSV or TSV, of the user or of an audit. Blank lines are passed over, short ones filled up."""
    columns = columns or Columns()
    text, write_text = read_text(path, columns.encoding)
    first = re.sub(r'"[^"]*"', "", re.split(r"[\r\n]", text, maxsplit=1)[0])
    mark = max("\t;,", key=first.count) if first else ","
    header, rows = split_rows(path, text, mark)
    guarded, names = header[:3] == AUDIT, [name or f"Unnamed: {at}" for at, name in enumerate(header)]
    cells = zip(*rows.values(), strict=True) if rows else [()] * len(header)
    pairs = [(n, [*map(unguard, column)] if guarded else column) for n, column in zip(names, cells, strict=True)]
    numbers = [*rows]

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """The text as it was, but for the values that changed and the lines that are left out."""
        lines = split_lines(text, mark)
        starts = [start for start, _ in lines.values()] + [len(text)]
        places = sorted(((names.index(name), changed) for name, changed in changes.items()), reverse=True)
        parts = [text[: starts[1]]]
        for row in kept:
            start, end = lines[numbers[row]]
            line = text[start : starts[row + 2]]
            for at, changed in places:  # the last first, so that the others stay
                if row in changed:
                    begin, stop = split_fields(text[start:end], mark)[at]
                    value = guard(changed[row]) if guarded else changed[row]
                    if line[begin : begin + 1] == '"' or any(sign in value for sign in (mark, *'"\n\r')):
                        value = '"' + value.replace('"', '""') + '"'
                    line = line[:begin] + value + line[stop:]
            parts.append(line)
        write_text(out, "".join(parts))

    return Table(str(path), columns, make_cells(str(path), pairs), len(rows), write, path, path.parent, numbers)


def split_rows(path: Path, text: str, mark: str) -> tuple[list[str], dict[int, list[str]]]:
    """The header, and the rows that are not blank by their numbers in a spreadsheet, all as long as the header."""
    csv.field_size_limit(LONGEST)
    rows, number = dict[int, list[str]](), 0
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True), 1):
            if row:
                rows[number] = row
    except csv.Error:
        raise InputError(
            f"{path}: row {number + 1} has a stray quotation mark; double those inside of a field"
        ) from None
    if not rows:
        raise InputError(f"{path}: empty; its first line must name the columns")
    header = rows.pop(min(rows))
    for number, row in rows.items():
        if len(row) > len(header):
            raise InputError(
                f"{path}: row {number} has {len(row)} fields, the header {len(header)}; quote the field that has a "
                f"{mark!r} in it"
            )
        row += [""] * (len(header) - len(row))
    return header, rows


def match_field(mark: str) -> str:
    """The pattern of a field; one between quotation marks may have line breaks."""
    return rf'(?:"[^"]*(?:""[^"]*)*"|[^"{mark}\r\n][^{mark}\r\n]*|)'


def split_lines(text: str, mark: str) -> dict[int, tuple[int, int]]:
    """Where each row that is not blank begins and ends, by its number in a spreadsheet."""
    field = match_field(mark)
    lines = re.finditer(rf"({field}(?:{mark}{field})*)(?:\r\n|\r|\n|\Z)", text)
    return {number: matched.span(1) for number, matched in enumerate(lines, 1) if matched[1]}


def split_fields(line: str, mark: str) -> list[tuple[int, int]]:
    """Where each field of a row begins and ends."""
    fields = re.finditer(rf"(?:^|{mark})({match_field(mark)})", line)
    return [matched.span(1) for matched in fields]


def read_json(path: Path, columns: Columns) -> Table:
    """A file of JSON: one object per line (.jsonl), or one list of objects (.json)."""
    text, write_text = read_text(path, columns.encoding)
    is_list = text.lstrip()[:1] == "["
    lines = [] if is_list else [line for line in text.split("\n") if line.strip()]
    with name_errors(path, "list of objects, or one object per line"):
        rows = json.loads(text) if is_list else [*map(json.loads, lines)]
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
        ascii_only = text.isascii()
        if is_list:
            every = [made.get(row, rows[row]) for row in kept]
            indent = 2 if "\n" in text.strip() else None
            write_text(out, json.dumps(every, ensure_ascii=ascii_only, indent=indent) + "\n")
        else:
            dumped = {row: json.dumps(value, ensure_ascii=ascii_only) for row, value in made.items()}
            write_text(out, "".join(dumped.get(row, lines[row]) + "\n" for row in kept))

    table = Table(str(path), columns, cells, len(rows), write, path, path.parent)
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
        named = any(name is not None for name in frame.index.names)
        frame = frame.reset_index(drop=not named)
        pairs = [(name, frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    else:
        pairs = list(zip(frame.column_names, frame.columns, strict=True))
    return Table("table", columns, make_cells("table", pairs), len(frame))


def read_excel(path: Path, columns: Columns) -> Table:
    """The values of the first sheet of an .xlsx; formulas are read as what they gave when it was saved."""
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
        made = [[*row] for row in rows]
        for name, changed in changes.items():
            values = [row[places[name]] for row in rows]
            for row, value in restore_types(values, table.texts(name), changed, str(path)).items():
                made[row][places[name]] = value
        book = library.Workbook()
        for cells in [header, *(made[row] for row in kept)]:
            book.active.append(cells)
        for cell in (cell for cells in book.active for cell in cells if cell.data_type == "f"):
            cell.data_type = "s"
        write_atomically(out, book.save)

    pairs = [(name, [row[at] for row in rows]) for at, name in enumerate(header) if name is not None]
    numbers = [*every][1:]
    table = Table(str(path), columns, make_cells(str(path), pairs), len(rows), write, path, path.parent, numbers)
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
    table = Table(str(path), columns, cells, len(data), write, path, path.parent)
    return table


def read_hugging_face(what: Any, columns: Columns) -> Table:
    """A data set of Hugging Face, in memory or as `save_to_disk` wrote it; of several splits, the training split, else
    the first."""
    library = require("datasets", "huggingface")
    path = what if isinstance(what, Path) else None
    where = str(path or "data set")
    with name_errors(where, "data set"):
        whole = library.load_from_disk(str(path)) if path else what
        splits = list(whole) if isinstance(whole, dict) else []
        split = "train" if "train" in splits else "".join(splits[:1])
        data = whole[split] if splits else whole
        if isinstance(data, library.IterableDataset):
            data = library.Dataset.from_list(list(data), features=data.features)
        rows = data.with_format("arrow")[:]

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """A folder of the same layout."""
        changed = library.table.InMemoryTable(change_arrow(table, rows, changes, kept))
        made: Any = library.Dataset(changed, info=data.info.copy())
        if split:
            made = library.DatasetDict({**whole, split: made})
        library.disable_progress_bars()
        write_folder(out, path, lambda beside: made.save_to_disk(str(beside)))

    cells = make_cells(where, zip(rows.column_names, rows.columns, strict=True))
    table = Table(where, columns, cells, len(rows), write, path, (path or Path()) / split)
    if len(splits) > 1:
        table.notes = (Note(Kind.SPLIT, f"this is the split {split!r}, of {', '.join(splits)}"),)
    kinds = [
        data.features[name] for name in ((columns.label,) if columns.label else LABELS) if name in rows.column_names
    ]
    names = next((kind.names for kind in kinds if getattr(kind, "names", None)), None)
    if names:
        table.class_names, table.numbered = tuple(map(str, names)), True
    return table


def change_arrow(table: Table, data: Any, changes: Changes, rows: Sequence[int]) -> Any:
    """Rows of an Arrow table with other values, in the type they had: copied from a row that has them, or made."""
    arrow = require("pyarrow", "data")
    for name, changed in changes.items():
        at = data.column_names.index(name)
        field, column = data.schema.field(at), data[name]
        row_of = {text: row for row, text in enumerate(table.texts(name))}
        new = [text for text in dict.fromkeys(changed.values()) if text not in row_of]
        row_of |= {text: len(data) + k for k, text in enumerate(new)}
        index = np.arange(len(data))
        index[list(changed)] = [row_of[text] for text in changed.values()]
        if new:
            inner = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
            try:
                made = arrow.array(new, arrow.string()).cast(inner)
            except (ValueError, TypeError, arrow.ArrowException):
                raise InputError(f"{table.where}: the labels in {name!r} are {inner}; {new[0]!r} is not one") from None
            made = made if inner == field.type else made.dictionary_encode().cast(field.type)
            column = arrow.chunked_array([*column.chunks, made], field.type).unify_dictionaries()
        data = data.set_column(at, field, column.take(arrow.array(index)))
    return data if len(rows) == len(data) else data.take(arrow.array(rows, arrow.int64()))
