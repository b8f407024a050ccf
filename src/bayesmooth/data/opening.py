"""The door: open → labels → make ready → embed. Data in any format become a `Source` to learn from.

`open_source` reads it, and `make_ready` chooses its inputs, lists and leaves out dirt, and embeds texts and pictures.
Dirt is a finding with its ids, and the rest goes on. Only dirt that would make the result wrong is an error: fewer
than two classes left, or most examples unusable.
"""

import gc
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesmooth.data.arrays import open_npy, open_npz, read_arrays, read_torch
from bayesmooth.data.encoders import TINY_SIDE, Encoder, embed_pictures, embed_texts
from bayesmooth.data.features import (
    PICTURES,
    SHEET_ROW,
    Reading,
    open_pictures,
    read_cells,
    show_beside,
    take_features,
    take_probabilities,
    take_texts,
)
from bayesmooth.data.formats import (
    make_records,
    read_csv,
    read_excel,
    read_frame,
    read_hugging_face,
    read_json_table,
    read_parquet,
)
from bayesmooth.data.labels import Labels, as_text
from bayesmooth.data.pictures import ImageFiles, read_folder
from bayesmooth.data.source import Columns, Kind, Source
from bayesmooth.data.tables import Table, read_labels
from bayesmooth.errors import InputError

RUN = "recipe.toml"  # a folder with this file is a run
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
NO_COLUMNS = Columns()
NUMBERS = ("int", "uin", "hal", "flo", "dou", "boo")  # first letters of Arrow's types
NAMED = 5  # ids or classes in a sentence
MOST_LEFT_OUT = 0.5  # share of the examples; beyond it the audit would be one of other data

FILES: dict[str, Any] = {".csv": read_csv, ".tsv": read_csv}
FILES |= {".jsonl": read_json_table, ".ndjson": read_json_table, ".json": read_json_table}
TEXTS = tuple(FILES)  # which may be packed: .csv.gz
FILES |= {".xlsx": read_excel, ".parquet": read_parquet, ".pq": read_parquet, ".npz": open_npz, ".npy": open_npy}


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
            table = read_arrays(np.empty((frame.count, 1)), labels, columns)
            named = replace(table.columns, id=columns.id, label=None if table.columns.tags else "labels")
            return read_table(replace(table, cells={**frame.cells, **table.cells}, columns=named, parts=None))
    return read_table(read_arrays(what, labels, columns, predicted), True, predicted)


def is_source(path: Path) -> bool:
    """Whether it looks like data, and not like a recipe or a run."""
    if path.is_dir():
        return not (path / RUN).is_file()
    return path.is_file() and get_kind(path) in FILES


def is_frame(what: Any) -> bool:
    """Whether it is a frame of pandas or polars, lazy or not, or a table of Arrow; no library is loaded to find out."""
    kind = type(what)
    return kind.__name__.endswith(("DataFrame", "LazyFrame")) or (
        kind.__name__ == "Table" and kind.__module__.startswith("pyarrow")
    )


def get_kind(path: Path) -> str:
    """The suffix of a file's format, packed or not."""
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
    raise InputError(f"a {type(what).__name__}: no data; give a path, frame, data set, Source, or arrays with labels")


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
    was_on = gc.isenabled()
    gc.disable()  # it would look at all rows again and again while they are read, and find no garbage
    try:
        table: Table = FILES[kind](path, columns)
    finally:
        if was_on:
            gc.enable()
    return table


def read_table(table: Table, labelled: bool = True, predicted: bool = False) -> Source:
    """The rows that have a label; their inputs are those of arrays, else empty: `make_ready` chooses them."""
    if not table.count:
        raise InputError(f"{table.where}: no rows; give a table with some")
    every, clean = torch.arange(table.count, device="cpu"), None
    kept: Sequence[int] = range(table.count)
    labels = Labels(torch.zeros_like(every), tuple(table.columns.class_names or ("",)))
    path, is_folder = Path(table.where), table.path is not None and table.path.is_dir()
    source = Source(
        labels=labels,
        ids=tuple(table.ids(labelled)),
        name=as_text(path.name if is_folder else path.name.removesuffix(".gz").removesuffix(get_kind(path))),
        notes=table.notes,
        table=table,
        rows=every,
        **{"inputs": torch.empty(table.count, 0, dtype=torch.float32, device="cpu")} | (table.parts or {}),
    )
    if labelled and table.given is not None:
        labels = table.given
    elif labelled:
        kept, labels, clean = read_labels(table, predicted)
    if not kept:
        raise InputError(f"{table.where}: no row has a label in {', '.join(table.label_columns)}")
    if table.columns.annotator is not None:
        source = source.subset(kept)  # the first vote on each example
    elif len(kept) < table.count:
        kept_rows = {*kept}
        gone = [row not in kept_rows for row in range(table.count)]
        text = f"{sum(gone)} of {table.count} rows have no label and are left out"
        source = source.leave_out(Kind.MISSING_LABEL, text, gone)
    return replace(source, labels=labels, clean=clean)


def make_ready(
    source: Source,
    columns: Columns,
    *,
    encoder: Encoder = None,
    cache: str | Path | None = None,
    device: str | None = None,
    predicted: bool = False,
) -> Source:
    """The examples that can be learned from, with their inputs; every check comes before the first long computation.

    Spellings of labels that look like slips become findings. `predicted`: the numbers are probabilities that somebody
    predicted, so a class may have one example.
    """
    source = choose_inputs(source, columns, predicted)
    if source.labels.kind != "tags":
        for same, text in group_spellings(source.class_names, source.labels.counts()):
            rarer = torch.isin(source.labels.numbers, torch.tensor(same[1:], dtype=torch.int64, device="cpu"))
            source = source.note(Kind.LABEL_SPELLING, text, rarer)
    settled = settle(source, learned=not predicted)
    source = embed(settled, encoder, cache, device)
    if len(source) < len(settled):
        source = settle(source, settled, learned=not predicted)
    if isinstance(pictures := source.pictures, ImageFiles):  # only shown: those that are learned from are there
        gone = [isinstance(item, str) and not os.path.isfile(pictures.root / item) for item in pictures.items]
        if any(gone):
            text = f"{sum(gone)} of {len(gone)} pictures to show are missing"
            source = source.note(Kind.MISSING_PICTURE, text, gone)
    return source


def choose_inputs(source: Source, columns: Columns, predicted: bool = False) -> Source:
    """The source with the inputs to learn from: the named columns; else vectors, else numbers and categories, else
    pictures, else the longest texts."""
    table, at = source.table, source.rows
    if table is None or table.parts is not None:
        return source
    rows, named = read_cells(source), [str(name) for name in columns.features or ()]
    for column in filter(None, (columns.text, columns.image, *named)):
        if table.find(column) in {*table.label_columns, table.clean_column}:
            raise InputError(f"{table.where}: column {column!r} holds the labels; learn from others")
    taken = {*table.label_columns, table.clean_column, table.id_column, columns.annotator, "split"}
    taken |= {*(columns.predicted or ())}
    names = named or [name for name in rows if name not in {*taken, "id", *PICTURES}]
    if predicted:
        source = take_probabilities(source, rows, names, bool(named))
    elif columns.text is None and columns.image is None:
        source = take_features(source, rows, names, bool(named))
    if predicted or source.input_shape != (0,):
        source = show_beside(source, rows if source.rows is at else read_cells(source), taken)
    else:
        source = take_texts(source, rows, columns, taken)
    if table.numbers is not None and source.rows is not None:
        numbers = [str(table.numbers[row]) for row in source.rows.tolist()]
        source = replace(source, meta={SHEET_ROW: numbers, **source.meta})
    return source


def open_like(
    what: Any,
    reading: Reading,
    class_names: Sequence[str] | None = None,
    encoding: str | None = None,
    id: str | None = None,
    pixels: tuple[int, int | None] | None = None,
) -> Source:
    """New examples, read as those of a training were: the same columns, categories and encoder.

    No labels are needed where the names of the classes are given, and none are read: all have that of the first class.
    With `pixels`, (size, crop), the inputs are the pictures themselves.
    """
    source = open_source(what, Columns(class_names=class_names, encoding=encoding), labelled=False)
    source, table = replace(source, reading=reading), source.table
    if id is not None and table is not None and id in table.names:
        source = replace(source, ids=tuple(table.texts(id)))
    if table is not None and table.parts is None:
        rows = read_cells(source)
        if reading.sources:
            for name in reading.sources:
                table.find(name, way_out="the columns must be those of the training rows")
            return reading.read(source, rows)
        if reading.text is not None:
            text = table.find(reading.text, way_out="the run was trained on its texts")
            source = replace(source, meta={"text": rows[text].texts})
        else:
            named = PICTURES if reading.image is None else (reading.image,)
            table.find(*named, way_out="the run was trained on pictures")
            source = replace(source, pictures=open_pictures(source, rows, reading.image))
    if pixels is not None and isinstance(source.pictures, ImageFiles):
        size, crop = pixels
        return replace(source, inputs=replace(source.pictures, size=size, crop=crop))
    return embed(source, reading.encoder)


def reads_texts(source: Source) -> bool:
    """Whether texts are to be embedded: there are no inputs yet, and the texts are named or there are no pictures."""
    named = source.reading is not None and source.reading.text is not None
    has_texts = "text" in source.meta and (named or source.pictures is None)
    return has_texts and source.input_shape == (0,) and source.predicted is None


def embed(
    source: Source, encoder: Encoder = None, cache: str | Path | None = None, device: str | None = None
) -> Source:
    """The examples with embeddings of their pictures or texts where they have no inputs, without those whose picture
    cannot be read."""
    if source.input_shape != (0,) or source.predicted is not None:
        return source
    if reads_texts(source):
        embedding = embed_texts(source.meta["text"], encoder, cache=cache, device=device)
    elif source.pictures is not None:
        embedding = embed_pictures(source.pictures, encoder, cache=cache, device=device)
    else:
        raise InputError(f"{source.name}: no embeddings, texts or pictures: nothing to learn from")
    name = embedding.encoder if isinstance(embedding.encoder, str) else None  # of a function of the user
    reading = replace(source.reading or Reading(), encoder=name)
    embedded = replace(source, inputs=embedding.rows, reading=reading).note(Kind.ENCODER, embedding.note)
    unreadable = embedding.rows.isnan().all(1)
    share = f"{int(unreadable.sum())} of {len(source)} pictures"
    text = f"{share} cannot be read, or have a side below {TINY_SIDE} pixels, and are left out"
    return embedded.leave_out(Kind.UNREADABLE, text, unreadable)


def settle(source: Source, before: Source | None = None, *, learned: bool = False) -> Source:
    """Without the examples that cannot be audited; they are in its `problems`. At least two classes must be left.

    `learned`: labels are learned from the other examples of their class, so classes with one example are left out.
    Unless the user named the classes, those that had examples `before` and have none now are no longer classes.
    """
    before, times = before or source, Counter(source.ids)
    if len(times) < len(source):  # no decision could be applied with certainty
        shared = [times[name] > 1 for name in source.ids]
        twice = quote_names([name for name in times if times[name] > 1])
        text = (
            f"{sum(shared)} examples share their id with another and are left out: {twice}; id (--id) names "
            "another column"
        )
        source = source.leave_out(Kind.DUPLICATE_ID, text, shared)
    if reads_texts(source):
        empty = [not text.strip() for text in source.meta["text"]]
        source = source.leave_out(Kind.EMPTY_TEXT, f"empty texts, left out: {sum(empty)}", empty)
    names, counts = source.class_names, source.labels.counts()
    alone = [names[k] for k in (counts == 1).nonzero().flatten().tolist()]
    if alone and source.labels.kind != "tags":
        text = f"classes with one example{', left out' if learned else ''}: {len(alone)} ({quote_names(alone)})"
        note = source.leave_out if learned else source.note
        source = note(Kind.SINGLE_EXAMPLE, text, counts[source.labels.numbers] == 1)
    left_out, count = len(before) - len(source), len(before)
    if left_out > MOST_LEFT_OUT * count:
        reasons = "; ".join(problem.text for problem in source.problems)
        raise InputError(
            f"{left_out} of {count} examples cannot be audited: {reasons}. Mend the data, or name other columns"
        )
    if source.labels.kind == "tags":
        return source
    present = source.labels.counts() > 0
    if int(present.sum()) < 2:
        only = source.labels.texts()[0]
        raise InputError(f"all {len(source)} labels are {only!r}: an audit needs at least two classes")
    named = source.table is not None and source.table.columns.class_names is not None
    return source.keep_classes(present | (before.labels.counts() == 0)) if learned and not named else source


def group_spellings(names: Sequence[str], counts: Tensor) -> Iterator[tuple[list[int], str]]:
    """Names that occur and differ only in case or blanks, the most frequent first, and a sentence about them."""
    groups = defaultdict(list)
    for k in counts.nonzero().flatten().tolist():
        groups[re.sub(r"\s+", "", names[k]).casefold()].append(k)
    for same in groups.values():
        if len(same) > 1:
            same.sort(key=lambda k: -int(counts[k]))
            shown = ", ".join([f"{names[k]!r} ({int(counts[k])})" for k in same][:NAMED])
            yield same, f"labels differ only in case or blanks: {shown}"


def quote_names(names: Sequence[str]) -> str:
    """The first few names, and that there are more.

    >>> quote_names(["a", "b"]), quote_names("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', …")
    """
    return ", ".join([*(repr(name[:80]) for name in names[:NAMED]), *["…"] * (len(names) > NAMED)])
