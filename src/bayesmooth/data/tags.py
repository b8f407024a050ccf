"""Sets of tags as texts, and any value as its text.

A set is written as its tags in the order of the vocabulary, `beach; dog`, and the empty one as `(no tags)`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>")
NO_TAGS = "(no tags)"
SEPARATOR = ";"  # of tags that were columns
VALUES = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
OPPOSITES = {"0": "1", "0.0": "1.0", "False": "True", "false": "true", "FALSE": "TRUE"}
OPPOSITES |= {on: off for off, on in OPPOSITES.items()}


def as_text(value: Any) -> str:
    """A value as text, the same from every format: a missing one is empty, whole reals lose their point.

    What UTF-8 cannot hold is written with a backslash.

    >>> [as_text(value) for value in ("0007", 7.0, 7.5, b"cat", None, float("nan"))]
    ['0007', '7', '7.5', 'cat', '', '']
    """
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


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
        table = torch.zeros(len(sets), len(self.names), dtype=torch.int64, device="cpu")
        for row, text in enumerate(sets):
            table[row, [place[tag] for tag in split_tags(text, self.separator)]] = 1
        return table

    def describe(self) -> dict[str, Any]:
        """What a reader of the texts has to know."""
        return {"names": list(self.names), "between": self.between, "none": NO_TAGS}

    def subtract(self, text: str, other: str) -> str:
        """The tags of one set that another lacks; empty where there are none."""
        left = {*split_tags(text, self.separator)} - {*split_tags(other, self.separator)}
        return self.write(left) if left else ""

    def join_columns(
        self, columns: Iterable[Iterable[Any]], where: str, places: Sequence[str]
    ) -> list[str]:
        """The set of every row as text, from one column of 0 and 1 per tag; empty where one of them is missing."""
        texts = []
        rows = zip(*([as_text(v).strip() for v in column] for column in columns), strict=True)
        for place, row in zip(places, rows, strict=True):
            for name, cell in zip(self.names, row, strict=True):
                if cell not in MISSING and cell.lower() not in VALUES:
                    raise InputError(
                        f"{where}, {place}, column {name!r}: {cell!r} must be 0 or 1 (or false, true); name the "
                        "columns of tags with labels (--labels)"
                    )
            cells = zip(self.names, row, strict=True)
            tags = [name for name, cell in cells if VALUES.get(cell.lower())]
            texts.append("" if not {*row}.isdisjoint(MISSING) else self.write(tags))
        return texts

    def edit_cell(self, cell: str, text: str, cells: Sequence[str]) -> str:
        """A cell with other tags: those that stay as they stand there, the new ones after them."""
        mark, new = self.separator, split_tags(text, self.separator)
        kept = [tag for tag in split_tags(cell, mark) if tag in new]
        between = f"{mark} " if any(f"{mark} " in each for each in cells) else mark
        edited = between.join([*kept, *(tag for tag in new if tag not in kept)])
        return edited or (NO_TAGS if NO_TAGS in cells else "")


def split_tags(text: str, separator: str) -> list[str]:
    """The tags in a cell, each once.

    >>> split_tags("dog;  beach;dog;", ";"), split_tags("(no tags)", ";")
    (['dog', 'beach'], [])
    """
    if text.strip() == NO_TAGS:
        return []
    return list(dict.fromkeys(tag.strip() for tag in text.split(separator) if tag.strip()))


def read_tag_cell(value: Any) -> str:
    """The text of a cell of tags: an empty text is no tags, a missing value is missing."""
    text = as_text(value).strip()
    if value is None or text in MISSING[1:]:
        return ""
    return text or NO_TAGS


def flip_cell(cell: str, cells: Sequence[str]) -> str:
    """The other of 0 and 1, as the column writes it."""
    other = 1 - VALUES[cell.strip().lower()]
    alike = (text for text in cells if VALUES.get(text.strip().lower()) == other)
    return next(alike, OPPOSITES.get(cell.strip(), str(other)))
