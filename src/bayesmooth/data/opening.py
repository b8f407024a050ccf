"""The door: whatever a data set is kept in becomes a `Source`. No other code looks at a suffix or a row's identity."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrays import Arrays, Npy
from bayesmooth.data.csvtext import Csv
from bayesmooth.data.folders import Pictures
from bayesmooth.data.labels import (
    Labels,
    TagLabels,
    VotedLabels,
    encode,
    find_majority,
    find_missing,
    label_texts,
    name_classes,
    read_labels,
)
from bayesmooth.data.source import Columns, Kind, Note, Source
from bayesmooth.data.tables import (
    Frame,
    HuggingFace,
    Parquet,
    ParquetFolder,
    Table,
    find_class_names,
    open_arrow,
)
from bayesmooth.data.tags import MISSING, SEPARATOR, Vocabulary, as_text, read_tag_cell, split_tags
from bayesmooth.errors import InputError

RUN = "recipe.toml"  # what makes a folder a run
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
FILES = {".csv": Csv, ".tsv": Csv, ".parquet": Parquet, ".pq": Parquet, ".npz": Arrays}
SUFFIXES = (*FILES, ".npy")
NO_COLUMNS = Columns()


def open_source(
    what: Any,
    columns: Columns = NO_COLUMNS,
    labels: Any = None,
    *,
    labelled: bool = True,
    predicted: bool = False,
) -> Source:
    """A file, a folder, a data frame or arrays as a `Source`; a `Source` as it is.

    `labels` are those of arrays in memory (classes, sets of tags, N × T of 0 and 1), or a .npy beside a .npy of rows.
    Without labels (`labelled=False`) all have the first class. `predicted`: the rows are probabilities of the classes.
    """
    if isinstance(what, Source):
        return what
    if labels is not None and not isinstance(labels, str | Path):
        return open_arrays(what, labels, columns, predicted)
    apart = None if labels is None else Path(labels)
    return read_table(open_table(what, columns, apart, labelled), labelled, predicted)


def is_source(path: Path) -> bool:
    """Whether it looks like data, and not like a recipe or a run."""
    if path.is_dir():
        return not (path / RUN).is_file()
    return path.is_file() and path.suffix.lower() in SUFFIXES


def can_open(what: Any) -> bool:
    """Whether it is something that may hold its own labels."""
    return isinstance(what, str | Path | Source) or is_frame(what) or hasattr(what, "to_pandas")


def is_frame(what: Any) -> bool:
    """Whether it is a data frame of pandas, which is not loaded to find out."""
    return type(what).__module__.split(".")[0] == "pandas" and hasattr(what, "columns")


def open_table(
    what: Any, columns: Columns, labels: Path | None = None, labelled: bool = True
) -> Table:
    """The format that a data set is kept in."""
    if isinstance(what, str | Path):
        return _open_path(Path(what), columns, labels, labelled)
    if is_frame(what):
        return Frame(what, columns)
    if type(what).__module__.split(".")[0] == "pyarrow" and hasattr(what, "schema"):
        return open_arrow(what, columns)
    if hasattr(what, "to_pandas"):  # a polars frame, a data set of Hugging Face
        names = find_class_names(getattr(what, "features", None), columns.label)
        return Frame(what.to_pandas(), columns, names)
    raise InputError(
        f"a {type(what).__name__}: no data; give a path, a data frame, a Source, or arrays with their labels"
    )


def _open_path(path: Path, columns: Columns, labels: Path | None, labelled: bool) -> Table:
    if path.is_dir():
        if (path / RUN).is_file():
            raise InputError(f"{path}: a run; it is audited by Run.open(path).audit()")
        if any((path / name).is_file() for name in HUGGING_FACE):
            return HuggingFace(path, columns)
        if files := sorted(path.glob("*.parquet")):
            return ParquetFolder(path, files, columns)
        return Pictures(path, columns, labelled)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with labels, or a folder of pictures")
    kind = path.suffix.lower()
    if kind == ".npy":
        return Npy(path, columns, labels, labelled)
    if kind not in FILES:
        raise InputError(
            f"{path}: unknown kind of file; must be one of {', '.join(SUFFIXES)}, or a folder"
        )
    table: Table = FILES[kind](path, columns)
    return table


def read_table(table: Table, labelled: bool = True, predicted: bool = False) -> Source:
    """The rows that have a label; their inputs are those of arrays, else empty: `prepare` chooses them."""
    name = as_text(_name_table(table))
    if not labelled:
        rows, names = torch.arange(len(table), device="cpu"), table.columns.class_names or ("",)
        blank = Labels(torch.zeros(len(table), dtype=torch.int64, device="cpu"), tuple(names))
        return _fill(table, rows, blank, None, table.ids(False), name, table.notes)
    kept, labels, clean = _read_labels(table, predicted)
    ids = table.ids()
    notes = list(table.notes)
    gone = np.setdiff1d(np.arange(len(table)), kept.numpy())
    if len(gone) and table.columns.annotator is None:
        text = f"{len(gone)} of {len(table)} rows have no label and are left out"
        notes.append(Note(Kind.MISSING_LABEL, text, tuple(ids[i] for i in gone)))
    return _fill(table, kept, labels, clean, [ids[i] for i in kept.tolist()], name, notes)


def _name_table(table: Table) -> str:
    path = Path(table.where)
    return path.name if table.path is not None and table.path.is_dir() else path.stem


def _fill(
    table: Table,
    rows: Tensor,
    labels: Labels,
    clean: Tensor | None,
    ids: Sequence[str],
    name: str,
    notes: Sequence[Note],
) -> Source:
    """The source, with what can be shown or learned from without a choice."""
    source = Source(
        torch.empty(len(rows), 0, dtype=torch.float32, device="cpu"),
        labels,
        clean,
        tuple(ids),
        name,
        notes=tuple(notes),
        table=table,
        rows=rows,
    )
    if isinstance(table, Pictures):
        return replace(source, pictures=table.pictures(rows))
    if isinstance(table, Arrays):
        inputs = table.inputs(rows)
        return replace(
            source,
            inputs=source.inputs if inputs is None else inputs,
            meta=table.texts_to_show(rows),
            pictures=table.pictures(rows),
            predicted=table.predicted(rows),
        )
    return source


def _read_labels(table: Table, predicted: bool) -> tuple[Tensor, Labels, Tensor | None]:
    """Which rows have a label, their labels, and the clean ones."""
    columns = table.columns
    if columns.tags is not None or columns.separator is not None:
        if predicted:
            raise InputError(
                f"{table.where}: with tags, give probabilities= as an array N × T, and labels="
            )
        return _read_tags(table)
    if columns.annotator is not None:
        return _read_votes(table)
    values, names = table.values(table.label), tuple(columns.class_names or table.class_names or ())
    numbered = table.numbered and table.class_names is not None
    kept = _find_present(table, values, names, numbered)
    truth = None if table.clean_column is None else table.values(table.clean_column)
    every = [values] if truth is None else [values, truth]
    places = [table.place(int(i)) for i in kept]
    texts = [
        read_labels([each[i] for i in kept], f"{table.where}: {column}", places)
        for each, column in zip(every, (table.label, table.clean_column), strict=False)
    ]
    names = names or name_classes(text for some in texts for text in some)
    numbers = [
        encode(some, names, f"{table.where}: {column}", numbered, places)
        for some, column in zip(texts, (table.label, table.clean_column), strict=False)
    ]
    return torch.from_numpy(kept), Labels(numbers[0], names), (*numbers, None)[1]


def _find_present(
    table: Table, values: Sequence[Any], names: Sequence[str], numbered: bool
) -> np.ndarray[Any, np.dtype[np.int64]]:
    kept = np.flatnonzero(~np.array(find_missing(values, names, numbered), bool))
    if not len(kept):
        raise InputError(f"{table.where}: no row has a label in column {table.label!r}")
    return kept


def _read_tags(table: Table) -> tuple[Tensor, Labels, Tensor | None]:
    """Sets of tags, in columns of 0 and 1 or in one column of texts."""
    columns, places = table.columns, [table.place(i) for i in range(len(table))]
    separator, truth = columns.separator or SEPARATOR, None
    if columns.tags is not None:
        words = Vocabulary(tuple(map(str, columns.tags)), separator)
        cells = [table.values(name) for name in table.label_columns]
        texts = words.join_columns(cells, table.where, places)
    else:
        given = [read_tag_cell(value) for value in table.values(table.label)]
        clean = table.clean_column
        truth = None if clean is None else [read_tag_cell(value) for value in table.values(clean)]
        every = {tag for cell in (*given, *(truth or ())) for tag in split_tags(cell, separator)}
        named = columns.class_names or name_classes(every)
        words = Vocabulary(tuple(map(str, named)), separator)
        where = f"{table.where}, {{}}, column {table.label!r}"
        pairs = zip(given, places, strict=True)
        texts = [cell and words.rewrite(cell, where.format(place)) for cell, place in pairs]
    kept = np.flatnonzero([bool(text) for text in texts])
    if not len(kept):
        raise InputError(f"{table.where}: no row has tags in {', '.join(table.label_columns)}")
    labels = TagLabels.of([texts[i] for i in kept], words)
    if truth is None:
        return torch.from_numpy(kept), labels, None
    true = [words.rewrite(truth[i] or "", table.where) for i in kept]
    both = labels.relabel([*labels.texts(), *true])
    half = len(kept)
    return (
        torch.from_numpy(kept),
        replace(both, numbers=both.numbers[:half]),
        both.numbers[half:],
    )


def _read_votes(table: Table) -> tuple[Tensor, Labels, Tensor | None]:
    """One row per vote: of the rows of an example the first is kept, with the label that most people gave."""
    who, key, columns = table.columns.annotator, table.id_column, table.columns
    if who not in table.names or key is None:
        known = ", ".join(map(str, table.names))[:200]
        raise InputError(
            f"{table.where}: needs the columns of annotators ({who!r}) and of ids, which name the example of a vote "
            f"(--id), and has only {known}"
        )
    ids, people, said = (
        table.texts(key),
        table.texts(str(who)),
        label_texts(table.values(table.label)),
    )
    _refuse_shares(said)
    missing = set(MISSING) - set(columns.class_names or ())
    votes = [(i, a, v) for i, a, v in zip(ids, people, said, strict=True) if v not in missing]
    if not votes:
        raise InputError(f"{table.where}: no row has a label in column {table.label!r}")
    majority = find_majority((i, v) for i, _, v in votes)
    place = {id: at for at, id in enumerate(majority)}
    first = {id: row for row, id in reversed([*enumerate(ids)]) if said[row] not in missing}
    names = tuple(columns.class_names or name_classes(majority.values()))
    numbers = encode([*majority.values()], names, f"{table.where}: {table.label}")
    kept = torch.tensor([first[id] for id in majority], dtype=torch.int64, device="cpu")
    by_place = tuple((place[i], a, v) for i, a, v in votes)
    clean = None
    if table.clean_column is not None:
        true = label_texts(table.values(table.clean_column))
        clean = encode([true[i] for i in kept.tolist()], names, table.where)
    return kept, VotedLabels(numbers, names, by_place), clean


def _refuse_shares(labels: Sequence[str]) -> None:
    """Votes are classes; numbers between 0 and 1 are probabilities."""
    share = next((v for v in labels if v.startswith(("0.", ".")) and v.strip("0.")), None)
    if share is not None and all(v in MISSING or _is_share(v) for v in labels):
        raise InputError(
            f"votes such as {share}: probabilities are no votes; give the class that each annotator chose, or audit "
            "with probabilities= (--probabilities)"
        )


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def open_arrays(rows: Any, labels: Any, columns: Columns, predicted: bool = False) -> Source:
    """Rows of numbers and labels in memory."""
    inputs = as_tensor(rows, "the rows")
    if inputs.ndim != 2 or not len(inputs):
        raise InputError(f"rows of shape {tuple(inputs.shape)}: must be N × D, N ≥ 1")
    if isinstance(labels, Labels):
        return Source(inputs, labels, name="arrays")
    tags = read_tag_arrays(labels, columns)
    if tags is not None:
        kept = np.flatnonzero([bool(text) for text in tags[0]])
        _check_count(len(tags[0]), inputs)
        sets = TagLabels.of([tags[0][i] for i in kept], tags[1])
        source = Source(inputs[kept], sets, ids=tuple(map(str, kept)), name="arrays")
        return _note_missing(source, kept, len(inputs))
    given = as_array(labels, "labels")
    if given.ndim != 1:
        raise InputError(f"labels of shape {given.shape}: must be one per row, ({len(inputs)},)")
    _check_count(len(given), inputs)
    whole, names = given.dtype.kind in "iu", tuple(map(str, columns.class_names or ()))
    values = given.tolist()
    missing = find_missing(values, names, numbered=whole and predicted)
    kept = np.flatnonzero(~np.array(missing, bool))
    if not len(kept):
        raise InputError("labels: none is there; they are what is audited")
    if whole and predicted:
        names = names or tuple(str(k) for k in range(inputs.shape[1]))
    if whole and names:
        numbers = torch.from_numpy(given[kept].astype(np.int64))
    else:
        places = [f"row {i} (counted from 0)" for i in kept]
        words = read_labels([values[i] for i in kept], "labels", places)
        heads = [str(column) for column in getattr(rows, "columns", ()) if predicted]
        names = names or (tuple(heads) if heads and {*words} <= {*heads} else name_classes(words))
        numbers = encode(words, names, "labels", places=places)
    ids = tuple(map(str, kept))
    source = Source(inputs[kept], Labels(numbers, names), ids=ids, name="arrays")
    return _note_missing(source, kept, len(inputs))


def _check_count(count: int, inputs: Tensor) -> None:
    if count != len(inputs):
        raise InputError(f"{count} labels for {len(inputs)} rows; give one label per row")


def _note_missing(source: Source, kept: np.ndarray[Any, Any], count: int) -> Source:
    gone = tuple(map(str, np.setdiff1d(np.arange(count), kept)))
    if not gone:
        return source
    text = f"{len(gone)} of {count} rows have no label and are left out"
    return replace(source, notes=(Note(Kind.MISSING_LABEL, text, gone),))


def read_tag_arrays(labels: Any, columns: Columns) -> tuple[list[str], Vocabulary] | None:
    """The sets in an array N × T of 0 and 1, or in a list of sets; None where labels are classes."""
    separator, named = columns.separator or SEPARATOR, columns.class_names
    if not isinstance(labels, list | tuple) and np.ndim(labels) == 2:
        table = np.asarray(labels)
        heads: Any = named or getattr(labels, "columns", range(table.shape[1]))
        if len(heads) != table.shape[1]:
            raise InputError(f"{len(heads)} class names for {table.shape[1]} columns of labels")
        words = Vocabulary(tuple(map(str, heads)), separator)
        places = [f"row {i} (counted from 0)" for i in range(len(table))]
        return words.join_columns(table.T.tolist(), "labels", places), words
    sets = (set, frozenset, list, tuple)
    if not isinstance(labels, list | tuple) or not any(isinstance(row, sets) for row in labels):
        return None
    every = [_read_set(number, row) for number, row in enumerate(labels)]
    words = Vocabulary(tuple(map(str, named or name_classes(set[str]().union(*every)))), separator)
    return [words.write(row, f"labels[{number}]") for number, row in enumerate(every)], words


def _read_set(number: int, tags: Any) -> set[str]:
    words = isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags)
    if not words and not isinstance(tags, set | frozenset):
        raise InputError(
            f"labels[{number}] = {str(tags)[:80]}: must be a set of tags; a list of numbers may be a row of 0 and 1 or "
            "numbers of tags: give an array N × T, or sets"
        )
    return {as_text(tag).strip() for tag in tags}


def read_vote_array(votes: Any, class_names: Sequence[str] | None) -> VotedLabels:
    """The majority of each row, and the votes, of an array or a frame N × A; gaps are −1, NaN or None."""
    table = np.asarray(votes, dtype=object)
    if table.ndim != 2:
        raise InputError(f"votes of shape {table.shape}: must be examples × annotators")
    people = [str(name) for name in getattr(votes, "columns", range(table.shape[1]))]
    flat = label_texts(table.flatten().tolist())
    _refuse_shares(flat)
    texts = np.array(flat, object).reshape(table.shape)
    missing = {*MISSING, "-1"} - set(class_names or ())
    rows, places = np.nonzero(~np.isin(texts, [*missing]))
    said = tuple((int(i), people[a], str(texts[i, a])) for i, a in zip(rows, places, strict=True))
    majority = find_majority((i, v) for i, _, v in said)
    silent = [row for row in range(len(table)) if row not in majority]
    if silent:
        raise InputError(f"votes[{silent[0]}]: nobody labelled it; leave the example out")
    labels = [majority[row] for row in range(len(table))]
    names = tuple(class_names or name_classes(labels))
    return VotedLabels(encode(labels, names, "votes"), names, said)


def as_tensor(values: Any, what: str) -> Tensor:
    """Numbers as a tensor."""
    array = values if isinstance(values, Tensor) else as_array(values, what)
    try:
        tensor = array if isinstance(array, Tensor) else torch.as_tensor(array, device="cpu")
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array of numbers ({error})") from None
    if tensor.is_complex():
        raise InputError(f"{what}: complex numbers; must be real: give real and imaginary parts")
    return tensor.detach()


def as_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    """An array that owns its numbers; a mask would be lost, so it is refused."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what}: a masked array; fill it in, or leave the masked rows out")
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        return np.require(values, requirements="W")  # a view of a frame may be read-only
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array ({error})") from None
