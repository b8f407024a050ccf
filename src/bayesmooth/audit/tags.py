"""Several labels per example: its label is the set of its tags, one text from the opened file to the cleaned one.

A set is written as its tags in the order of the vocabulary, `beach; dog`, and the empty one as `(no tags)`. So every
set is a class like any other to the table, the report and the decisions; `multilabel` judges the tags one by one.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.settings import Settings
from bayesmooth.data.columns import as_values
from bayesmooth.data.formats import Labels, find_label, find_name, open_labels
from bayesmooth.data.labels import MISSING, as_text, label_texts, name_classes
from bayesmooth.data.tabular import CLEAN
from bayesmooth.errors import InputError

NO_TAGS = "(no tags)"
SEPARATOR = ";"  # of tags that were columns
VALUES = {"0": 0, "false": 0, "1": 1, "true": 1}
OPPOSITES = {"0": "1", "0.0": "1.0", "False": "True", "false": "true", "FALSE": "TRUE"}
OPPOSITES |= {on: off for off, on in OPPOSITES.items()}
SETS = (set, frozenset, list, tuple)


@dataclass(frozen=True)
class Vocabulary:
    """All tags in their order, and what stands between two of them."""

    names: tuple[str, ...]
    separator: str = SEPARATOR

    def __post_init__(self) -> None:
        """Refuse names that could not be read again."""
        odd = {*MISSING, NO_TAGS}
        for name in self.names:
            if name in odd or name != name.strip() or self.separator in name:
                raise InputError(
                    f"tag {name!r}: must be a name without blanks around it and without the separator "
                    f"{self.separator!r}; rename it, or choose another separator (--separator)"
                )
        if len({*self.names}) < len(self.names):
            raise InputError(f"tags {', '.join(self.names)[:200]}: one appears twice; rename it")

    @classmethod
    def of(cls, sets: Iterable[str], settings: Settings) -> "Vocabulary":
        """Those that were named, else all that occur."""
        separator = settings.separator or SEPARATOR
        named = settings.tags or settings.class_names
        if named is None:
            named = name_classes({tag for text in sets for tag in split_tags(text, separator)})
        return cls(tuple(map(str, named)), separator)

    def write(self, tags: Iterable[str], where: str = "tags") -> str:
        """A set as text; an unknown tag is an error.

        >>> Vocabulary(("beach", "dog")).write({"dog", "beach"}), Vocabulary(("a",)).write(())
        ('beach; dog', '(no tags)')
        """
        chosen = set(tags)
        unknown = sorted(chosen.difference(self.names))
        if unknown:
            raise InputError(
                f"{where}: {unknown[0]!r} is not one of the tags {', '.join(self.names)[:200]}; mend it, or name it too"
            )
        return self.between.join(name for name in self.names if name in chosen) or NO_TAGS

    @property
    def between(self) -> str:
        """The separator as it is written."""
        mark = self.separator
        return mark if mark.isspace() else f"{mark} " if mark in ";," else f" {mark} "

    def rewrite(self, text: str, where: str) -> str:
        """The text of a set as this vocabulary writes it."""
        return self.write(split_tags(text, self.separator), where)

    def table(self, sets: Sequence[str]) -> Tensor:
        """0 and 1 (sets, tags): which tags each set has.

        >>> Vocabulary(("a", "b")).table(["b", "(no tags)"]).tolist()
        [[0, 1], [0, 0]]
        """
        place = {name: t for t, name in enumerate(self.names)}
        made = torch.zeros(len(sets), len(self.names), dtype=torch.int64, device="cpu")
        for row, text in enumerate(sets):
            made[row, [place[tag] for tag in split_tags(text, self.separator)]] = 1
        return made

    def describe(self) -> dict[str, Any]:
        """What a reader of the texts has to know."""
        return {"names": list(self.names), "between": self.between, "none": NO_TAGS}

    def subtract(self, text: str, other: str) -> str:
        """The tags of one set that another lacks; empty where there are none."""
        left = {*split_tags(text, self.separator)} - {*split_tags(other, self.separator)}
        return self.write(left) if left else ""


def split_tags(text: str, separator: str) -> list[str]:
    """The tags in a cell, each once.

    >>> split_tags("dog;  beach;dog;", ";"), split_tags("(no tags)", ";")
    (['dog', 'beach'], [])
    """
    if text.strip() == NO_TAGS:
        return []
    return list(dict.fromkeys(tag.strip() for tag in text.split(separator) if tag.strip()))


def read_tag_labels(source: Any, labels: Any, settings: Settings) -> tuple[Any, Settings]:
    """What `audit` takes as labels: names of columns beside a table, an array N × T of 0 and 1, or a list of sets.

    Arrays and lists become one text per example; the settings know the tags. Other labels stay as they are.
    """
    if labels is None or isinstance(labels, str | Path):
        return labels, settings
    if source is not None:
        return None, replace(settings, tags=tuple(map(str, labels)))
    separator, named = settings.separator or SEPARATOR, settings.class_names
    if np.ndim(labels) == 2 and not isinstance(labels, list | tuple):
        table = np.asarray(labels)
        columns: Any = named or getattr(labels, "columns", range(table.shape[1]))
        if len(columns) != table.shape[1]:
            raise InputError(f"{len(columns)} class names for {table.shape[1]} columns of labels")
        words = Vocabulary(tuple(map(str, columns)), separator)
        texts = read_columns(table.T.tolist(), words, "labels")
    elif isinstance(labels, list | tuple) and any(isinstance(r, SETS) for r in labels):
        sets = [_read_set(number, row) for number, row in enumerate(labels)]
        known = named or name_classes(set[str]().union(*sets))
        words = Vocabulary(tuple(map(str, known)), separator)
        texts = [words.write(row, f"labels[{number}]") for number, row in enumerate(sets)]
    else:
        return labels, settings
    return texts, replace(settings, tags=words.names, separator=separator, class_names=None)


def _read_set(number: int, tags: Any) -> set[str]:
    if not isinstance(tags, SETS) or not (
        isinstance(tags, set | frozenset) or all(isinstance(tag, str) for tag in tags)
    ):
        raise InputError(
            f"labels[{number}] = {str(tags)[:80]}: must be a set of tags; a list of numbers may be a row of 0 and 1 or "
            "numbers of tags: give an array N × T, or sets"
        )
    return {as_text(tag).strip() for tag in tags}


def join_tags(frame: Any, where: str, settings: Settings) -> tuple[Any, Settings]:
    """The table with one column of sets, and the settings that name it."""
    if settings.predicted:
        raise InputError(f"{where}: with tags, give probabilities= as an array N × T, and labels=")
    if settings.tags is None:
        return _join_cells(frame, where, settings)
    for column in settings.tags:
        find_name(
            where, frame.columns, (column,), "name the columns of 0 and 1 with labels (--labels)"
        )
    columns = [as_values(frame[column]) for column in settings.tags]
    texts = read_columns(columns, Vocabulary.of((), settings), where)
    label = "tags"
    while label in frame:
        label += "_"
    frame = frame.drop(columns=list(settings.tags)).assign(**{label: texts})
    return frame, replace(settings, label=label, class_names=None)


def _join_cells(frame: Any, where: str, settings: Settings) -> tuple[Any, Settings]:
    """The same where a cell holds all tags of its row; an empty text is no tags, a missing one is missing."""
    label = find_label(where, list(frame.columns), settings.label)
    columns = [c for c in (label, settings.clean_label or CLEAN) if c in frame]
    cells = {c: [_read_cell(value) for value in as_values(frame[c])] for c in columns}
    words = Vocabulary.of((cell for some in cells.values() for cell in some), settings)
    for column, some in cells.items():
        texts = [
            cell and words.rewrite(cell, f"{where}, row {row}, column {column!r}")
            for row, cell in enumerate(some, 1)
        ]
        frame = frame.assign(**{column: texts})
    return frame, replace(settings, label=label, class_names=None)


def _read_cell(value: Any) -> str:
    text = as_text(value).strip()
    if value is None or text in MISSING[1:]:
        return ""
    return text or NO_TAGS


def read_columns(columns: Iterable[Iterable[Any]], words: Vocabulary, where: str) -> list[str]:
    """The set of every row as text, from one column of 0 and 1 per tag; empty where one of them is missing."""
    texts = []
    for number, row in enumerate(zip(*map(label_texts, columns), strict=True), 1):
        cells = dict(zip(words.names, row, strict=True))
        for name, text in cells.items():
            if text not in MISSING and text.lower() not in VALUES:
                raise InputError(
                    f"{where}, row {number}, column {name!r}: {text!r} must be 0 or 1 (or false, true); name the "
                    "columns of tags with labels (--labels)"
                )
        tags = [name for name, text in cells.items() if VALUES.get(text.lower())]
        texts.append("" if not {*row}.isdisjoint(MISSING) else words.write(tags))
    return texts


class TagLabels(Labels):
    """Tags that can be written again, in columns of 0 and 1 or in one of texts."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        if settings.tags is None:
            self.data = open_labels(path, settings.label, settings.id, settings.encoding)
            self.words = Vocabulary.of(self.data.labels, settings)
            self.labels = [self.words.rewrite(cell, str(path)) for cell in self.data.labels]
        else:
            columns = [self._open(path, name) for name in settings.tags]
            self.data, self.words = columns[0], Vocabulary.of((), settings)
            self.labels = read_columns([part.labels for part in columns], self.words, str(path))
        self.ids = self.data.ids

    def _open(self, path: Path, column: str) -> Labels:
        return open_labels(path, column, self.settings.id, self.settings.encoding)

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """All as it was, but for the tags that changed and the rows that are left out."""
        if self.settings.tags is None:
            edited = {row: self._edit(row, text) for row, text in changed.items()}
            self.data.write(out, edited, rows)
            return
        moved = self.words.table([self.labels[row] for row in changed])
        moved = moved != self.words.table(list(changed.values()))
        tags = moved.any(0).nonzero().flatten().tolist() or [0]
        with TemporaryDirectory(dir=out.parent) as folder:  # one column after the other
            source = self.path
            for t in tags:
                last = t == tags[-1]
                target = out if last else Path(folder, str(t), self.path.name)
                target.parent.mkdir(exist_ok=True)
                data = self._open(source, self.words.names[t])
                some = (row for row, flip in zip(changed, moved[:, t], strict=True) if flip)
                flips = {row: _flip(data.labels[row], data.labels) for row in some}
                data.write(target, flips, rows if last else range(len(self.ids)))
                if t != tags[0]:
                    shutil.rmtree(source.parent)
                source = target

    def _edit(self, row: int, text: str) -> str:
        """A cell with other tags: those that stay as they stand there, the new ones after them."""
        cells, mark = self.data.labels, self.words.separator
        new = split_tags(text, mark)
        kept = [tag for tag in split_tags(cells[row], mark) if tag in new]
        between = f"{mark} " if any(f"{mark} " in cell for cell in cells) else mark
        made = between.join([*kept, *(tag for tag in new if tag not in kept)])
        return made or (NO_TAGS if NO_TAGS in cells else "")


def _flip(cell: str, cells: Sequence[str]) -> str:
    """The other value, as the column writes it."""
    other = 1 - VALUES[label_texts([cell])[0].lower()]
    alike = (text for text in cells if VALUES.get(label_texts([text])[0].lower()) == other)
    return next(alike, OPPOSITES.get(cell.strip(), str(other)))
