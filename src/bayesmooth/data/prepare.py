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

import torch
from torch import Tensor

from bayesmooth.data.encoders import TINY_SIDE, Encoder, embed_pictures, embed_texts
from bayesmooth.data.features import PICTURES, Reading, TableRows, choose_inputs, open_pictures
from bayesmooth.data.opening import open_source
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.data.source import Columns, Kind, Source
from bayesmooth.data.tables import find_column
from bayesmooth.errors import InputError

NAMED = 5  # ids or classes in a sentence
MOST_LEFT_OUT = 0.5  # share of the examples; beyond it the audit would be one of other data
CHOOSING = 2_000  # examples on which one of several encoders is chosen


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
    if source.table is not None and not source.table.is_chosen:
        source = choose_inputs(source, columns, predicted)
    what = choose_to_embed(source, columns)
    if what != "pictures":
        source = _note_missing_pictures(source)
    before, named = source, columns.class_names is not None
    settled = settle(source, texts=what == "texts", learned=not predicted, named=named)
    source = embed(settled, what, encoder, cache, device, judge)
    if len(source) < len(settled) and source.labels.kind != "tags":
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
    if table is not None and not table.is_chosen:
        rows = TableRows(source)
        if reading.sources:
            for name in reading.sources:
                find_column(table.where, table.names, (name,), "the columns must be those of the training rows")
            return reading.read(source, rows)
        if reading.text is not None:
            find_column(table.where, table.names, (reading.text,), "the run was trained on its texts")
            source = replace(source, meta={"text": rows[reading.text].texts})
        else:
            named = PICTURES if reading.image is None else (reading.image,)
            find_column(table.where, table.names, named, "the run was trained on pictures")
            source = replace(source, pictures=open_pictures(rows, reading.image))
    if pixels is not None and isinstance(source.pictures, ImageFiles):
        size, crop = pixels
        return replace(source, inputs=replace(source.pictures, size=size, crop=crop))
    chosen = Columns(text=reading.text) if reading.text else Columns()
    return embed(source, choose_to_embed(source, chosen), reading.encoder)


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
        made = embed_pictures(pictures, encoder, cache=cache, device=device)
    name = made.encoder if isinstance(made.encoder, str) else None  # of a function of the user
    reading = replace(source.reading or Reading(), encoder=name)
    embedded = replace(source, inputs=made.rows, reading=reading).note(Kind.ENCODER, made.note)
    unreadable = made.rows.isnan().all(1)
    if not bool(unreadable.any()) or not isinstance(pictures, ImageFiles):
        return embedded
    share = f"{int(unreadable.sum())} of {len(source)} pictures"
    text = f"{share} cannot be read, or have a side below {TINY_SIDE} pixels, and are left out"
    readable = embedded.leave_out(unreadable, Kind.UNREADABLE, text)
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
    if judge is None or not encoders or source.labels.kind == "tags":
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
        names = quote_names([name for name in times if times[name] > 1])
        text = (
            f"{int(shared.sum())} examples share their id with another and are left out: {names}; id (--id) names "
            "another column"
        )
        source = source.leave_out(shared, Kind.DUPLICATE_ID, text)
    if texts:
        empty = _as_mask(not text.strip() for text in source.texts or ())
        count = f"{int(empty.sum())} {'text is' if empty.sum() == 1 else 'texts are'}"
        source = source.leave_out(empty, Kind.EMPTY_TEXT, f"{count} empty and left out")
    if source.labels.kind != "tags":
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
        text, concerned = f"{len(alone)} {what}: {quote_names(alone)}", counts[source.labels[:]] == 1
        noted = source.note(Kind.SINGLE_EXAMPLE, text, concerned)
        source = source.leave_out(concerned, Kind.SINGLE_EXAMPLE, text) if learned else noted
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


def quote_names(names: Sequence[str]) -> str:
    """The first few names, and that there are more.

    >>> quote_names(["a", "b"]), quote_names("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', …")
    """
    return ", ".join([*(repr(name[:80]) for name in names[:NAMED]), *["…"] * (len(names) > NAMED)])


def _note_missing_pictures(source: Source) -> Source:
    """Files of pictures that are only shown, and that are not there."""
    if not isinstance(pictures := source.pictures, ImageFiles):
        return source
    gone = _as_mask(isinstance(item, str) and not os.path.exists(pictures.root / item) for item in pictures.items)
    text = f"{int(gone.sum())} of {len(gone)} pictures to show are missing"
    return source.note(Kind.MISSING_PICTURE, text, gone) if bool(gone.any()) else source


def _as_mask(flags: Iterable[bool]) -> Tensor:
    return torch.tensor(list(flags), dtype=torch.bool, device="cpu")
