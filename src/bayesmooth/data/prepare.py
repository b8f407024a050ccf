"""From an opened source to one that can be learned from: its inputs are chosen, dirt is listed and left out, texts and
pictures are embedded.

Dirt is a finding with its ids, and the rest goes on. Only what would make the result wrong is an error: fewer than two
classes left, or most examples unusable.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmooth.data.encoders import (
    Encoder,
    embed_pictures,
    embed_texts,
    explain_unreadable,
)
from bayesmooth.data.features import (
    PICTURES,
    Features,
    Reading,
    Rows,
    as_texts,
    choose_features,
    find_probabilities,
    is_text,
    is_vector,
)
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.source import Columns, Kind, Source
from bayesmooth.data.tables import ParquetFolder, find_name
from bayesmooth.data.vectors import map_vectors
from bayesmooth.errors import InputError

NAMED = 5  # ids or classes in a sentence
MOST_LEFT_OUT = 0.5  # share of the examples; beyond it the audit would be one of other data
MOST_NUMBERS = 60  # columns of numbers that are shown
SHEET_ROW = "row"  # in `meta`: the row of a spreadsheet that an example stands in


def prepare(
    source: Source,
    columns: Columns,
    *,
    encoder: Encoder = None,
    cache: str | Path | None = None,
    quiet: bool = False,
    predicted: bool = False,
) -> Source:
    """The examples that can be learned from, with their inputs; every check comes before the first long computation.

    `predicted`: the numbers are probabilities that somebody predicted, so a class may have one example.
    """
    source = choose_inputs(source, columns, predicted, cache, quiet)
    what = choose_to_embed(source, columns)
    if what != "pictures":
        source = _note_missing_pictures(source)
    before, named = source, columns.class_names is not None
    source = settle(source, texts=what == "texts", learned=not predicted, named=named)
    settled = source
    source = embed(source, what, encoder, cache, quiet)
    if len(source) < len(settled) and source.labels.are_classes:
        source = settle_classes(source, settled, learned=not predicted, named=named)
    check_share(len(before) - len(source), len(before), source)
    return source


def prepare_like(source: Source, reading: Reading, cache: str | Path | None = None) -> Source:
    """New examples with inputs that are read as those of the training were."""
    table = source.table
    if source.input_shape != (0,) or table is None:
        return source
    if hasattr(table, "frame") and not source.pictures:
        rows = Rows(_rows_of(source, table.frame()), table, source.ids)
        if reading.sources:
            inputs, notes = reading.read(rows)
            return replace(source, inputs=inputs, notes=(*source.notes, *notes))
        if reading.text is not None:
            way_out = "the run was trained on its texts"
            find_name(table.where, rows.frame.columns, (reading.text,), way_out)
            source = replace(source, meta={"text": as_texts(rows.frame[reading.text])})
        else:
            pictures = open_pictures(rows.frame, table.folder, reading.image)
            if pictures is None:
                way_out = "the run was trained on pictures"
                find_name(table.where, rows.frame.columns, PICTURES, way_out)
            source = replace(source, pictures=pictures)
    return source


def choose_inputs(
    source: Source, columns: Columns, predicted: bool, cache: str | Path | None, quiet: bool
) -> Source:
    """What is learned from: the named columns; else numbers and categories, else pictures, else the longest texts."""
    table = source.table
    arrays = source.input_shape != (0,) or source.pictures is not None or bool(source.meta)
    if table is None or arrays or source.predicted is not None:
        return source
    for column in filter(None, (columns.text, columns.image)):
        find_name(table.where, table.names, (column,), "name another")
    alone = columns.text is not None or columns.image is not None
    if isinstance(table, ParquetFolder) and not alone and source.labels.are_classes:
        wanted = [n for n in columns.features or table.vectors if n in table.vectors]
        if wanted:
            return map_vectors(source, table, wanted[0], cache, quiet)
    frame = _rows_of(source, table.frame())
    taken = (*table.label_columns, table.clean_column, columns.id, columns.annotator)
    texts = [c for c in frame if c not in (*taken, "split") and is_text(frame[c])]
    shown = {str(c): as_texts(frame[c]) for c in texts}
    source = replace(source, meta=shown, pictures=open_pictures(frame, table.folder, columns.image))
    rows = Rows(frame, table, source.ids)
    if predicted:
        chosen = columns.features or find_probabilities(frame, source.class_names)
        learned = choose_features(rows, chosen, taken, source.class_names, fill=False)
        return _add_row(replace(source, inputs=learned.rows, notes=(*source.notes, *learned.notes)))
    if alone:
        reading = Reading(table.label_columns[0], columns.text, columns.image)
        source = replace(source, reading=reading)
        if columns.text is not None:
            source = replace(source, meta={"text": as_texts(frame[columns.text])})
        text = f"learned from column {columns.text or columns.image!r} alone"
        return _add_row(source.note(Kind.LEARNED, text))
    source, rows = _leave_out_missing_vectors(source, rows, columns.features, taken)
    learned = choose_features(rows, columns.features, taken, source.class_names)
    return _add_row(_take_features(source, rows.frame, learned, taken))


def _rows_of(source: Source, frame: Any) -> Any:
    """The rows of the table's frame that the examples stand in, under their places in the table."""
    return frame if source.rows is None else frame.iloc[source.rows.numpy()]


def _leave_out_missing_vectors(
    source: Source, rows: Rows, features: Sequence[str] | None, taken: Iterable[Any]
) -> tuple[Source, Rows]:
    """Without the rows that have no vector, where vectors are learned from."""
    names = [c for c in features or rows.frame if c not in {*taken, "id", "split", *PICTURES}]
    vectors = [c for c in names if c in rows.frame and is_vector(rows.frame[c])]
    gone = rows.frame[vectors].isna().any(axis=1).to_numpy() if vectors else None
    if gone is None or not gone.any():
        return source, rows
    text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
    source = leave_out(source, _as_mask(gone), Kind.MISSING_VECTOR, text)
    return source, Rows(rows.frame[~gone], rows.table, source.ids)


def _take_features(
    source: Source, frame: Any, learned: Features, taken: Sequence[str | None]
) -> Source:
    label = taken[0]
    if learned.reading.names:
        names = ", ".join(map(repr, learned.reading.sources))[:300]
        source = source.note(Kind.LEARNED, f"learned from {names}")
        return replace(
            source,
            inputs=learned.rows,
            mean=learned.mean,
            std=learned.std,
            meta=_all_columns(frame, source, (*taken, *PICTURES, "id")),
            reading=replace(learned.reading, label=label),
            notes=(*source.notes, *learned.notes),
        )
    if source.pictures is not None:
        return replace(source, reading=Reading(label))
    lengths = {name: sum(map(len, texts)) for name, texts in source.meta.items() if name != "id"}
    if not lengths:
        where = "" if source.table is None else source.table.where
        raise InputError(f"{where}: no column of numbers, texts or pictures: nothing to learn from")
    column = max(lengths, key=lambda name: lengths[name])
    reading, meta = Reading(label, text=column), {"text": source.meta[column]}
    source = replace(source, meta=meta, reading=reading)
    return source.note(Kind.LEARNED, f"learned from the texts in column {column!r} alone")


def _all_columns(frame: Any, source: Source, taken: Sequence[str | None]) -> dict[str, Any]:
    """Texts and numbers of a table, to show beside its labels; numbers only if they are few enough to read."""
    numbers = [column for column in frame.select_dtypes("number") if column not in taken]
    shown = {*source.meta, *map(str, numbers if len(numbers) <= MOST_NUMBERS else ())}
    return {
        str(column): as_texts(frame[column])
        for column in frame
        if str(column) in shown and column not in taken
    }


def _add_row(source: Source) -> Source:
    """With the row of the spreadsheet, to be shown."""
    table, rows = source.table, source.rows
    if table is None or rows is None or not table.is_spreadsheet:
        return source
    numbers = [str(table.number(row)) for row in rows.tolist()]
    return replace(source, meta={SHEET_ROW: numbers, **source.meta})


def open_pictures(frame: Any, folder: Path, column: str | None = None) -> ImageFiles | None:
    """The pictures of a column (default: `path` or `image`): paths below `folder`, or encoded bytes."""
    found = [c for c in ((column,) if column else PICTURES) if c in frame]
    if not found:
        return None
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in frame[found[0]]]
    return ImageFiles(folder, [v if isinstance(v, bytes) else str(v) for v in items], SHOWN_SIZE)


def choose_to_embed(source: Source, columns: Columns) -> str:
    """What is to be embedded: "pictures" or "texts" where there is nothing else to learn from, else ""."""
    if source.input_shape != (0,) or source.predicted is not None:
        return ""
    if source.pictures is not None and columns.text is None:
        return "pictures"
    if source.texts is not None:
        return "texts"
    raise InputError(f"{source.name}: no embeddings, texts or pictures: nothing to learn from")


def embed(
    source: Source,
    what: str,
    encoder: Encoder = None,
    cache: str | Path | None = None,
    quiet: bool = False,
) -> Source:
    """The examples with embeddings of their pictures or texts, without those whose picture cannot be read."""
    if not what:
        return source
    pictures = source.pictures if what == "pictures" else None
    if pictures is None:
        made = embed_texts(source.texts or (), encoder, cache=cache, quiet=quiet)
    else:
        made = embed_pictures(pictures, encoder, skip_unreadable=True, cache=cache, quiet=quiet)
    reading = replace(source.reading or Reading(), encoder=made.encoder)
    embedded = replace(source, inputs=made.rows, reading=reading).note(Kind.ENCODER, made.note)
    unreadable = made.rows.isnan().all(1)
    if not bool(unreadable.any()) or not isinstance(pictures, ImageFiles):
        return embedded
    count, first = int(unreadable.sum()), int(unreadable.nonzero()[0])
    # Where the data lie is private, and the report may be passed on.
    reason = explain_unreadable(pictures, first).replace(f"{pictures.root}{os.sep}", "")
    text = (
        f"{count} of {len(source)} pictures cannot be read or are tiny, and are left out ({reason})"
    )
    if count > MOST_LEFT_OUT * len(source):
        raise InputError(
            f"{count} of {len(source)} examples cannot be audited: {text}. Mend the data"
        )
    return leave_out(embedded, unreadable, Kind.UNREADABLE, text)


def settle(
    source: Source, *, texts: bool = False, learned: bool = False, named: bool = False
) -> Source:
    """Without the examples that cannot be audited; they are in its `problems`, with spellings that look like slips.

    `texts`: the texts are what is learned from, so empty ones are left out. `learned`: labels are learned from the
    other examples of their class, so classes with one example are left out, and no longer classes unless the user
    `named` them.
    """
    start = source
    source = _leave_out_duplicate_ids(source)
    if texts:
        source = _leave_out_empty_texts(source)
    if source.labels.are_classes:
        for same, text in group_spellings(source.class_names, source.labels.counts()):
            rarer = torch.tensor(same[1:], dtype=torch.int64, device="cpu")
            concerned = torch.isin(source.labels.numbers, rarer)
            source = source.note(Kind.LABEL_SPELLING, text, concerned)
        source = settle_classes(source, start, learned=learned, named=named)
    check_share(len(start) - len(source), len(start), source)
    return source


def settle_classes(source: Source, before: Source, *, learned: bool, named: bool) -> Source:
    """The examples without classes that have only one, where labels are learned; those classes that had examples
    `before` and have none now are no longer classes. Two classes must be left."""
    names, counts = source.class_names, source.labels.counts()
    alone = [names[k] for k in (counts == 1).nonzero().flatten().tolist()]
    if alone:
        have, are = ("class has", "is") if len(alone) == 1 else ("classes have", "are")
        what = f"{have} one example and {are} left out" if learned else f"{have} one example"
        text, concerned = f"{len(alone)} {what}: {list_names(alone)}", counts[source.labels[:]] == 1
        if learned:
            source = leave_out(source, concerned, Kind.SINGLE_EXAMPLE, text)
        else:
            source = source.note(Kind.SINGLE_EXAMPLE, text, concerned)
    if learned and not named:
        source = _drop_classes(source, before.labels.counts() > 0)
    check_labels(source.labels.numbers, source.class_names)
    return source


def check_labels(labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse labels from which nothing can be learned about themselves."""
    if len(class_names) < 2:
        raise InputError(f"{len(class_names)} class: an audit needs at least two classes")
    counts = torch.bincount(labels, minlength=len(class_names))
    if int((counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(labels)} labels are {class_names[int(counts.argmax())]!r}: an audit needs "
            "at least two classes"
        )


def leave_out(source: Source, concerned: Tensor, kind: Kind, text: str) -> Source:
    """The other examples; those that are left out become a finding."""
    if bool(concerned.all()):
        raise InputError(f"{source.name}: {text}; no example is left to audit")
    return source.note(kind, text, concerned).subset(~concerned)


def check_share(left_out: int, count: int, source: Source) -> None:
    """Refuse data of which most had to be left out."""
    if left_out > MOST_LEFT_OUT * count:
        reasons = "; ".join(problem.text for problem in source.problems)
        raise InputError(
            f"{left_out} of {count} examples cannot be audited: {reasons}. Mend the data, or name other columns"
        )


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


def list_names(names: Sequence[str]) -> str:
    """The first few names, and that there are more.

    >>> list_names(["a", "b"]), list_names("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', …")
    """
    return ", ".join([*(repr(name[:80]) for name in names[:NAMED]), *["…"] * (len(names) > NAMED)])


def _note_missing_pictures(source: Source) -> Source:
    """Files of pictures that are only shown, and that are not there or empty."""
    pictures = source.pictures
    if not isinstance(pictures, ImageFiles):
        return source
    gone = _as_mask(_is_missing(pictures.root, item) for item in pictures.items)
    if not bool(gone.any()):
        return source
    text = f"{int(gone.sum())} of {len(gone)} pictures to show are missing or empty"
    return source.note(Kind.MISSING_PICTURE, text, gone)


def _is_missing(root: Path, item: str | bytes) -> bool:
    try:
        return not (len(item) if isinstance(item, bytes) else (root / item).stat().st_size)
    except (OSError, ValueError):
        return True


def _leave_out_duplicate_ids(source: Source) -> Source:
    """No decision could be applied with certainty to an id that several examples have."""
    times = Counter(source.ids)
    if len(times) == len(source):
        return source
    concerned = _as_mask(times[name] > 1 for name in source.ids)
    text = (
        f"{int(concerned.sum())} examples share their id with another and are left out: "
        f"{list_names([name for name in times if times[name] > 1])}; id (--id) names another column"
    )
    return leave_out(source, concerned, Kind.DUPLICATE_ID, text)


def _leave_out_empty_texts(source: Source) -> Source:
    empty = _as_mask(not text.strip() for text in source.texts or ())
    count = int(empty.sum())
    text = f"{count} {'text is' if count == 1 else 'texts are'} empty and left out"
    return leave_out(source, empty, Kind.EMPTY_TEXT, text) if count else source


def _as_mask(flags: Iterable[bool]) -> Tensor:
    return torch.tensor(list(flags), dtype=torch.bool, device="cpu")


def _drop_classes(source: Source, occurred: Tensor) -> Source:
    """Without the names of classes that occurred and do so no more, so that nothing is predicted of them."""
    used, clean = source.labels.counts() > 0, source.clean
    if clean is not None:
        used |= torch.bincount(clean, minlength=len(used)) > 0
    kept = used | ~occurred
    number = kept.cumsum(0) - 1
    labels = source.labels.keep_names(kept)
    return replace(source, labels=labels, clean=None if clean is None else number[clean])
