"""One label type: a class, a set of tags, or what several people voted for; and labels as people write them.

To everything that learns, a label is a number: a position in `names`. What the number stands for, how it is shown, and
what a reviewer may write for it, its `Labels` know. A set of tags is written as its tags in the order of the
vocabulary, `beach; dog`, and the empty one as `(no tags)`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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
SHARE = re.compile(r"0?\.\d+([eE]-\d+)?|[01](\.0*)?")
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")


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


def as_texts(values: Iterable[Any]) -> list[str]:
    """All of them as texts."""
    values = list(values)
    return map_distinct(as_text, values) if {*map(type, values)} == {str} else [*map(as_text, values)]


def map_distinct(function: Callable[[str], Any], texts: Sequence[str]) -> list[Any]:
    """The function of every text, computed once for those that are equal."""
    made = {text: function(text) for text in {*texts}}
    return [made[text] for text in texts]


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

    def join_columns(self, columns: Iterable[Iterable[Any]], where: str, place: Callable[[int], str]) -> list[str]:
        """The set of every row as text, from one column of 0 and 1 per tag; empty where one of them is missing."""
        texts = []
        rows = zip(*([as_text(v).strip() for v in column] for column in columns), strict=True)
        for number, row in enumerate(rows):
            for name, cell in zip(self.names, row, strict=True):
                if cell not in MISSING and cell.lower() not in VALUES:
                    raise InputError(
                        f"{where}, {place(number)}, column {name!r}: {cell!r} must be 0 or 1 (or false, true); name "
                        "the columns of tags with tags (--tags)"
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


def read_tag_cell(value: Any, separator: str) -> str:
    """The text of a cell of tags: an empty text or list is no tags, a missing value is missing."""
    if isinstance(value, list):
        value = separator.join(map(as_text, value))
    text = as_text(value).strip()
    if value is None or text in MISSING[1:]:
        return ""
    return text or NO_TAGS


def flip_cell(cell: str, cells: Sequence[str]) -> str:
    """The other of 0 and 1, as the column writes it."""
    other = 1 - VALUES[cell.strip().lower()]
    alike = (text for text in cells if VALUES.get(text.strip().lower()) == other)
    return next(alike, OPPOSITES.get(cell.strip(), str(other)))


@dataclass(frozen=True, eq=False)
class Labels:
    """One class per example: `numbers` are positions in `names`."""

    numbers: Tensor
    names: tuple[str, ...]

    kind: ClassVar[str] = "class"
    are_classes: ClassVar[bool] = True
    """Whether each name is a class, which is learned from its own examples."""

    def __post_init__(self) -> None:
        numbers = as_class_numbers(self.numbers, len(self.names), "labels")
        object.__setattr__(self, "numbers", numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Tensor:
        return self.numbers[index]

    def texts(self) -> list[str]:
        """The label of every example as it is shown."""
        return [self.names[k] for k in self.numbers.tolist()]

    def counts(self) -> Tensor:
        """How many examples each name has."""
        return torch.bincount(self.numbers, minlength=len(self.names))

    def subset(self, index: Tensor) -> Self:
        """The labels at these positions."""
        return replace(self, numbers=self.numbers[index])

    def renumber(self, numbers: Tensor) -> Self:
        """Other labels with the same names."""
        return replace(self, numbers=numbers)

    def parse(self, text: str, where: str) -> str:
        """A label that somebody wrote, as these labels write it."""
        return unicodedata.normalize("NFC", text)

    def relabel(self, texts: Sequence[str]) -> Self:
        """Other labels, given as texts, of which some may be new."""
        names = tuple(dict.fromkeys([*self.names, *texts]))
        number = {name: k for k, name in enumerate(names)}
        numbers = torch.tensor([number[t] for t in texts], dtype=torch.int64, device="cpu")
        return replace(self, numbers=numbers, names=names)

    def keep_names(self, kept: Tensor) -> Self:
        """The same labels without the names that are not kept, which no example has."""
        names = tuple(n for n, k in zip(self.names, kept.tolist(), strict=True) if k)
        return replace(self, numbers=(kept.cumsum(0) - 1)[self.numbers], names=names)

    def edit_cells(
        self, cells: Mapping[str, Sequence[str]], wanted: Mapping[int, str], numbered: bool = False
    ) -> dict[str, dict[int, str]]:
        """The cells of a table, by column and row, that other labels change; each is written as its column writes it.

        `numbered` cells hold positions in the names. Blanks around a label stay, and 0.0 stays 0.0.
        """
        ((column, texts),) = cells.items()
        bare = label_texts(texts)
        present = {*bare} - {*MISSING, "-1"}  # rows without a label are not changed
        numbers = class_numbers(present, self.names, numbered)
        codes = {self.names[k]: text for text, k in numbers.items()}
        written = {code: cell.strip() for code, cell in zip(bare[::-1], texts[::-1], strict=True)}
        changed = {}
        for row, label in wanted.items():
            code, old = codes.get(label, label), texts[row]
            if code != bare[row]:
                changed[row] = old.replace(old.strip(), written.get(code, code))
        return {column: changed}


@dataclass(frozen=True, eq=False)
class TagLabels(Labels):
    """A set of tags per example; `names` are the sets that occur, each written as one text."""

    vocabulary: Vocabulary

    kind: ClassVar[str] = "tags"
    are_classes: ClassVar[bool] = False

    @classmethod
    def of(cls, sets: Sequence[str], vocabulary: Vocabulary) -> "TagLabels":
        """From one text per example."""
        names = name_classes(sets)
        return cls(encode(sets, names, "tags"), names, vocabulary)

    def parse(self, text: str, where: str) -> str:
        """The set as the vocabulary writes it; an unknown tag is an error."""
        return self.vocabulary.rewrite(text, where)

    def edit_cells(
        self, cells: Mapping[str, Sequence[str]], wanted: Mapping[int, str], numbered: bool = False
    ) -> dict[str, dict[int, str]]:
        """The cells that other sets change: in columns of 0 and 1, or in one of texts."""
        words = self.vocabulary
        if tuple(cells) != words.names:
            ((column, texts),) = cells.items()
            moved = {row: new for row, new in wanted.items() if not self._is_set(texts[row], new)}
            return {column: {r: words.edit_cell(texts[r], new, texts) for r, new in moved.items()}}
        tags = words.table(list(wanted.values())).T.tolist()
        return {
            name: {
                row: flip_cell(texts[row], texts)
                for row, value in zip(wanted, column, strict=True)
                if VALUES[texts[row].strip().lower()] != value
            }
            for (name, texts), column in zip(cells.items(), tags, strict=True)
        }

    def _is_set(self, cell: str, text: str) -> bool:
        mark = self.vocabulary.separator
        return {*split_tags(cell, mark)} == {*split_tags(text, mark)}

    def table(self) -> Tensor:
        """0 and 1 (N, T): which tags every example has."""
        return self.vocabulary.table(self.names)[self.numbers]


@dataclass(frozen=True, eq=False)
class VotedLabels(Labels):
    """The class that most people chose, and everybody's votes: (position of the example, annotator, class)."""

    votes: tuple[tuple[int, str, str], ...]

    kind: ClassVar[str] = "votes"

    @classmethod
    def of(cls, votes: Sequence[tuple[int, str, str]], names: Sequence[str] | None, where: str) -> "VotedLabels":
        """The labels that most people gave; where two tie, the one that was given first. Every example has a vote.

        >>> VotedLabels.of([(0, "ann", "cat"), (0, "bob", "dog"), (0, "eve", "dog")], None, "votes").texts()
        ['dog']
        """
        refuse_shares([said for _, _, said in votes])
        counts: dict[int, Counter[str]] = {}
        for row, _, said in votes:
            counts.setdefault(row, Counter())[said] += 1
        texts = [counts[row].most_common(1)[0][0] for row in range(len(counts))]
        names = tuple(names or name_classes(texts))
        return cls(encode(texts, names, where), names, tuple(votes))

    def subset(self, index: Tensor) -> "VotedLabels":
        """The labels at these positions, with the votes on them."""
        place = {row: at for at, row in enumerate(index.tolist())}
        votes = tuple((place[row], who, said) for row, who, said in self.votes if row in place)
        return replace(self, numbers=self.numbers[index], votes=votes)

    def count(self) -> "Votes":
        """The votes as numbers; a label that is no example's majority is no class, and its votes do not count."""
        number = class_numbers({said for _, _, said in self.votes}, self.names)
        people = tuple(sorted({who for _, who, _ in self.votes}))
        place = {who: a for a, who in enumerate(people)}
        kept = [(row, place[who], number[said]) for row, who, said in self.votes if said in number]
        table = torch.tensor(kept, dtype=torch.int64, device="cpu").reshape(-1, 3)
        example, annotator, label = table.unbind(1)
        return Votes(example, annotator, label, len(self), people, len(self.names))


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
        """How many chose each class, (N, K)."""
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


def refuse_shares(labels: Sequence[str]) -> None:
    """Votes are classes; numbers between 0 and 1 are probabilities."""
    share = next((v for v in labels if v.startswith(("0.", ".")) and v.strip("0.")), None)
    if share is not None and all(v in MISSING or SHARE.fullmatch(v) for v in labels):
        raise InputError(
            f"votes such as {share}: probabilities are no votes; give the class that each annotator chose, or audit "
            "them with bayesmooth.audit_probabilities (--probabilities)"
        )


def label_texts(values: Iterable[Any]) -> list[str]:
    """Labels as texts in one spelling (NFC), without the blanks around them; where all are whole numbers, 1.0 is 1.

    >>> label_texts(["0", "0.0", " 1"]), label_texts(["2.7", "3.0"])
    (['0', '0', '1'], ['2.7', '3.0'])
    """
    texts = map_distinct(str.strip, as_texts(values))
    present = set(texts) - set(MISSING)
    if any("." in text for text in present) and all(map(WHOLE.fullmatch, present)):
        return [text if text in MISSING else text.partition(".")[0] for text in texts]
    return map_distinct(lambda text: unicodedata.normalize("NFC", text), texts)


def find_missing(labels: Iterable[Any], names: Sequence[str] = (), numbered: bool = False) -> list[bool]:
    """Which labels are not there: None, NaN, a text like "NA" that names no class.

    −1 is missing where classes have names and none is −1, and where labels are `numbered`: positions in the names.

    >>> find_missing([1, -1, None]), find_missing([1, -1, "NA"], ["cat", "NA"])
    ([False, False, True], [False, True, False])
    """
    absent = {*MISSING, *(["-1"] if names else [])} - {*names} | ({"-1"} if numbered else set())
    return map_distinct(lambda label: label.strip() in absent, as_texts(labels))


def read_labels(values: Iterable[Any], where: str, place: Callable[[int], str] = "row {}".format) -> list[str]:
    """Labels as texts, where none is missing; a number with a fraction is no class.

    >>> read_labels(["cat", b"dog", 1, 2.0], "labels")
    ['cat', 'dog', '1', '2']
    """
    values = list(values)
    for row, value in enumerate(values):
        if isinstance(value, float) and not value.is_integer():
            raise InputError(
                f"{where}, {place(row)}: {value!r} is not a class (a word or a whole number); mend it, or leave the "
                "row out"
            )
    return label_texts(values)


def name_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The class names: all that occur, sorted (numbers as numbers).

    >>> name_classes(["10", "9", "9"]), name_classes(["dog", "cat"])
    (('9', '10'), ('cat', 'dog'))
    """
    kinds = sorted(set(labels))
    return tuple(sorted(kinds, key=int) if all(map(is_number, kinds)) else kinds)


def class_numbers(labels: Iterable[str], names: Sequence[str], numbered: bool = False) -> dict[str, int]:
    """What stands for each class in these labels: its position where they are `numbered`, else its name.

    They are numbered, too, where all of them are numbers and no name is one.

    >>> class_numbers(["1", "0"], ("cat", "dog")), class_numbers(["1", "0"], ("1", "0"))
    ({'0': 0, '1': 1}, {'1': 0, '0': 1})
    """
    if len(set(names)) < len(names):
        raise InputError(f"a class name appears twice in {', '.join(names)[:200]}; rename one")
    numbered = numbered or (all(map(is_number, labels)) and not any(map(is_number, names)))
    return {str(k) if numbered else name: k for k, name in enumerate(names)}


def encode(
    labels: Sequence[str],
    names: Sequence[str],
    where: str,
    numbered: bool = False,
    place: Callable[[int], str] = "row {}".format,
) -> Tensor:
    """Labels as class numbers; `place` says where one stands.

    >>> encode(["b", "a"], ("a", "b"), "labels"), encode(["1", "0"], ("cat", "dog"), "labels")
    (tensor([1, 0]), tensor([1, 0]))
    """
    number = class_numbers(set(labels), names, numbered)
    if unknown := {*labels} - {*number}:
        row, known = min(map(labels.index, unknown)), ", ".join(names)[:200]
        raise InputError(f"{where}, {place(row)}: {labels[row][:80]!r} is not one of the classes {known}")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64, device="cpu")


def is_number(text: str) -> bool:
    """Whether a text is a whole number as one writes class numbers: digits alone, and not too many."""
    return text.isascii() and text.isdigit() and len(text) < 16


def as_class_numbers(labels: Tensor, classes: int, what: str, count: int | None = None) -> Tensor:
    """Labels as int64, one per input, each in 0 … K−1."""
    if labels.ndim != 1 or len(labels) != (len(labels) if count is None else count):
        wanted = "N" if count is None else count
        raise InputError(f"{what} of shape {tuple(labels.shape)}: must be one per row, ({wanted},)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{what} are {labels.dtype}: must be integers from 0 to {classes - 1}")
    labels = labels.to(torch.int64)
    bad = ((labels < 0) | (labels >= classes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise InputError(f"{what}[{at}]={int(labels[at])}: must be from 0 to {classes - 1}")
    return labels
