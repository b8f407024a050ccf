"""Recipes as text: `tomllib` reads them, this writes them, and `--set a.b=c` changes them."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError

Tree = dict[str, dict[str, Any]]
"""Sections by name, each with its keys and values."""


def read(path: Path) -> Tree:
    """The sections of a TOML file."""
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    loose = [key for key, section in tree.items() if not isinstance(section, dict)]
    if loose:
        raise InputError(f"{path}: '{loose[0]}' stands outside of a section; put it under one")
    return tree


def write(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections as TOML.

    >>> print(write({"optimizer": {"name": "ivon", "lr": 0.2, "clip_radius": float("inf")}}))
    [optimizer]
    name = "ivon"
    lr = 0.2
    clip_radius = inf
    <BLANKLINE>
    """
    sections = []
    for name, section in tree.items():
        rows = "".join(f"{key} = {_value(value)}\n" for key, value in section.items())
        sections.append(f"[{name}]\n{rows}")
    return "\n".join(sections)


def override(tree: Tree, settings: Iterable[str]) -> Tree:
    """A copy of `tree` with each `section.key=value` put in; the value is TOML, or else plain text.

    >>> override({"optimizer": {"lr": 0.1}}, ["optimizer.lr=0.5", "loss.name=ls"])
    {'optimizer': {'lr': 0.5}, 'loss': {'name': 'ls'}}
    """
    changed = {name: dict(section) for name, section in tree.items()}
    for setting in settings:
        place, equals, text = setting.partition("=")
        section, dot, key = place.strip().partition(".")
        if not (equals and dot and section and key):
            raise InputError(f"{setting!r}: not a setting; write section.key=value")
        changed.setdefault(section, {})[key] = parse(text.strip())
    return changed


def parse(text: str) -> Any:
    """A value as TOML writes it, where quotes around a word may be left out; `.5` is a number here.

    >>> parse("0.5"), parse(".5"), parse("true"), parse("[1, 2]"), parse("cosine")
    (0.5, 0.5, True, [1, 2], 'cosine')
    """
    for written in (text, f"0{text}" if text.startswith(".") else text):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
