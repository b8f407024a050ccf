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

    def write(self, tags: Iterable[str]) -> str:
        """A set as text.

        >>> Vocabulary(("beach", "dog")).write({"dog", "beach"}), Vocabulary(("a",)).write(())
        ('beach; dog', '(no tags)')
        """
        chosen = set(tags)
        return self.between.join(name for name in self.names if name in chosen) or NO_TAGS

    @property
    def between(self) -> str:
        """The separator as it is written."""
        mark = self.separator
        return mark if mark.isspace() else f"{mark} " if mark in ";," else f" {mark} "

    def read(self, text: str, where: str) -> set[str]:
        """The tags in a text; an unknown one is an error."""
        return self.check({*split_tags(text, self.separator)}, where)

    def check(self, tags: set[str], where: str) -> set[str]:
        """The tags, where all are known."""
        unknown = sorted(tags.difference(self.names))
        if unknown:
            raise InputError(
                f"{where}: {unknown[0]!r} is not one of the tags {', '.join(self.names)[:200]}; mend it, or name it too"
            )
        return tags

    def rewrite(self, text: str, where: str) -> str:
        """The text of a set as this vocabulary writes it."""
        return self.write(self.read(text, where))

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
    found: list[set[str] | None]
    if np.ndim(labels) == 2 and not isinstance(labels, list | tuple):
        table = np.asarray(labels)
        columns = getattr(labels, "columns", range(table.shape[1]))
        names = tuple(map(str, settings.class_names or columns))
        if len(names) != table.shape[1]:
            raise InputError(f"{len(names)} class names for {table.shape[1]} columns of labels")
        found = read_columns(dict(zip(names, table.T.tolist(), strict=True)), "labels")
    elif isinstance(labels, list | tuple) and any(isinstance(r, SETS) for r in labels):
        sets = [_read_set(number, row) for number, row in enumerate(labels)]
        names = tuple(map(str, settings.class_names or name_classes(set[str]().union(*sets))))
        words = Vocabulary(names, settings.separator or SEPARATOR)
        found = [words.check(row, f"labels[{number}]") for number, row in enumerate(sets)]
    else:
        return labels, settings
    words = Vocabulary(names, settings.separator or SEPARATOR)
    texts = ["" if row is None else words.write(row) for row in found]
    return texts, replace(settings, tags=names, separator=words.separator, class_names=None)


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
    words = Vocabulary.of((), settings)
    found = read_columns({c: as_values(frame[c]) for c in settings.tags}, where)
    label = "tags"
    while label in frame:
        label += "_"
    texts = ["" if row is None else words.write(row) for row in found]
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


def read_columns(columns: Mapping[str, Sequence[Any]], where: str) -> list[set[str] | None]:
    """The tags of every row, from columns of 0 and 1; None where one of them is missing."""
    count = len(next(iter(columns.values())))
    rows: list[set[str] | None] = [set() for _ in range(count)]
    for name, values in columns.items():
        for number, text in enumerate(label_texts(values)):
            value = VALUES.get(text.lower())
            if text in MISSING:
                rows[number] = None
            elif value is None:
                raise InputError(
                    f"{where}, row {number + 1}, column {name!r}: {text!r} must be 0 or 1 (or false, true); name the "
                    "columns of tags with labels (--labels)"
                )
            elif value and (row := rows[number]) is not None:
                row.add(name)
    return rows


class TagLabels(Labels):
    """Tags that can be written again, in columns of 0 and 1 or in one of texts."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        if settings.tags is None:
            self.data = open_labels(path, settings.label, settings.id, settings.encoding)
            self.words = Vocabulary.of(self.data.labels, settings)
            self.labels = [self.words.rewrite(cell, str(path)) for cell in self.data.labels]
        else:
            columns = {name: self._open(path, name) for name in settings.tags}
            self.data, self.words = columns[settings.tags[0]], Vocabulary.of((), settings)
            rows = read_columns({name: part.labels for name, part in columns.items()}, str(path))
            self.labels = ["" if row is None else self.words.write(row) for row in rows]
        self.ids = self.data.ids

    def _open(self, path: Path, column: str) -> Any:
        return open_labels(path, column, self.settings.id, self.settings.encoding)

    def write(self, out: Path, changed: Mapping[int, str], rows: Sequence[int]) -> None:
        """All as it was, but for the tags that changed and the rows that are left out."""
        if self.settings.tags is None:
            self.data.write(
                out, {row: self._edit(row, text) for row, text in changed.items()}, rows
            )
            return
        before = self.words.table([self.labels[row] for row in changed])
        after = self.words.table(list(changed.values()))
        moved = [
            t for t in range(len(self.words.names)) if bool((before != after)[:, t].any())
        ] or [0]
        with TemporaryDirectory(dir=out.parent) as folder:  # one column after the other
            path, every = self.path, range(len(self.ids))
            for step, t in enumerate(moved):
                data, last = self._open(path, self.words.names[t]), step == len(moved) - 1
                some = (before != after)[:, t].tolist()
                flips = {
                    row: _flip(data.labels[row], data.labels)
                    for row, flip in zip(changed, some, strict=True)
                    if flip
                }
                path = out if last else Path(folder) / str(step) / self.path.name
                if not last:
                    path.parent.mkdir()
                data.write(path, flips, rows if last else every)
                if step:
                    shutil.rmtree(Path(folder) / str(step - 1))

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
    for text in cells:
        if VALUES.get(label_texts([text])[0].lower()) == other:
            return text
    return OPPOSITES.get(cell.strip(), str(other))
