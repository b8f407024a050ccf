"""From an opened source to one that can be learned from: its inputs are chosen, dirt is listed and left out, texts and
pictures are embedded.

Dirt is a finding with its ids, and the rest goes on. Only what would make the result wrong is an error: fewer than two
classes left, or most examples unusable.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.arrow import ParquetFolder
from bayesmooth.data.encoders import Encoder, cache_folder, embed_pictures, embed_texts, explain_unreadable
from bayesmooth.data.features import PICTURES, Reading, Rows, find_probabilities, map_vectors, take_features
from bayesmooth.data.opening import open_source
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.source import Columns, Kind, Mapped, Source
from bayesmooth.data.tables import find_name
from bayesmooth.errors import InputError

NAMED = 5  # ids or classes in a sentence
MOST_LEFT_OUT = 0.5  # share of the examples; beyond it the audit would be one of other data
MOST_NUMBERS = 60  # columns of numbers that are shown
CHOOSING = 2_000  # examples on which one of several encoders is chosen
SHEET_ROW = "row"  # in `meta`: the row of a spreadsheet that an example stands in


def prepare(
    source: Source,
    columns: Columns,
    *,
    encoder: Encoder | Sequence[Encoder] = None,
    cache: str | Path | None = None,
    device: str | None = None,
    judge: Callable[[Source], float] | None = None,
    predicted: bool = False,
) -> Source:
    """The examples that can be learned from, with their inputs; every check comes before the first long computation.

    Of several encoders it is the one that `judge` likes best. `predicted`: the numbers are probabilities that somebody
    predicted, so a class may have one example.
    """
    source = choose_inputs(source, columns, predicted, cache)
    what = choose_to_embed(source, columns)
    if what != "pictures":
        source = _note_missing_pictures(source)
    before, named = source, columns.class_names is not None
    settled = settle(source, texts=what == "texts", learned=not predicted, named=named)
    source = embed(settled, what, encoder, cache, device, judge)
    if len(source) < len(settled) and source.labels.are_classes:
        source = settle_classes(source, settled, learned=not predicted, named=named)
    check_share(source, before)
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
    table = source.table
    if id is not None and table is not None and id in table.names:
        source = replace(source, ids=tuple(table.texts(id)))
    if table is not None and not _is_chosen(source):
        rows = Rows(source)
        if reading.sources:
            inputs, notes = reading.read(rows)
            return replace(source, inputs=inputs, notes=(*source.notes, *notes))
        if reading.text is not None:
            way_out = "the run was trained on its texts"
            find_name(table.where, rows.names, (reading.text,), way_out)
            source = replace(source, meta={"text": rows[reading.text].texts})
        else:
            source = replace(source, pictures=open_pictures(rows, reading.image))
            if source.pictures is None:
                way_out = "the run was trained on pictures"
                find_name(table.where, rows.names, PICTURES, way_out)
    if pixels is not None and isinstance(source.pictures, ImageFiles):
        size, crop = pixels
        return replace(source, inputs=replace(source.pictures, size=size, crop=crop))
    chosen = Columns(text=reading.text) if reading.text else Columns()
    return embed(source, choose_to_embed(source, chosen), reading.encoder)


def _is_chosen(source: Source) -> bool:
    """Whether the format itself says what is learned from, as arrays and folders of pictures do."""
    shown = source.pictures is not None or source.predicted is not None or bool(source.meta)
    return shown or source.input_shape != (0,)


def choose_inputs(source: Source, columns: Columns, predicted: bool, cache: str | Path | None) -> Source:
    """What is learned from: the named columns; else vectors, else numbers and categories, else pictures, else the
    longest texts."""
    table = source.table
    if table is None or _is_chosen(source):
        return source
    for column in filter(None, (columns.text, columns.image)):
        find_name(table.where, table.names, (column,), "name another")
    rows, named = Rows(source), [str(name) for name in columns.features or ()]
    if unknown := [name for name in named if name not in rows.names]:
        raise InputError(f"{table.where}: no column {unknown[0]!r} among the features")
    taken = {*table.label_columns, table.clean_column, columns.id, columns.annotator, "split"}
    taken |= {*(columns.predicted or ())}
    names = named or [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    if predicted:
        names = named or find_probabilities(names, source.class_names) or names
        taken_from = take_features(source, rows, names, bool(named), fill=False)
        source = replace(source, inputs=taken_from.inputs, notes=taken_from.notes)
        return _show(source, rows, taken)
    if columns.text is None and columns.image is None:
        source, rows = _take_vectors(source, rows, names, cache)
        if source.input_shape == (0,):
            source = take_features(source, rows, names, bool(named))
        if source.input_shape != (0,):
            return _show(source, rows, taken)
    return _add_row(_take_texts(source, rows, columns, taken))


def _take_vectors(source: Source, rows: Rows, names: Sequence[str], cache: str | Path | None) -> tuple[Source, Rows]:
    """With the vectors as inputs, and without the rows that have none; those of many files stay on the disk."""
    table, centres = rows.table, dict[str, list[float]]()
    if isinstance(table, ParquetFolder) and source.labels.are_classes:
        centres = {name: [] for name in names if name in table.vectors}
        if not centres:
            return source, rows
        array = map_vectors(table, next(iter(centres)), cache_folder(cache))
        gone = np.isnan(array[:, 0])  # the row of a missing vector is NaN
        gone[gone] = np.isnan(array[gone]).all(1)
        assert source.rows is not None
        gone, every = gone[source.rows.numpy()], len(source) == len(table)
        source = replace(source, inputs=Mapped(array, None if every else source.rows))
    else:
        vectors = [name for name in names if rows[name].is_vector]
        if not vectors:
            return source, rows
        gone = ~np.logical_and.reduce([rows[name].known for name in vectors])
    if gone.any():
        text = f"{int(gone.sum())} of {len(gone)} rows have no vector and are left out"
        source = leave_out(source, torch.from_numpy(gone), Kind.MISSING_VECTOR, text)
        rows = Rows(source)
    if not centres:
        parts = {name: rows[name].stack(table.where) for name in vectors}
        centres = {name: part.mean(0).tolist() for name, part in parts.items()}
        source = replace(source, inputs=torch.cat([*parts.values()], 1))
    source = replace(source, reading=Reading(table.label_columns[0], vectors=centres))
    source = source.note(Kind.LEARNED, f"learned from {', '.join(map(repr, centres))}")
    if beside := [repr(name) for name in names if name not in centres]:
        text = f"not learned from, beside vectors: {', '.join(beside)[:300]}"
        source = source.note(Kind.NOT_LEARNED, text)
    return source, rows


def _take_texts(source: Source, rows: Rows, columns: Columns, taken: set[str | None]) -> Source:
    """With pictures or texts, to be embedded: those of the named column, else pictures, else the longest texts."""
    label = rows.table.label_columns[0]
    source = replace(source, pictures=open_pictures(rows, columns.image))
    shown = [name for name in rows.names if name not in taken and rows[name].are_texts]
    if columns.text is not None or columns.image is not None:
        reading = Reading(label, columns.text, columns.image)
        names = {"text": columns.text} if columns.text else {name: name for name in shown}
        text = f"learned from column {columns.text or columns.image!r} alone"
        source = source.note(Kind.LEARNED, text)
    elif source.pictures is not None:
        reading, names = Reading(label), {name: name for name in shown}
    else:
        lengths = {name: sum(map(len, rows[name].texts)) for name in shown if name != "id"}
        if not lengths:
            where = rows.table.where
            raise InputError(f"{where}: no column of numbers, texts or pictures: nothing to learn from")
        longest = max(lengths, key=lambda name: lengths[name])
        reading, names = Reading(label, text=longest), {"text": longest}
        source = source.note(Kind.LEARNED, f"learned from the texts in column {longest!r} alone")
    meta = {key: rows[name].texts for key, name in names.items()}
    return replace(source, meta=meta, reading=reading)


def _show(source: Source, rows: Rows, taken: set[str | None]) -> Source:
    """With texts and numbers to show beside the labels; numbers only if they are few enough to read."""
    if isinstance(source.inputs, Mapped):
        return source
    names = [name for name in rows.names if name not in {*taken, "id", *PICTURES}]
    numbers = [name for name in names if rows[name].are_numbers]
    shown = [n for n in names if rows[n].are_texts or (len(numbers) <= MOST_NUMBERS and n in numbers)]
    meta = {name: rows[name].texts for name in shown}
    return _add_row(replace(source, meta=meta, pictures=open_pictures(rows)))


def _add_row(source: Source) -> Source:
    """With the row of the spreadsheet, to be shown."""
    table, rows = source.table, source.rows
    if table is None or rows is None or not table.is_spreadsheet:
        return source
    numbers = [str(table.numbers[row]) for row in rows.tolist()]
    return replace(source, meta={SHEET_ROW: numbers, **source.meta})


def open_pictures(rows: Rows, column: str | None = None) -> ImageFiles | None:
    """The pictures of a column (default: `path` or `image`): paths beside the table, or encoded bytes."""
    found = [name for name in ((column,) if column else PICTURES) if name in rows.names]
    if not found:
        return None
    pictures = rows[found[0]]
    cells = pictures.texts if pictures.kind == "words" else pictures.values
    items = [v.get("bytes") or v.get("path") if isinstance(v, dict) else v for v in cells]
    named = [v if isinstance(v, bytes) else str(v) for v in items]
    return ImageFiles(rows.table.folder, named, SHOWN_SIZE)


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
    encoder: Encoder | Sequence[Encoder] = None,
    cache: str | Path | None = None,
    device: str | None = None,
    judge: Callable[[Source], float] | None = None,
) -> Source:
    """The examples with embeddings of their pictures or texts, without those whose picture cannot be read.

    Of several encoders it is the one that `judge` likes best on a sample of the examples.
    """
    if not what:
        return source
    if isinstance(encoder, list | tuple):
        encoder, words = choose_encoder(source, what, encoder, cache, device, judge)
        source = source.note(Kind.ENCODER, words)
    assert encoder is None or isinstance(encoder, str) or callable(encoder)
    pictures = source.pictures if what == "pictures" else None
    if pictures is None:
        made = embed_texts(source.texts or (), encoder, cache=cache, device=device)
    else:
        made = embed_pictures(pictures, encoder, skip_unreadable=True, cache=cache, device=device)
    name = made.encoder if isinstance(made.encoder, str) else None  # of a function of the user
    reading = replace(source.reading or Reading(), encoder=name)
    embedded = replace(source, inputs=made.rows, reading=reading).note(Kind.ENCODER, made.note)
    unreadable = made.rows.isnan().all(1)
    if not bool(unreadable.any()) or not isinstance(pictures, ImageFiles):
        return embedded
    # Where the data lie is private, and the report may be passed on.
    reason = explain_unreadable(pictures, int(unreadable.int().argmax()))
    reason = reason.replace(f"{pictures.root}{os.sep}", "")
    share = f"{int(unreadable.sum())} of {len(source)} pictures"
    text = f"{share} cannot be read or are tiny, and are left out ({reason})"
    readable = leave_out(embedded, unreadable, Kind.UNREADABLE, text)
    check_share(readable, embedded)
    return readable


def choose_encoder(
    source: Source,
    what: str,
    encoders: Sequence[Encoder],
    cache: str | Path | None,
    device: str | None,
    judge: Callable[[Source], float] | None,
) -> tuple[Encoder, str]:
    """The encoder with whose embeddings the judge likes a sample of the examples best, and a sentence about all."""
    if judge is None or not encoders or not source.labels.are_classes:
        raise InputError("several encoders: one is chosen for an audit of classes; name one here")
    drawn = torch.randperm(len(source), generator=torch.Generator().manual_seed(0), device="cpu")
    some = source.subset(drawn[:CHOOSING].sort().values)
    some = replace(some, labels=some.labels.keep_names(some.labels.counts() > 0), clean=None)
    scores = [judge(embed(some, what, encoder, cache, device)) for encoder in encoders]
    names = [encoder if isinstance(encoder, str) else "your function" for encoder in encoders]
    shown = ", ".join(f"{name} {score:.3f}" for name, score in zip(names, scores, strict=True))
    return encoders[scores.index(max(scores))], (
        f"of several encoders the one with which the given labels are likeliest, each left out: {shown}"
    )


def settle(source: Source, *, texts: bool = False, learned: bool = False, named: bool = False) -> Source:
    """Without the examples that cannot be audited; they are in its `problems`, with spellings that look like slips.

    `texts`: the texts are what is learned from, so empty ones are left out. `learned`: labels are learned from the
    other examples of their class, so classes with one example are left out, and no longer classes unless the user
    `named` them.
    """
    start, times = source, Counter(source.ids)
    if len(times) < len(source):  # no decision could be applied with certainty
        shared = _as_mask(times[name] > 1 for name in source.ids)
        names = list_names([name for name in times if times[name] > 1])
        text = (
            f"{int(shared.sum())} examples share their id with another and are left out: {names}; id (--id) names "
            "another column"
        )
        source = leave_out(source, shared, Kind.DUPLICATE_ID, text)
    if texts:
        empty = _as_mask(not text.strip() for text in source.texts or ())
        count = f"{int(empty.sum())} {'text is' if empty.sum() == 1 else 'texts are'}"
        source = leave_out(source, empty, Kind.EMPTY_TEXT, f"{count} empty and left out")
    if source.labels.are_classes:
        for same, text in group_spellings(source.class_names, source.labels.counts()):
            rarer = torch.tensor(same[1:], dtype=torch.int64, device="cpu")
            concerned = torch.isin(source.labels.numbers, rarer)
            source = source.note(Kind.LABEL_SPELLING, text, concerned)
        source = settle_classes(source, start, learned=learned, named=named)
    check_share(source, start)
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
        noted = source.note(Kind.SINGLE_EXAMPLE, text, concerned)
        source = leave_out(source, concerned, Kind.SINGLE_EXAMPLE, text) if learned else noted
    if learned and not named:
        clean, kept = source.clean, (source.labels.counts() > 0) | (before.labels.counts() == 0)
        if clean is not None:
            kept |= torch.bincount(clean, minlength=len(kept)) > 0
            clean = (kept.cumsum(0) - 1)[clean]
        source = replace(source, labels=source.labels.keep_names(kept), clean=clean)
    check_labels(source.labels.numbers, source.class_names)
    return source


def check_labels(labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse labels from which nothing can be learned about themselves."""
    if len(class_names) < 2:
        raise InputError(f"{len(class_names)} class: an audit needs at least two classes")
    counts = torch.bincount(labels, minlength=len(class_names))
    if int((counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(labels)} labels are {class_names[int(counts.argmax())]!r}: an audit needs at least two classes"
        )


def leave_out(source: Source, concerned: Tensor, kind: Kind, text: str) -> Source:
    """The other examples; those that are left out, if there are any, become a finding."""
    if not bool(concerned.any()):
        return source
    if bool(concerned.all()):
        raise InputError(f"{source.name}: {text}; no example is left to audit")
    return source.note(kind, text, concerned).subset(~concerned)


def check_share(source: Source, before: Source) -> None:
    """Refuse data of which most had to be left out."""
    left_out, count = len(before) - len(source), len(before)
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

    def is_missing(item: str | bytes) -> bool:
        try:
            at = pictures.root
            return not (len(item) if isinstance(item, bytes) else (at / item).stat().st_size)
        except (OSError, ValueError):
            return True

    gone = _as_mask(map(is_missing, pictures.items))
    text = f"{int(gone.sum())} of {len(gone)} pictures to show are missing or empty"
    return source.note(Kind.MISSING_PICTURE, text, gone) if bool(gone.any()) else source


def _as_mask(flags: Iterable[bool]) -> Tensor:
    return torch.tensor(list(flags), dtype=torch.bool, device="cpu")
