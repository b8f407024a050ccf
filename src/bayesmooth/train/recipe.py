"""The recipe: everything that decides a run, in one frozen object that a TOML file writes and a hash names.

One walk: `recipe_text` finds the file, `read_recipe` parses it, `override` puts `--set section.key=value` in, and
`Recipe.from_dict` checks every key. The files that come with the package are families of recipes.
"""

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from inspect import Parameter
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from bayesmooth.data import AUGMENTATIONS
from bayesmooth.errors import InputError
from bayesmooth.optim import settings
from bayesmooth.randomness import KERNELS
from bayesmooth.train.options import (
    CHOICES,
    FILLED,
    MisfitError,
    Value,
    find_builder,
    fit,
    is_foreign,
    name_place,
    parameters,
    settable,
)
from bayesmooth.words import did_you_mean

CHOSEN = ("hess_init", "beta2")  # settings of IVON that follow from the weights and the run
Tree = dict[str, dict[str, Any]]  # sections by name, each with its keys and values


def setting(
    default: Any, *, low: float = -inf, below: float = inf, among: Collection[str] = ()
) -> Any:
    """A field with a rule: low ≤ value < below, or one of some names."""
    return field(default=default, metadata={"low": low, "below": below, "among": among})


@dataclass(frozen=True)
class Choice:
    """A name out of one of the tables in `options.py`, and the keyword arguments for what it names."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSection(Choice):
    """The examples, and what is held back."""

    limit: int = setting(0, low=0)  # train on this many; 0: on all
    validation: float = setting(0.0, low=0, below=1)  # share held back with its noisy labels
    seed: int = setting(0, low=0)  # draws those two
    augment: str = setting("none", among=AUGMENTATIONS)
    mixup: float | None = setting(None, low=1e-3)  # α of its Beta distribution; left out: none


@dataclass(frozen=True)
class CorruptionSection(Choice):
    """Which training labels are made wrong. The paper draws the same noise in every run: seed 0."""

    seed: int | Literal["run"] = 0


@dataclass(frozen=True)
class ModelSection(Choice):
    """The network, and what it starts from. What is left out is no part of the hash."""

    weights: str | None = None  # a state dict to start from: .pt, .pth or .safetensors
    new_head: bool | None = None  # start the last layer afresh: the file has other classes
    freeze: bool | Sequence[str] | None = None  # true: all but the head; or the names of parts


@dataclass(frozen=True)
class TrainSection:
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
class EvaluateSection:
    """What is measured, and when."""

    every: int = setting(1, low=1)  # epochs
    samples: int = setting(16, low=1)  # of the posterior, for averaged predictions
    averaged_every: int = setting(0, low=0)  # epochs between averaged ones; 0: at the end only
    batch_size: int = setting(256, low=1)
    batchnorm: int = setting(2000, low=0)  # training examples for BatchNorm's statistics; see docs
    test: bool = True  # whether there is a test set
    test_limit: int = setting(0, low=0)  # test on the first so many; 0: on all
    ood: str = ""  # another data set: how well the model distinguishes it from the test set


@dataclass(frozen=True)
class Recipe:
    """A run before it runs. Two recipes with the same hash give the same run."""

    data: DataSection
    corruption: CorruptionSection
    model: ModelSection
    loss: Choice
    optimizer: Choice
    schedule: Choice
    train: TrainSection
    evaluate: EvaluateSection

    @classmethod
    def load(cls, name: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a TOML file or a shipped recipe, put the overrides (`optimizer.lr=0.5`) in, and check every key.

        >>> Recipe.load("digits-ivon", ["train.seed=3"]).train.seed
        3
        """
        return cls.from_dict(override(read_recipe(name), overrides), source=Path(name).name)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Mapping[str, Value]], source: str = "recipe") -> Self:
        """Check sections given as a dictionary, and fill in the defaults."""
        kinds = get_type_hints(cls)
        for name in tree:
            if name not in kinds:
                raise InputError(f"{source}: unknown section [{name}]; {did_you_mean(name, kinds)}")
        made = {name: _section(kinds[name], name, tree.get(name, {}), source) for name in kinds}
        return cls(**made)

    def to_dict(self) -> Tree:
        """Every key with its value, defaults too; what has no value is left out."""
        tree: Tree = {}
        for part in fields(self):
            own = dict(vars(getattr(self, part.name)))
            options = own.pop("options", {})
            tree[part.name] = {key: value for key, value in own.items() if value is not None}
            tree[part.name] |= options
        return tree

    def to_toml(self) -> str:
        """The text that `load` reads back to an equal recipe."""
        return write_toml(self.to_dict())

    @cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of all that decides the run."""
        content = json.dumps(
            self.to_dict() | {"beyond": describe_rules(self.optimizer)}, sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A directory name that a person can read, and that no other recipe has."""
        return f"{self.data.name}-{self.loss.name}-{self.optimizer.name}-{self.hash}"

    def changes(self, other: Self) -> list[str]:
        """What differs in `other`, one line per key: `optimizer.lr: 0.2 → 0.5`."""
        ours, theirs = flat_keys(self), flat_keys(other)
        return [
            f"{key}: {ours.get(key, 'unset')} → {theirs.get(key, 'unset')}"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key) != theirs.get(key)
        ]


def _section(kind: type[Any], section: str, given: Mapping[str, Value], source: str) -> Any:
    """Build one section: its own fields, and the options of what it names, with their defaults."""
    own = {part.name: part for part in fields(kind) if part.name != "options"}
    hints, where = get_type_hints(kind), f"{source}: [{section}]"
    values = {
        key: _check(given[key], hints[key], part.metadata, f"{where} {key}")
        for key, part in own.items()
        if key in given
    }
    known: Mapping[str, Parameter] = {}
    if section in CHOICES:
        name = values.setdefault("name", CHOICES[section][0])
        with name_place(where):
            builder = find_builder(section, name)
            known = settable(section, builder, own)
    for key in given:
        if key not in own and key not in known:
            hint = did_you_mean(key, [*own, *known])
            raise InputError(f"{source}: unknown key '{key}' in [{section}]; {hint}")
    options = {}
    for key, option in known.items():
        if key not in given and is_foreign(section, builder, key):
            continue  # a default of torch's own may change with torch, and decides nothing of ours
        value = given.get(key, option.default)
        if value is Parameter.empty and key not in FILLED:
            raise InputError(f"{where} needs '{key}'; it has no default")
        if value is not None and value is not Parameter.empty:  # what TOML can write
            options[key] = _check(value, option.annotation, {}, f"{where} {key}")
    return kind(**values, options=options) if section in CHOICES else kind(**values)


def _check(value: Value, kind: Any, rule: Mapping[str, Any], where: str) -> Value:
    """The value in its type, if it obeys the rule; `where` starts the error otherwise."""
    try:
        value = fit(value, kind)
    except MisfitError as wanted:
        raise InputError(f"{where} = {value!r}: must be {wanted}") from None
    if among := rule.get("among"):
        if value not in among:
            raise InputError(f"{where}: unknown name '{value}'; {did_you_mean(value, among)}")
    elif rule and not rule["low"] <= value:
        raise InputError(f"{where} = {value!r}: must be ≥ {rule['low']}")
    elif rule and not (value < rule["below"] or rule["below"] == inf):
        raise InputError(f"{where} = {value!r}: must be < {rule['below']}")
    return value


def describe_rules(optimizer: Choice) -> dict[str, Any]:
    """What decides a run and stands in no recipe: who draws the noise, and the rules for settings that are left out."""
    builder = find_builder("optimizer", optimizer.name)
    if not hasattr(builder, "posterior"):
        return {}
    rules: dict[str, Any] = {"noise": "C kernels" if KERNELS else "torch"}
    left = [key for key in CHOSEN if optimizer.options.get(key, "auto") == "auto"]
    if CHOSEN[0] in parameters(builder) and left:
        constants = {
            k: v for k, v in vars(settings).items() if k.isupper() and type(v) in (int, float)
        }
        rules |= {"chosen": left, "constants": constants}
    return rules


def flat_keys(recipe: Recipe) -> dict[str, Value]:
    """`optimizer.lr` and all the others, with their values."""
    return {
        f"{section}.{key}": value
        for section, content in recipe.to_dict().items()
        for key, value in content.items()
    }


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


RECIPES = (Path(__file__).parent / "recipes", Path(__file__).parents[3] / "reproduce" / "recipes")
AXES = ("scale", "noise", "method")
"""A shipped file is a family of recipes: `[optimizer]` is for all of them, `[method.ivon.optimizer]` for those that use
IVON, and the later of two lines with the same key counts."""


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
        """The text of every member, by name."""
        members = product(*self.axes())
        return {"-".join((self.name, *member)): self._select(member) for member in members}

    def _select(self, member: Collection[str]) -> str:
        """The sections of one member under their plain names; a later line replaces an earlier one of the same key."""
        sections: dict[str, dict[str, str]] = {"": {}}
        lines = sections[""]
        for line in filter(None, self.text.splitlines()):
            if line.startswith("["):
                *path, section = line.strip("[]").split(".")
                mine = set(path) <= {*AXES, *member}
                lines = sections.setdefault(section, {}) if mine else {}
                line = f"[{section}]"
            lines[line.partition("=")[0]] = line
        return "\n\n".join("\n".join(lines.values()) for lines in sections.values()) + "\n"


@cache
def families() -> list[Family]:
    """What is shipped, and in a clone also the recipes of the paper."""
    shipped = sorted(path for folder in RECIPES for path in folder.glob("*.toml"))
    return [Family(path.stem, path.read_text("utf-8")) for path in shipped]


@cache
def shipped_recipes() -> dict[str, str]:
    """Name → text: `digits-ivon`, …"""
    return {name: text for family in families() for name, text in family.recipes().items()}
