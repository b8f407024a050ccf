"""The door: whatever a data set is kept in becomes a `Source`. No other code looks at a suffix or a row's identity."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesmooth.data.arrays import open_npy, open_npz, read_arrays, read_torch
from bayesmooth.data.formats import (
    is_frame,
    read_excel,
    read_frame,
    read_hugging_face,
    read_parquet,
    read_parquet_folder,
)
from bayesmooth.data.labels import (
    MISSING,
    SEPARATOR,
    Labels,
    Vocabulary,
    as_text,
    encode,
    label_texts,
    name_classes,
    read_tag_cell,
    split_tags,
)
from bayesmooth.data.pictures import read_folder
from bayesmooth.data.source import Columns, Kind, Note, Source, take
from bayesmooth.data.tables import Table, as_arrow
from bayesmooth.data.textfiles import make_records, read_csv, read_json
from bayesmooth.errors import InputError

RUN = "recipe.toml"  # what makes a folder a run
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
FILES: dict[str, Any] = {".csv": read_csv, ".tsv": read_csv}
FILES |= {".jsonl": read_json, ".ndjson": read_json, ".json": read_json}
TEXTS = tuple(FILES)  # which may be packed: .csv.gz
FILES |= {".xlsx": read_excel, ".parquet": read_parquet, ".pq": read_parquet, ".npz": open_npz, ".npy": open_npy}
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
        if any(path.glob("*.parquet")):
            return read_parquet_folder(path, columns)
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
        kept, labels, clean = _read_labels(table, predicted)
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


Read = tuple[Sequence[int], Labels, Tensor | None]
"""Which rows have a label, their labels, and the clean ones."""


def _read_labels(table: Table, predicted: bool) -> Read:
    columns = table.columns
    if columns.annotator is not None:
        return _read_votes(table)
    if columns.tags is None and columns.separator is None:
        values = table.values(table.label_columns[0])
        if list not in {*map(type, values)}:
            return _read_classes(table, values)
    if predicted and table.inputs is None:
        raise InputError(f"{table.where}: with tags, give probabilities= as an array N × T, and labels=")
    return _read_tags(table)


def _read_classes(table: Table, values: Sequence[Any]) -> Read:
    """One class per row. −1 is missing where classes have names and none is −1, and where labels are positions."""
    label, clean, where = table.label_columns[0], table.clean_column, table.where
    names = tuple(table.columns.class_names or table.class_names or ())
    absent = {*MISSING, *(["-1"] if names else [])} - {*names} | ({"-1"} if table.numbered else set())
    kept = [row for row, value in enumerate(values) if as_text(value).strip() not in absent]
    if not kept:
        raise InputError(f"{where}: no row has a label in column {label!r}")
    columns = {label: values} | ({} if clean is None else {clean: table.values(clean)})
    texts = {name: label_texts([cells[row] for row in kept]) for name, cells in columns.items()}
    for name, cells in columns.items():
        for row in kept:
            if isinstance(cells[row], float) and not cells[row].is_integer():
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
    separator, truth = columns.separator or SEPARATOR, None
    if columns.tags is not None:
        words = Vocabulary(tuple(map(str, columns.tags)), separator)
        texts = words.join_columns(map(table.texts, labels), table.where, table.place)
    else:
        given = [read_tag_cell(value, separator) for value in table.values(labels[0])]
        if table.clean_column is not None:
            truth = [read_tag_cell(value, separator) for value in table.values(table.clean_column)]
        every = {tag for cell in (*given, *(truth or ())) for tag in split_tags(cell, separator)}
        words = Vocabulary(tuple(map(str, columns.class_names or name_classes(every))), separator)
        where = f"{table.where}, {{}}, column {labels[0]!r}"
        texts = [cell and words.rewrite(cell, where.format(table.place(row))) for row, cell in enumerate(given)]
    kept = [row for row, text in enumerate(texts) if text]
    if not kept:
        raise InputError(f"{table.where}: no row has tags in {', '.join(labels)}")
    true = [] if truth is None else [words.rewrite(truth[row], table.where) for row in kept]
    both = Labels.of_tags([*(texts[row] for row in kept), *true], words)
    return kept, replace(both, numbers=both.numbers[: len(kept)]), both.numbers[len(kept) :] if true else None


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
    if not rows:
        raise InputError(f"{table.where}: no row has a label in column {label!r}")
    first = {ids[row]: row for row in reversed(rows)}
    place = {id: at for at, id in enumerate(dict.fromkeys(ids[row] for row in rows))}
    votes = [(place[ids[row]], people[row], given[row]) for row in rows]
    labels, kept = Labels.of_votes(votes, names, f"{table.where}: {label}"), [first[id] for id in place]
    if table.clean_column is None:
        return kept, labels, None
    true = label_texts(table.values(table.clean_column))
    return kept, labels, encode([true[row] for row in kept], labels.names, table.where)
