"""The recipe: everything that decides a run, in one frozen object that a TOML file writes and a hash names."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from inspect import Parameter
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from bayesmooth.data import AUGMENTATIONS
from bayesmooth.errors import InputError
from bayesmooth.lab import toml
from bayesmooth.lab.choices import BASE, CHOICES, FILLED, SUPPLIED
from bayesmooth.lab.options import MisfitError, Value, fit, settable, unknown


def setting(
    default: Any, *, low: float = -inf, below: float = inf, among: Collection[str] = ()
) -> Any:
    """A field with a rule: low ≤ value < below, or one of some names."""
    return field(default=default, metadata={"low": low, "below": below, "among": among})


@dataclass(frozen=True)
class Choice:
    """A name out of one of the tables in `choices.py`, and the keyword arguments for what it names."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Data(Choice):
    """The examples, and what is held back."""

    limit: int = setting(0, low=0)  # train on this many; 0: on all
    validation: float = setting(0.0, low=0, below=1)  # share held back with its noisy labels
    seed: int = setting(0, low=0)  # draws those two
    augment: str = setting("none", among=AUGMENTATIONS)


@dataclass(frozen=True)
class Corruption(Choice):
    """Which training labels are made wrong. The paper draws the same noise in every run: seed 0."""

    seed: int | Literal["run"] = 0


@dataclass(frozen=True)
class Train:
    """How the loop goes."""

    epochs: int = setting(20, low=1)
    batch_size: int = setting(50, low=1)
    seed: int = setting(0, low=0)
    clip_norm: float = setting(float("inf"), low=0)  # longest gradient let through
    accumulate: int = setting(1, low=1)  # parts in which a batch goes through the model
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False
    compile: bool = False


@dataclass(frozen=True)
class Evaluate:
    """What is measured, and when."""

    every: int = setting(1, low=1)  # epochs
    samples: int = setting(16, low=1)  # of the posterior, for averaged predictions
    averaged_every: int = setting(0, low=0)  # epochs between averaged ones; 0: at the end only
    batch_size: int = setting(256, low=1)
    batchnorm: int = setting(2000, low=0)  # training examples for BatchNorm's statistics; see docs
    test: bool = True  # whether there is a test set
    test_limit: int = setting(0, low=0)  # test on the first so many; 0: on all
    ood: str = ""  # another data set, to be told apart from the test set at the end


@dataclass(frozen=True)
class Recipe:
    """A run before it runs. Two recipes with the same hash give the same run."""

    data: Data
    corruption: Corruption
    model: Choice
    loss: Choice
    optimizer: Choice
    schedule: Choice
    train: Train
    evaluate: Evaluate

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a TOML file, put the overrides (`optimizer.lr=0.5`) in, and check every key."""
        path = Path(path)
        return cls.from_dict(toml.override(toml.read(path), overrides), source=path.name)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Mapping[str, Value]], source: str = "recipe") -> Self:
        """Check sections given as a dictionary, and fill in the defaults."""
        kinds = get_type_hints(cls)
        for name in tree:
            if name not in kinds:
                raise unknown(name, f"section [{name}]", kinds, source)
        return cls(
            **{
                name: _section(kind, name, tree.get(name, {}), source)
                for name, kind in kinds.items()
            }
        )

    def to_dict(self) -> toml.Tree:
        """Every key with its value, defaults too; what has no value is left out."""
        return {part.name: _flat(getattr(self, part.name)) for part in fields(self)}

    def to_toml(self) -> str:
        """The text that `load` reads back to an equal recipe."""
        return toml.write(self.to_dict())

    @cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of the whole content."""
        content = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A directory name that a person can read, and that no other recipe has."""
        return f"{self.data.name}-{self.loss.name}-{self.optimizer.name}-{self.hash}"

    def changes(self, other: Self) -> list[str]:
        """What differs in `other`, a line each: `optimizer.lr: 0.2 → 0.5`."""
        ours, theirs = _keys(self), _keys(other)
        return [
            f"{key}: {ours.get(key, 'unset')} → {theirs.get(key, 'unset')}"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key) != theirs.get(key)
        ]


def _section(kind: type[Any], section: str, given: Mapping[str, Value], source: str) -> Any:
    """Build one section: its own fields, and the options of the choice it makes."""
    own = {part.name: part for part in fields(kind) if part.name != "options"}
    hints = get_type_hints(kind)
    values = {
        name: _checked(given[name], hints[name], part.metadata, f"{source}: [{section}] {name}")
        for name, part in own.items()
        if name in given
    }
    rest = {name: value for name, value in given.items() if name not in own}
    if section not in CHOICES:
        for name in rest:
            raise _unknown_key(name, own, section, source)
        return kind(**values)
    default, table = CHOICES[section]
    name = values.setdefault("name", default)
    if name not in table:
        raise unknown(name, f"name '{name}'", table, f"{source}: [{section}]")
    return kind(**values, options=_options(table[name], rest, own, section, source))


def _options(
    builder: Any, given: Mapping[str, Value], own: Iterable[str], section: str, source: str
) -> dict[str, Value]:
    """The keyword arguments for a choice: what the recipe gives, else the defaults that TOML can write."""
    known = settable(builder, SUPPLIED.union(own), BASE)
    for name in given:
        if name not in known:
            raise _unknown_key(name, [*own, *known], section, source)
    values = {name: option.default for name, option in known.items()} | dict(given)
    missing = [
        name for name, value in values.items() if value is Parameter.empty and name not in FILLED
    ]
    if missing:
        raise InputError(f"{source}: [{section}] needs '{missing[0]}'; it has no default")
    return {
        name: _checked(value, known[name].annotation, {}, f"{source}: [{section}] {name}")
        for name, value in values.items()
        if value is not None and value is not Parameter.empty
    }


def _checked(value: Value, kind: Any, rule: Mapping[str, Any], where: str) -> Value:
    """The value in its type, within its range; `where` starts the error otherwise."""
    try:
        value = fit(value, kind)
    except MisfitError as wanted:
        raise InputError(f"{where} = {value!r}: must be {wanted}") from None
    if among := rule.get("among"):
        if value not in among:
            raise unknown(value, f"name '{value}'", among, where)
    elif rule and not rule["low"] <= value:
        raise InputError(f"{where} = {value!r}: must be ≥ {rule['low']}")
    elif rule and not (value < rule["below"] or rule["below"] == inf):
        raise InputError(f"{where} = {value!r}: must be < {rule['below']}")
    return value


def _unknown_key(name: str, known: Iterable[str], section: str, source: str) -> InputError:
    return unknown(name, f"key '{name}' in [{section}]", known, source)


def _flat(section: Any) -> dict[str, Value]:
    """A section as the one level of keys that TOML shows."""
    own = {part.name: getattr(section, part.name) for part in fields(section)}
    return own | dict(own.pop("options", {}))


def _keys(recipe: Recipe) -> dict[str, Value]:
    return {
        f"{section}.{key}": value
        for section, content in recipe.to_dict().items()
        for key, value in content.items()
    }
