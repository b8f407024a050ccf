"""The door: whatever a data set is kept in becomes a `Source`. No other code looks at a suffix or a row's identity.

Frames, spreadsheets, Parquet files and data sets of Hugging Face are read here, and written again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bayesmooth.data.arrays import open_npy, open_npz, read_arrays, read_torch
from bayesmooth.data.labels import LABELS, Labels, as_text
from bayesmooth.data.pictures import read_folder
from bayesmooth.data.source import Columns, Kind, Note, Source, take
from bayesmooth.data.tables import Changes, Table, as_arrow, make_cells, read_labels, restore_types, write_folder
from bayesmooth.data.textfiles import make_records, read_csv, read_json
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors, replace_with
from bayesmooth.optional import require

RUN = "recipe.toml"  # what makes a folder a run
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
NO_COLUMNS = Columns()
NUMBERS = ("int", "uin", "hal", "flo", "dou", "boo")  # how types of Arrow begin


def open_source(
    what: Any, columns: Columns = NO_COLUMNS, labels: Any = None, *, labelled: bool = True, predicted: bool = False
) -> Source:
    """A file, a folder, a data frame, a data set or arrays as a `Source`; a `Source` as it is.

    `labels` are those of rows, texts or pictures in memory (classes, sets of tags, N × T of 0 and 1), or a .npy beside
    a .npy of rows. Without labels (`labelled=False`) all have the first class. `predicted`: the rows are probabilities
    of the classes.
    """
    if isinstance(what, Source):
        return what
    if isinstance(what, str | Path):
        return read_table(_open_path(Path(what), columns, labels, labelled), labelled, predicted)
    if labels is None:
        return read_table(_open_object(what, columns), labelled, predicted)
    if is_frame(what) and not predicted:
        frame = read_frame(what, columns)
        if any(str(cells.type)[:3] not in NUMBERS for cells in frame.cells.values()):
            cells = {**frame.cells, "label": as_arrow("label", list(labels))}
            return read_table(replace(frame, cells=cells, columns=replace(columns, label="label")))
    return read_table(read_arrays(what, labels, columns, predicted), True, predicted)


def is_source(path: Path) -> bool:
    """Whether it looks like data, and not like a recipe or a run."""
    if path.is_dir():
        return not (path / RUN).is_file()
    return path.is_file() and get_kind(path) in FILES


def get_kind(path: Path) -> str:
    """The suffix that says what a file holds, packed or not."""
    kind = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if kind == ".gz" and inner in TEXTS else kind


def _open_object(what: Any, columns: Columns) -> Table:
    """An object that holds its own labels."""
    if is_frame(what):
        return read_frame(what, columns)
    if type(what).__module__.split(".")[0] == "datasets":
        return read_hugging_face(what, columns)
    if isinstance(what, list | tuple) and what and isinstance(what[0], dict):
        return Table("rows", columns, make_records("rows", what), len(what))
    if isinstance(what, Dataset | DataLoader):
        return read_torch(what, columns)
    raise InputError(
        f"a {type(what).__name__}: no data; give a path, a data frame, a data set, a Source, or arrays with labels"
    )


def _open_path(path: Path, columns: Columns, labels: Any, labelled: bool) -> Table:
    if labels is not None and (get_kind(path) != ".npy" or not isinstance(labels, str | Path)):
        raise InputError(f"{path}: has its own labels; labels (--labels) is a .npy beside a .npy")
    if path.is_dir():
        if (path / RUN).is_file():
            raise InputError(f"{path}: a run; it is audited by Run.open(path).audit()")
        if any((path / name).is_file() for name in HUGGING_FACE):
            return read_hugging_face(path, columns)
        return read_folder(path, columns, labelled)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with labels, or a folder of pictures")
    kind = get_kind(path)
    if kind not in FILES:
        raise InputError(f"{path}: unknown kind of file; must be one of {', '.join(FILES)}, or a folder")
    if kind == ".npy":
        return open_npy(path, columns, None if labels is None else Path(labels), labelled)
    table: Table = FILES[kind](path, columns)
    return table


def read_table(table: Table, labelled: bool = True, predicted: bool = False) -> Source:
    """The rows that have a label; their inputs are those of arrays, else empty: `prepare` chooses them."""
    if not len(table):
        raise InputError(f"{table.where}: no rows; give a table with some")
    ids, notes, clean = table.ids(labelled), list(table.notes), None
    kept: Sequence[int] = range(len(table))
    if not labelled:
        names = table.columns.class_names or ("",)
        labels = Labels(torch.zeros(len(table), dtype=torch.int64, device="cpu"), tuple(names))
    elif table.given is not None:
        labels = table.given
    else:
        kept, labels, clean = read_labels(table, predicted)
    if len(kept) < len(table) and table.columns.annotator is None:
        gone = sorted({*range(len(table))} - {*kept})
        text = f"{len(gone)} of {len(table)} rows have no label and are left out"
        notes.append(Note(Kind.MISSING_LABEL, text, tuple(ids[row] for row in gone)))
    whole = len(kept) == len(table)
    at, path = torch.tensor(kept, dtype=torch.int64, device="cpu"), Path(table.where)
    is_folder = table.path is not None and table.path.is_dir()
    empty = torch.empty(len(kept), 0, dtype=torch.float32, device="cpu")
    return Source(
        empty if table.inputs is None else table.inputs if whole else take(table.inputs, at),
        labels,
        clean,
        tuple(ids[i] for i in kept),
        as_text(path.name if is_folder else path.name.removesuffix(".gz").removesuffix(get_kind(path))),
        meta={name: [texts[i] for i in kept] for name, texts in table.meta.items()},
        pictures=table.pictures if table.pictures is None or whole else take(table.pictures, at),
        predicted=None if table.predicted is None else table.predicted[at],
        notes=tuple(notes),
        table=table,
        rows=at,
    )


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


FILES: dict[str, Any] = {".csv": read_csv, ".tsv": read_csv}
FILES |= {".jsonl": read_json, ".ndjson": read_json, ".json": read_json}
TEXTS = tuple(FILES)  # which may be packed: .csv.gz
FILES |= {".xlsx": read_excel, ".parquet": read_parquet, ".pq": read_parquet, ".npz": open_npz, ".npy": open_npy}
