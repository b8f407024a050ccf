"""Labels as people write them (words or numbers) to class names and numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesmooth.errors import InputError


def plain(values: Iterable[Any], where: str) -> list[str]:
    """Labels as text; whole numbers stored as reals lose their point.

    >>> plain(["cat", 1, 2.0], "labels")
    ['cat', '1', '2']
    """
    texts = []
    for row, value in enumerate(values, 1):
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        text = "" if whole is None or isinstance(whole, float) else str(whole).strip()
        if not text:
            raise InputError(
                f"{where}, row {row}: {value!r} is no class; fill it in or leave the row out"
            )
        texts.append(text)
    return texts


def names_of(labels: Iterable[str]) -> tuple[str, ...]:
    """The class names: all that occur, sorted (numbers as numbers).

    >>> names_of(["10", "9", "9"]), names_of(["dog", "cat"])
    (('9', '10'), ('cat', 'dog'))
    """
    kinds = sorted(set(labels))
    return tuple(sorted(kinds, key=int) if all(map(_is_number, kinds)) else kinds)


def encode(labels: Sequence[str], names: Sequence[str], where: str) -> Tensor:
    """Class numbers: by name, or, where no name is a number, the numbers 0 … K−1 themselves.

    >>> encode(["b", "a"], ("a", "b"), "labels"), encode(["1", "0"], ("cat", "dog"), "labels")
    (tensor([1, 0]), tensor([1, 0]))
    """
    number = {name: k for k, name in enumerate(names)}
    known = ", ".join(names)[:200]
    if len(number) < len(names):
        raise InputError(f"{where}: a class name stands twice in {known}")
    if all(map(_is_number, labels)) and not any(map(_is_number, names)):
        number = {str(k): k for k in range(len(names))}
    for row, label in enumerate(labels, 1):
        if label not in number:
            raise InputError(
                f"{where}, row {row}: {label[:80]!r} is not one of the classes {known}"
            )
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
