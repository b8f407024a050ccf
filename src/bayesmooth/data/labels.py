"""One label type: a class, a set of tags, or the majority of several votes; and labels as people write them.

To everything that learns, a label is a number: a position in `names`. `Labels` turn the number into its text, and the
text that a reviewer writes into a label. A set of tags is written as its tags in the order of the vocabulary,
`beach; dog`, and the empty one as `(no tags)`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError

LABELS = ("label", "labels", "target", "class", "y", "given")  # the first that is there counts; an audit has `given`
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>")
NO_TAGS = "(no tags)"
SEPARATOR = ";"  # of tags that were columns
VALUES = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
OPPOSITES = {"0": "1", "0.0": "1.0", "False": "True", "false": "true", "FALSE": "TRUE"}
OPPOSITES |= {on: off for off, on in OPPOSITES.items()}
DIGITS = re.compile(r"[0-9]{1,15}")  # a class number as one writes it
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")


def as_text(value: Any) -> str:
    """A value as text, the same from every format: a missing one is empty, whole reals lose their point.

    A character that UTF-8 cannot hold is written with a backslash.

    >>> [as_text(value) for value in ("0007", 7.0, 7.5, b"cat", None, float("nan"))]
    ['0007', '7', '7.5', 'cat', '', '']
    """
    if type(value) is str and value.isascii():
        return value
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class Vocabulary:
    """All tags in their order, and the separator between two of them."""

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

    def table(self, sets: Sequence[str]) -> Tensor:
        """0 and 1 (sets, tags): 1 where the set has the tag.

        >>> Vocabulary(("a", "b")).table(["b", "(no tags)"]).tolist()
        [[0, 1], [0, 0]]
        """
        have = [{*split_tags(text, self.separator)} for text in sets]
        rows = [[int(name in tags) for name in self.names] for tags in have]
        return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(len(sets), len(self.names))

    def describe(self) -> dict[str, Any]:
        """The names, the text between two of them and the text of no tags, for a reader of the texts."""
        return {"names": list(self.names), "between": self.between, "none": NO_TAGS}

    def subtract(self, text: str, other: str) -> str:
        """The tags of one set that another lacks; empty where there are none."""
        left = {*split_tags(text, self.separator)} - {*split_tags(other, self.separator)}
        return self.write(left) if left else ""

    def join_columns(self, columns: Iterable[Sequence[str]], where: str, place: Callable[[int], str]) -> list[str]:
        """The set of every row as text, from one column of 0 and 1 per tag; empty where one of them is missing."""
        texts = []
        for number, row in enumerate(zip(*columns, strict=True)):
            cells = {name: cell.strip() for name, cell in zip(self.names, row, strict=True)}
            for name, cell in cells.items():
                if cell not in MISSING and cell.lower() not in VALUES:
                    raise InputError(
                        f"{where}, {place(number)}, column {name!r}: {cell!r} must be 0 or 1 (or false, true); name "
                        "the columns of tags with tags (--tags)"
                    )
            complete = {*cells.values()}.isdisjoint(MISSING)
            texts.append(self.write(name for name, cell in cells.items() if VALUES[cell.lower()]) if complete else "")
        return texts

    def write_cells(self, sets: Mapping[int, str], cells: Sequence[str]) -> dict[int, str]:
        """Sets by row as a column of cells writes them: with or without a blank after the separator."""
        mark = self.separator
        between = f"{mark} " if any(f"{mark} " in cell for cell in cells) else mark
        none = NO_TAGS if NO_TAGS in cells else ""
        return {row: between.join(split_tags(text, mark)) or none for row, text in sets.items()}


def split_tags(text: str, separator: str) -> list[str]:
    """The tags in a cell, each once.

    >>> split_tags("dog;  beach;dog;", ";"), split_tags("(no tags)", ";")
    (['dog', 'beach'], [])
    """
    if text.strip() == NO_TAGS:
        return []
    return list(dict.fromkeys(tag.strip() for tag in text.split(separator) if tag.strip()))


def read_tag_cell(value: Any, separator: str) -> str:
    """The text of a cell of tags: an empty text or list is no tags, a missing value is missing."""
    if isinstance(value, list):
        value = separator.join(map(as_text, value))
    text = as_text(value).strip()
    if value is None or text in MISSING[1:]:
        return ""
    return text or NO_TAGS


@dataclass(frozen=True, eq=False)
class Labels:
    """One label per example: `numbers` are positions in `names`."""

    numbers: Tensor
    names: tuple[str, ...]
    vocabulary: Vocabulary | None = None
    """All tags, where a label is a set of them; `names` are then the sets that occur, each written as one text."""
    votes: tuple[tuple[int, str, str], ...] = ()
    """(Position of the example, annotator, class) of every vote, where the label is the majority's."""

    def __post_init__(self) -> None:
        numbers, classes = self.numbers, len(self.names)
        if numbers.ndim != 1:
            raise InputError(f"labels of shape {tuple(numbers.shape)}: must be one per row, (N,)")
        if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
            raise InputError(f"labels are {numbers.dtype}: must be integers from 0 to {classes - 1}")
        if len(bad := ((numbers < 0) | (numbers >= classes)).nonzero()):
            at = int(bad[0])
            raise InputError(f"labels[{at}]={int(numbers[at])}: must be from 0 to {classes - 1}")
        object.__setattr__(self, "numbers", numbers.to(torch.int64))

    @classmethod
    def of_votes(cls, votes: Sequence[tuple[int, str, str]], names: Sequence[str] | None, where: str) -> "Labels":
        """The labels that most people gave; where two tie, the one that was given first. Every example has a vote.

        >>> Labels.of_votes([(0, "ann", "cat"), (0, "bob", "dog"), (0, "eve", "dog")], None, "votes").texts()
        ['dog']
        """
        if share := next((label for _, _, label in votes if re.fullmatch(r"0?\.\d*[1-9]\d*", label)), None):
            raise InputError(
                f"votes such as {share} are probabilities; give classes, or use audit_probabilities (--probabilities)"
            )
        counts: dict[int, Counter[str]] = {}
        for row, _, label in votes:
            counts.setdefault(row, Counter())[label] += 1
        texts = [counts[row].most_common(1)[0][0] for row in range(len(counts))]
        names = tuple(names or name_classes(texts))
        return cls(encode(texts, names, where), names, votes=tuple(votes))

    @property
    def kind(self) -> str:
        """The kind of the labels: class, tags or votes."""
        return "votes" if self.votes else "class" if self.vocabulary is None else "tags"

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Tensor:
        return self.numbers[index]

    def texts(self) -> list[str]:
        """The label of every example as it is shown."""
        return [self.names[k] for k in self.numbers.tolist()]

    def counts(self) -> Tensor:
        """The number of examples of each name."""
        return torch.bincount(self.numbers, minlength=len(self.names))

    def table(self) -> Tensor:
        """0 and 1 (N, T): 1 where the example has the tag."""
        assert self.vocabulary is not None
        return self.vocabulary.table(self.names)[self.numbers]

    def subset(self, index: Tensor) -> "Labels":
        """The labels at these positions, with the votes on them."""
        place = {row: at for at, row in enumerate(index.tolist())} if self.votes else {}
        votes = tuple((place[row], who, label) for row, who, label in self.votes if row in place)
        return replace(self, numbers=self.numbers[index], votes=votes)

    def renumber(self, numbers: Tensor) -> "Labels":
        """Other labels with the same names."""
        return replace(self, numbers=numbers)

    def relabel(self, texts: Sequence[str]) -> "Labels":
        """Other labels, given as texts, of which some may be new."""
        names = tuple(dict.fromkeys([*self.names, *texts]))
        number = {name: k for k, name in enumerate(names)}
        numbers = torch.tensor([number[t] for t in texts], dtype=torch.int64, device="cpu")
        return replace(self, numbers=numbers, names=names)

    def parse(self, text: str, where: str) -> str:
        """A label that somebody wrote, as these labels write it; an unknown tag is an error."""
        if self.vocabulary is not None:
            return self.vocabulary.write(split_tags(text, self.vocabulary.separator), where)
        label = unicodedata.normalize("NFC", text)
        return label if label in self.names else label.strip()

    def edit_cells(
        self, cells: Mapping[str, Sequence[str]], wanted: Mapping[int, str], numbered: bool = False
    ) -> dict[str, dict[int, str]]:
        """The cells of a table, by column and row, that other labels change; each is written as its column writes it.

        Tags are one column of texts, or one column of 0 and 1 each. `numbered` cells hold positions in the names.
        Blanks around a label stay, and 0.0 stays 0.0.
        """
        words, first = self.vocabulary, next(iter(cells))
        if words is None:
            edited = {first: self._edit_classes(cells[first], wanted, numbered)}
        elif tuple(cells) != words.names:
            edited = {first: words.write_cells(wanted, cells[first])}
        else:
            values = dict(zip(cells, words.table([*wanted.values()]).T.tolist(), strict=True))
            edited = {
                name: {
                    row: text if VALUES[text.strip().lower()] == value else OPPOSITES.get(text.strip(), str(value))
                    for row, text, value in zip(wanted, map(texts.__getitem__, wanted), values[name], strict=True)
                }
                for name, texts in cells.items()
            }
        return {
            name: {row: new for row, new in column.items() if new != cells[name][row]}
            for name, column in edited.items()
        }

    def _edit_classes(self, texts: Sequence[str], wanted: Mapping[int, str], numbered: bool) -> dict[int, str]:
        bare = label_texts(texts)
        present = {*bare} - {*MISSING, "-1"}  # rows without a label are not changed
        codes = {self.names[k]: text for text, k in class_numbers(present, self.names, numbered).items()}
        written = {code: cell.strip() for code, cell in zip(bare[::-1], texts[::-1], strict=True)}
        changed = {row: codes.get(label, label) for row, label in wanted.items()}
        return {
            row: texts[row].replace(texts[row].strip(), written.get(code, code))
            for row, code in changed.items()
            if code != bare[row]
        }

    def count_votes(self) -> "Votes":
        """The votes as numbers; a label that is no example's majority is no class, and its votes do not count."""
        number = class_numbers({label for _, _, label in self.votes}, self.names)
        people = tuple(sorted({who for _, who, _ in self.votes}))
        place = {who: a for a, who in enumerate(people)}
        kept = [(row, place[who], number[label]) for row, who, label in self.votes if label in number]
        example, annotator, chosen = torch.tensor(kept, dtype=torch.int64, device="cpu").reshape(-1, 3).unbind(1)
        return Votes(example, annotator, chosen, len(self), people, len(self.names))


@dataclass(frozen=True)
class Votes:
    """Votes as numbers: entry v is the `label` that an `annotator` gave an `example`."""

    example: Tensor
    annotator: Tensor
    label: Tensor
    examples: int
    annotators: tuple[str, ...]
    classes: int

    def counts(self) -> Tensor:
        """The number of votes for each class (N, K)."""
        cells = self.examples * self.classes
        flat = torch.bincount(self.example * self.classes + self.label, minlength=cells)
        return flat.view(self.examples, self.classes)

    def majority(self, prior: Tensor) -> Tensor:
        """The class that most people chose (N,); where classes tie, the one that the prior prefers."""
        return (self.counts() + 0.5 * prior).argmax(1)

    def by_example(self) -> list[list[tuple[int, int]]]:
        """The votes on each example as pairs of annotator and label."""
        said: list[list[tuple[int, int]]] = [[] for _ in range(self.examples)]
        for i, a, k in torch.stack([self.example, self.annotator, self.label], 1).tolist():
            said[i].append((a, k))
        return said

    def texts(self, class_names: Sequence[str]) -> list[str]:
        """The votes on each example in words: "ann: cat, bob: dog"."""
        return [", ".join(f"{self.annotators[a]}: {class_names[k]}" for a, k in votes) for votes in self.by_example()]


def label_texts(values: Iterable[Any]) -> list[str]:
    """Labels as texts in one spelling (NFC), without the blanks around them; where all are whole numbers, 1.0 is 1.

    >>> label_texts(["0", "0.0", " 1"]), label_texts(["2.7", "3.0"])
    (['0', '0', '1'], ['2.7', '3.0'])
    """
    texts = [*map(as_text, values)]
    spelled = {text: unicodedata.normalize("NFC", text.strip()) for text in {*texts}}
    present = {*spelled.values()} - {*MISSING}
    if any("." in text for text in present) and all(map(WHOLE.fullmatch, present)):
        spelled = {text: label if label in MISSING else label.partition(".")[0] for text, label in spelled.items()}
    return [spelled[text] for text in texts]


def name_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The class names: all that occur, sorted (numbers as numbers).

    >>> name_classes(["10", "9", "9"]), name_classes(["dog", "cat"])
    (('9', '10'), ('cat', 'dog'))
    """
    kinds = sorted(set(labels))
    return tuple(sorted(kinds, key=int) if all(map(DIGITS.fullmatch, kinds)) else kinds)


def class_numbers(labels: Iterable[str], names: Sequence[str], numbered: bool = False) -> dict[str, int]:
    """The number of each class by its text in these labels: the position where they are `numbered`, else the name.

    They are numbered, too, where all of them are numbers and no name is one.

    >>> class_numbers(["1", "0"], ("cat", "dog")), class_numbers(["1", "0"], ("1", "0"))
    ({'0': 0, '1': 1}, {'1': 0, '0': 1})
    """
    if len(set(names)) < len(names):
        raise InputError(f"a class name appears twice in {', '.join(names)[:200]}; rename one")
    numbered = numbered or (all(map(DIGITS.fullmatch, labels)) and not any(map(DIGITS.fullmatch, names)))
    return {str(k) if numbered else name: k for k, name in enumerate(names)}


def encode(
    labels: Sequence[str],
    names: Sequence[str],
    where: str,
    numbered: bool = False,
    place: Callable[[int], str] = "row {}".format,
) -> Tensor:
    """Labels as class numbers; `place` gives the place of one in words.

    >>> encode(["b", "a"], ("a", "b"), "labels"), encode(["1", "0"], ("cat", "dog"), "labels")
    (tensor([1, 0]), tensor([1, 0]))
    """
    number = class_numbers(set(labels), names, numbered)
    if not {*labels} <= {*number}:
        row, classes = [label in number for label in labels].index(False), ", ".join(names)[:200]
        raise InputError(f"{where}, {place(row)}: {labels[row][:80]!r} is not one of the classes {classes}")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64, device="cpu")
