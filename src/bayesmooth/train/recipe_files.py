"""Recipes as text: TOML files, the families that are shipped, and `--set section.key=value`."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from itertools import product
from math import isnan
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean

Value = Any  # what TOML can write: one of SCALARS, or a list of them
SCALARS = (bool, int, float, str)
Tree = dict[str, dict[str, Any]]  # sections by name, each with its keys and values

RECIPES = (Path(__file__).parent / "recipes", Path(__file__).parents[3] / "reproduce" / "recipes")
AXES = ("scale", "noise", "method")
"""A shipped file is a family of recipes: `[optimizer]` is for all of them, `[method.ivon.optimizer]` for those that use
IVON, and the later of two lines with the same key counts."""


def read_recipe(name: str | Path) -> Tree:
    """The sections of a TOML file, or of a shipped recipe."""
    text = recipe_text(name)
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name}: not valid TOML: {error}") from None
    if loose := [key for key, section in tree.items() if not isinstance(section, dict)]:
        raise InputError(f"{name}: '{loose[0]}' stands outside of a section; put it under one")
    return tree


def recipe_text(name: str | Path) -> str:
    """What a recipe file says, or the shipped recipe of that name, with its comments."""
    path = Path(name)
    if not path.is_file() and path.suffix != ".toml":
        known = shipped_recipes()
        if str(name) not in known:
            raise InputError(
                f"{name}: no such file, and no recipe of that name is shipped; {did_you_mean(str(name), known)}"
            )
        return known[str(name)]
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def write_toml(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections as TOML.

    >>> print(write_toml({"optimizer": {"name": "ivon", "lr": 0.2, "clip_radius": float("inf")}}))
    [optimizer]
    name = "ivon"
    lr = 0.2
    clip_radius = inf
    <BLANKLINE>
    """
    sections = []
    for name, section in tree.items():
        rows = "".join(f"{key} = {_write_value(value)}\n" for key, value in section.items())
        sections.append(f"[{name}]\n{rows}")
    return "\n".join(sections)


def _write_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # JSON has another word for inf
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def override(tree: Tree, settings: Iterable[str]) -> Tree:
    """A copy of `tree` with each `section.key=value` put in; the value is TOML, or else plain text.

    `section={key=value, …}` replaces the whole section.

    >>> override({"optimizer": {"lr": 0.1}}, ["optimizer.lr=0.5", "loss.name=ls"])
    {'optimizer': {'lr': 0.5}, 'loss': {'name': 'ls'}}
    >>> override({"corruption": {"name": "symmetric", "rate": 0.4}}, ['corruption={name="none"}'])
    {'corruption': {'name': 'none'}}
    """
    changed = {name: dict(section) for name, section in tree.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        value = parse_value(text.strip())
        if section and equals and not dot and isinstance(value, dict):
            changed[section] = value
        elif section and equals and name:
            changed.setdefault(section, {})[name] = value
        else:
            raise InputError(f"{setting!r}: not a setting; write section.key=value")
    return changed


def parse_value(text: str) -> Any:
    """A value as TOML writes it, where quotes around a word may be left out; `.5` is a number here.

    >>> parse_value("0.5"), parse_value(".5"), parse_value("true"), parse_value("[1, 2]"), parse_value("cosine")
    (0.5, 0.5, True, [1, 2], 'cosine')
    """
    for written in (text, f"0{text}" if text.startswith(".") else text):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
    return text


@dataclass(frozen=True)
class Family:
    """A shipped file: the recipes NAME-SCALE-NOISE-METHOD, as far as it has these, which share the plain sections."""

    name: str
    text: str

    @property
    def about(self) -> str:
        """The comment in its first line."""
        return self.text.partition("\n")[0].lstrip("# ")

    def axes(self) -> list[list[str]]:
        """The scales, the noises, the methods; an axis that the file does not have is left out."""
        tree = tomllib.loads(self.text)
        return [list(tree[axis]) for axis in AXES if axis in tree]

    def recipes(self) -> dict[str, str]:
        """The text of every member, by name: its sections under their plain names."""
        members = {}
        for member in product(*self.axes()):
            sections: dict[str, dict[str, str]] = {"": {}}
            lines = sections[""]
            for line in filter(None, self.text.splitlines()):
                if line.startswith("["):
                    *path, section = line.strip("[]").split(".")
                    mine = set(path) <= {*AXES, *member}
                    lines = sections.setdefault(section, {}) if mine else {}
                    line = f"[{section}]"
                lines[line.partition("=")[0]] = line
            text = "\n\n".join("\n".join(lines.values()) for lines in sections.values())
            members["-".join((self.name, *member))] = f"{text}\n"
        return members


@cache
def families() -> list[Family]:
    """What is shipped, and in a clone also the recipes of the paper."""
    shipped = sorted(path for folder in RECIPES for path in folder.glob("*.toml"))
    return [Family(path.stem, path.read_text("utf-8")) for path in shipped]


@cache
def shipped_recipes() -> dict[str, str]:
    """Name → text: `digits-ivon`, …"""
    return {name: text for family in families() for name, text in family.recipes().items()}


# ---- values in the types that their places want ----


class MisfitError(Exception):
    """A value has another type than its place wants; says which type that is."""


def fit(value: Value, kind: Any) -> Value:
    """`value` in the form that the annotation `kind` wants.

    >>> fit(1, float), fit([3, 4], tuple[int, ...]), fit("price", Literal["price", "gradsq"])
    (1.0, (3, 4), 'price')
    """
    if isinstance(value, float) and isnan(value):
        raise MisfitError(name_type(float))
    if kind is Any or kind is Parameter.empty:
        if isinstance(value, Mapping):
            raise MisfitError("a number, a text, true or false, or a list")
        return value
    if get_origin(kind) in (Union, UnionType):
        kinds = [part for part in get_args(kind) if is_writable(part)]
        for part in sorted(kinds, key=lambda part: type(value) is not part):  # exact types first
            with suppress(MisfitError):
                return fit(value, part)
        raise MisfitError(" or ".join(name_type(part) for part in kinds if part is not NoneType))
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) in (tuple, list, Sequence) and isinstance(value, list | tuple):
        parts = [part for part in get_args(kind) if part is not Ellipsis]
        kinds = parts if len(parts) == len(value) else parts[:1] * len(value)
        return tuple(map(fit, value, kinds))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    raise MisfitError(name_type(kind))


def name_type(kind: Any) -> str:
    """The name of a type as an error says it.

    >>> name_type(float), name_type(Literal["a", "b"]), name_type(tuple[int, ...])
    ('a number', "one of 'a', 'b'", 'a list')
    """
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names.get(kind, "a list")


def is_writable(kind: Any) -> bool:
    """Whether TOML can write a value of this type (a tensor, a function or a generator it cannot)."""
    if kind is Any or kind in SCALARS or get_origin(kind) is Literal:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(map(is_writable, get_args(kind)))
    if get_origin(kind) in (tuple, list, Sequence):
        return all(is_writable(part) for part in get_args(kind) if part is not Ellipsis)
    return False
