"""Tables of data frames, spreadsheets, Parquet files and Hugging Face: each is read to a `Table`, and written again."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesmooth.data.labels import LABELS
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Changes, Table, make_cells, restore_types
from bayesmooth.errors import InputError
from bayesmooth.files import make_folder, name_errors, replace_with
from bayesmooth.optional import require


def is_frame(what: Any) -> bool:
    """Whether it is a frame of pandas or polars, lazy or not, or a table of Arrow; no library is loaded to find out."""
    kind = type(what)
    return kind.__name__.endswith(("DataFrame", "LazyFrame")) or (
        kind.__name__ == "Table" and kind.__module__.startswith("pyarrow")
    )


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
    """The first sheet of an .xlsx; what openpyxl does not keep (pictures, charts) is lost in writing."""
    library = require("openpyxl", extra="data")
    with name_errors(path, "workbook"):
        sheet = library.load_workbook(path, data_only=True).worksheets[0]  # values, as they were computed
        every = [list(row) for row in sheet.iter_rows(values_only=True)]
    numbers = [at + 1 for at, row in enumerate(every) if any(value is not None for value in row)]
    if not numbers:
        raise InputError(f"{path}: empty; its first row must name the columns")
    header, *rows = (every[number - 1] for number in numbers)
    places = {str(name): at for at, name in enumerate(header) if name is not None}
    named = [(header[at], [row[at] for row in rows]) for at in range(len(header)) if header[at] is not None]

    def write(out: Path, changes: Changes, kept: list[int]) -> None:
        """The workbook with other values in some cells, and without some rows."""
        book = library.load_workbook(path)
        sheet = book.worksheets[0]
        for name, changed in changes.items():
            values = [row[places[name]] for row in rows]
            for row, value in restore_types(values, table.texts(name), changed, str(path)).items():
                sheet.cell(numbers[row + 1], places[name] + 1).value = value
        for row in sorted({*range(len(rows))} - {*kept}, reverse=True):
            sheet.delete_rows(numbers[row + 1])
        replace_with(out, book.save)

    table = Table(str(path), columns, make_cells(str(path), named), len(rows), write, path, path.parent, numbers[1:])
    return table


def read_parquet(path: Path, columns: Columns) -> Table:
    """A Parquet file."""
    parquet = require("pyarrow.parquet", "data")
    with name_errors(path, "table"):
        data = parquet.ParquetFile(path).read()

    def write(out: Path, changes: Changes, rows: list[int]) -> None:
        changed = change_arrow(table, data, changes, rows)
        replace_with(out, lambda beside: parquet.write_table(changed, beside))

    cells = make_cells(str(path), zip(data.column_names, data.columns, strict=True))
    table = Table(str(path), columns, cells, len(data), write, path, path.parent)
    return table


def read_parquet_folder(path: Path, columns: Columns) -> Table:
    """A table in several files, which keep their names, their rows and their own columns."""
    parts = [read_parquet(file, columns) for file in sorted(path.glob("*.parquet"))]
    named = [part.id_column is not None for part in parts]
    if any(named) and not all(named):
        odd = parts[named.index(False)].where
        raise InputError(f"{odd}: has no column of ids, and others beside it have; add one")
    starts = [0, *np.cumsum([len(part) for part in parts]).tolist()]

    def write(out: Path, changes: Changes, rows: list[int]) -> None:
        """A folder of files with the same names."""

        def fill(beside: Path) -> None:
            for part, start, end in zip(parts, starts, starts[1:], strict=False):
                own = {
                    name: {row - start: text for row, text in some.items() if start <= row < end}
                    for name, some in changes.items()
                }
                assert part.write is not None
                part.write(beside / Path(part.where).name, own, [row - start for row in rows if start <= row < end])

        write_folder(out, path, fill)

    names = dict.fromkeys(name for part in parts for name in part.cells)
    cells = make_cells(str(path), [(name, _join(parts, name)) for name in names])
    return Table(str(path), columns, cells, starts[-1], write, path, path)


def _join(parts: Sequence[Table], name: str) -> Any:
    """A column of all files; those without it have None."""
    arrow = require("pyarrow", "data")
    there = [part.cells[name] for part in parts if name in part.cells]
    if len(there) == len(parts) and all(cells.type == there[0].type for cells in there):
        return arrow.chunked_array([chunk for cells in there for chunk in cells.chunks], there[0].type)
    return [v for part in parts for v in (part.values(name) if name in part.cells else [None] * len(part))]


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
        others = [whole[name] for name in splits if name != split]
        table.join_others = lambda: library.concatenate_datasets(others)
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
            chunks = [*column.chunks, _make_arrow(new, field.type, f"{table.where}: the labels in {name!r}")]
            column = arrow.chunked_array(chunks, field.type).unify_dictionaries()
        data = data.set_column(at, field, column.take(arrow.array(index)))
    return data if len(rows) == len(data) else data.take(arrow.array(rows, arrow.int64()))


def _make_arrow(texts: Sequence[str], kind: Any, what: str) -> Any:
    arrow = require("pyarrow", "data")
    try:
        inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
        made = arrow.array(texts, arrow.string()).cast(inner)
        return made.dictionary_encode().cast(kind) if inner != kind else made
    except (ValueError, TypeError, arrow.ArrowException):
        raise InputError(f"{what} are {kind}; {texts[0]!r} is not one") from None


def write_folder(out: Path, source: Path | None, fill: Callable[[Path], object]) -> None:
    """Make a folder in a place that is free, and not inside of the `source` that is read."""
    place = Path(os.path.realpath(out))
    if source is not None and place.is_relative_to(source.resolve()):
        raise InputError(f"{out}: lies in the folder that is read; name one outside of it")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out}: is there already; name a new folder")
    make_folder(place, fill)
