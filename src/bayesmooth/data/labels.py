"""Labels as people write them, words or numbers, to class names and class numbers; and any value as its text."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError

# Columns of labels where none is named: the first that is there counts.
LABELS = ("label", "labels", "target", "class", "y")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "<NA>")
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


def label_texts(values: Iterable[Any]) -> list[str]:
    """Labels as texts, without the blanks around them; where all are whole numbers, 1.0 is 1.

    >>> label_texts(["0", "0.0", " 1"]), label_texts(["2.7", "3.0"])
    (['0', '0', '1'], ['2.7', '3.0'])
    """
    texts = [as_text(value).strip() for value in values]
    present = set(texts) - set(MISSING)
    if any("." in text for text in present) and all(map(WHOLE.fullmatch, present)):
        return [text if text in MISSING else text.partition(".")[0] for text in texts]
    return texts


def find_missing(
    labels: Iterable[Any], names: Sequence[str] = (), numbered: bool = False
) -> list[bool]:
    """Which labels are not there: None, NaN, a text like "NA" that names no class.

    −1 is missing where classes have names and none is −1, and where labels are `numbered`: positions in the names.

    >>> find_missing([1, -1, None]), find_missing([1, -1, "NA"], ["cat", "NA"])
    ([False, False, True], [False, True, False])
    """
    absent = {*MISSING, *(["-1"] if names else [])} - {*names} | ({"-1"} if numbered else set())
    return [as_text(label).strip() in absent for label in labels]


def read_labels(values: Iterable[Any], where: str, names: Sequence[str] = ()) -> list[str]:
    """Labels as texts, of which none may be missing; "NA" is a label only if `names` has it.

    >>> read_labels(["cat", b"dog", 1, 2.0], "labels")
    ['cat', 'dog', '1', '2']
    """
    values, missing = list(values), set(MISSING) - set(names)
    texts = label_texts(values)
    for row, (value, text) in enumerate(zip(values, texts, strict=True)):
        if text in missing or (isinstance(value, float) and not value.is_integer()):
            raise InputError(
                f"{where}, row {row + 1}: {value!r} is not a class (a word or a whole number); fill it in, leave the "
                "row out, or name it in class_names"
            )
    return texts


def name_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The class names: all that occur, sorted (numbers as numbers).

    >>> name_classes(["10", "9", "9"]), name_classes(["dog", "cat"])
    (('9', '10'), ('cat', 'dog'))
    """
    kinds = sorted(set(labels))
    return tuple(sorted(kinds, key=int) if all(map(is_number, kinds)) else kinds)


def class_numbers(
    labels: Iterable[str], names: Sequence[str], numbered: bool = False
) -> dict[str, int]:
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
    labels: Sequence[str], names: Sequence[str], where: str, numbered: bool = False
) -> Tensor:
    """Labels as class numbers.

    >>> encode(["b", "a"], ("a", "b"), "labels"), encode(["1", "0"], ("cat", "dog"), "labels")
    (tensor([1, 0]), tensor([1, 0]))
    """
    number = class_numbers(labels, names, numbered)
    for row, label in enumerate(labels, 1):
        if label not in number:
            known = ", ".join(names)[:200]
            raise InputError(
                f"{where}, row {row}: {label[:80]!r} is not one of the classes {known}"
            )
    return torch.tensor([number[label] for label in labels], dtype=torch.int64, device="cpu")


def is_number(text: str) -> bool:
    """Whether a text is a whole number as one writes class numbers: digits alone, and not too many."""
    return text.isascii() and text.isdigit() and len(text) < 16
