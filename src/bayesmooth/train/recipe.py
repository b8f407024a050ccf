"""The recipe: everything that decides a run, in one frozen object that a TOML file writes and a hash names.

A loss, an optimizer, a model, a schedule or a data set states its options once, in its own signature. A recipe is
checked against that; arguments that only the run knows (the parameters, the number of classes, …) come by name.
"""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import product
from math import inf, isnan
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from torch.optim import SGD

from bayesmooth.data import AUGMENTATIONS, datasets
from bayesmooth.data.draws import KINDS
from bayesmooth.errors import InputError, did_you_mean
from bayesmooth.files import name_errors
from bayesmooth.losses import LOSSES
from bayesmooth.models import MODELS
from bayesmooth.optim import OPTIMIZERS, settings
from bayesmooth.optim.schedule import SCHEDULES
from bayesmooth.randomness import KERNELS

Value = Any  # a value that TOML can write: one of TYPES, or a list of them
Tree = dict[str, dict[str, Value]]  # sections by name, each with its keys and values
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
TYPES[Any] = "a number, a text, true or false, or a list"

Builders = Mapping[str, Callable[..., Any]]
NONE = "none"  # the corruption that draws nothing
CHOSEN = ("hess_init", "beta2")  # settings of IVON that follow from the weights and the run
BASE = SGD  # SAM wraps it; an optimizer's `**` arguments are those of this class

# section → (the name if it has none, the table)
CHOICES: dict[str, tuple[str, Builders]] = {
    "data": ("digits", {name: data.load for name, data in datasets().items()}),
    "corruption": (NONE, {NONE: lambda: None, **KINDS}),
    "model": ("cnn", MODELS),
    "loss": ("ce", LOSSES),
    "optimizer": ("sgd", OPTIMIZERS),
    "schedule": ("constant", SCHEDULES),
}
FILLED = frozenset({"ess", "transition"})
"""May be left out of a recipe although the signature has no default: the number of training examples, and the
matrix that the corruption drew from."""
SUPPLIED = {"params", "base_optimizer", "num_examples", "generator", "seed", "reduction", "epochs", "steps"}
SUPPLIED |= {"num_classes", "input_shape", "pretrained", "split", "root", "progress"}
"""Arguments that a recipe does not set: the run knows them."""

SEEDS = 2**63  # torch takes no more

RECIPES = (Path(__file__).parent / "recipes", Path(__file__).parents[3] / "reproduce" / "recipes")
AXES = ("scale", "noise", "method")
"""A shipped file is a family of recipes: `[optimizer]` is for all of them, `[method.ivon.optimizer]` for those that use
IVON, and the later of two lines with the same key counts."""


def setting(default: Any, **rule: Any) -> Any:
    """A field with a rule: low ≤ value < below, or one of some names."""
    return field(default=default, metadata=rule)


@dataclass(frozen=True)
class Choice:
    """A name out of one of the tables in CHOICES, and the keyword arguments for its builder."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSection(Choice):
    """The examples, and the share that is held back."""

    limit: int = setting(0, low=0)  # train on this many; 0: on all
    validation: float = setting(0.0, low=0, below=1)  # share held back with its noisy labels
    seed: int = setting(0, low=0, below=SEEDS)  # draws those two
    augment: str = setting("none", among=AUGMENTATIONS)
    mixup: float | None = setting(None, low=1e-3)  # α of its Beta distribution; left out: none
    audit: Literal["drop"] | None = None  # leave out the training labels that the audit contradicts


@dataclass(frozen=True)
class CorruptionSection(Choice):
    """The noise in the training labels. The paper draws the same noise in every run: seed 0."""

    seed: int | Literal["run"] = 0


@dataclass(frozen=True)
class ModelSection(Choice):
    """The network, and the weights that it starts from. Keys that are left out are no part of the hash."""

    weights: str | None = None  # a state dict to start from: .pt, .pth or .safetensors
    new_head: bool | None = None  # start the last layer afresh: the file has other classes


@dataclass(frozen=True)
class TrainSection:
    """The settings of the training loop."""

    epochs: int = setting(20, low=1)
    batch_size: int = setting(50, low=1)
    seed: int = setting(0, low=0, below=SEEDS)
    clip_norm: float = setting(inf, low=0)  # longest gradient let through
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False
    compile: bool = False


@dataclass(frozen=True)
class EvaluateSection:
    """The settings of the measurements."""

    every: int = setting(1, low=1)  # epochs
    samples: int = setting(16, low=1)  # of the posterior, for averaged predictions at the end
    batch_size: int = setting(256, low=1)
    batchnorm: int = setting(2000, low=0)  # training examples for BatchNorm's statistics; see docs
    test: bool = True  # whether there is a test set
    test_limit: int = setting(0, low=0)  # test on the first so many; 0: on all


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
        return cls(**{name: _section(kinds[name], name, tree.get(name, {}), source) for name in kinds})

    def to_dict(self) -> Tree:
        """Every key with its value, defaults too; keys without a value are left out."""
        tree: Tree = {}
        for part in fields(self):
            own = dict(vars(getattr(self, part.name)))
            options = own.pop("options", {})
            tree[part.name] = {key: value for key, value in own.items() if value is not None}
            tree[part.name] |= options
        return tree

    def to_toml(self) -> str:
        """The text that `load` reads back to an equal recipe."""
        lines: list[str] = []
        for name, section in self.to_dict().items():
            lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
            for key, value in section.items():
                # JSON has another word for inf, and leaves one letter as it is that TOML does not take.
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{key} = {repr(value) if isinstance(value, float) else text}")
        return "\n".join([*lines, ""])

    @cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of all that decides the run.

        Beyond the recipe it covers the backend of IVON's noise, and the rules for settings that are left out.
        """
        beyond: dict[str, Any] = {}
        builder = find_builder("optimizer", self.optimizer.name)
        if hasattr(builder, "posterior"):
            beyond["noise"] = "C kernels" if KERNELS else "torch"
            left = [key for key in CHOSEN if self.optimizer.options.get(key, "auto") == "auto"]
            if left and CHOSEN[0] in parameters(builder):
                constants = {k: v for k, v in vars(settings).items() if k.isupper() and type(v) in (int, float)}
                beyond |= {"chosen": left, "constants": constants}
        text = json.dumps(self.to_dict() | {"beyond": beyond}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A directory name that a person can read, and that no other recipe has."""
        return f"{self.data.name}-{self.loss.name}-{self.optimizer.name}-{self.hash}"

    def make(self, section: str, **supplied: Any) -> Any:
        """The object that a section names, built from its options and from those of `supplied` that it takes."""
        choice: Choice = getattr(self, section)
        with name_errors(f"[{section}] {choice.name}"):
            builder = find_builder(section, choice.name)
            arguments = parameters(builder)
            given = {name: supplied[name] for name in arguments if name in supplied}
            given.update(choice.options)
            for name, p in arguments.items():
                if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in given:
                    raise InputError(f"needs '{name}', which nothing here supplies; set it")
            return builder(**given)


def _section(kind: Any, section: str, given: Mapping[str, Value], source: str) -> Any:
    """Build one section: its own fields, and the options of its builder, with their defaults."""
    where = f"{source}: [{section}]"
    rules: dict[str, Mapping[str, Any]] = {part.name: part.metadata for part in fields(kind)}
    arguments = {key: p for key, p in parameters(kind).items() if key != "options"}
    if section in CHOICES:
        name = given.get("name", CHOICES[section][0])
        arguments["name"] = arguments["name"].replace(default=name)
        with name_errors(where):
            arguments |= list_options(section, str(name), rules)
    for key in given:
        if key not in arguments:
            raise InputError(f"{source}: unknown key '{key}' in [{section}]; {did_you_mean(key, arguments)}")
    values = {}
    for key, p in arguments.items():
        value, rule = given.get(key, p.default), rules.get(key, {})
        if value is p.empty and key not in FILLED:
            raise InputError(f"{where} needs '{key}'; it has no default")
        if value is None or value is p.empty:  # TOML cannot write it
            continue
        try:
            values[key] = value = as_kind(value, p.annotation)
        except TypeError as wanted:
            raise InputError(f"{where} {key} = {value!r}: must be {wanted}") from None
        if "among" in rule and value not in rule["among"]:
            raise InputError(f"{where} {key}: unknown name '{value}'; {did_you_mean(value, rule['among'])}")
        if "low" in rule and value < rule["low"]:
            raise InputError(f"{where} {key} = {value!r}: must be ≥ {rule['low']}")
        if "below" in rule and value >= rule["below"]:
            raise InputError(f"{where} {key} = {value!r}: must be < {rule['below']}")
    own = {key: values.pop(key) for key in rules if key in values}
    return kind(**own, options=values) if section in CHOICES else kind(**own)


def as_kind(value: Value, kind: Any) -> Value:
    """`value` in the form that an annotation wants; a TypeError names that form.

    >>> as_kind(1, float), as_kind([3, 4], tuple[int, ...]), as_kind("price", Literal["price", "gradsq"])
    (1.0, (3, 4), 'price')
    """
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not Ellipsis]
    if origin in (Union, UnionType):
        for part in sorted(parts, key=lambda part: type(value) is not part):  # exact types first
            with suppress(TypeError):
                return as_kind(value, part)
    elif origin in (tuple, list, Sequence) and isinstance(value, list | tuple):
        kinds = parts if len(parts) == len(value) else parts[:1] * len(value)
        return tuple(map(as_kind, value, kinds))
    elif not (isinstance(value, float) and isnan(value)):
        if type(value) is kind or (origin is Literal and value in parts):
            return value
        if kind is float and type(value) is int:
            return float(value)
        if kind is Any and not isinstance(value, Mapping):
            return value
    raise TypeError(name_type(kind))


def name_type(kind: Any) -> str:
    """A type as an error says it; empty if TOML cannot write its values (a tensor, a function, a generator).

    >>> name_type(float), name_type(Literal["a", "b"]), name_type(tuple[int, ...]), name_type(tuple[slice, ...])
    ('a number', "one of 'a', 'b'", 'a list', '')
    """
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not Ellipsis]
    if origin is Literal:
        return "one of " + ", ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(filter(None, map(name_type, parts)))
    if origin in (tuple, list, Sequence):
        return "a list" if all(map(name_type, parts)) else ""
    return TYPES.get(kind, "")


def find_builder(section: str, name: str) -> Callable[..., Any]:
    """The builder that a name in a section stands for: a row of its table, or a model's `package.module:factory`."""
    table = CHOICES[section][1]
    if name in table:
        return table[name]
    if section != "model" or ":" not in name:
        own = "; a model of your own is package.module:factory" if section == "model" else ""
        raise InputError(f"unknown name '{name}'; {did_you_mean(name, table)}{own}")
    try:
        factory: Callable[..., Any] = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"name '{name}': cannot be imported: {error}; start the command in the directory that has "
            f"{name.partition(':')[0]!r}, or put that directory on PYTHONPATH"
        ) from None
    if not callable(factory):
        raise InputError(f"name '{name}': is a {type(factory).__name__}; name a function or a class")
    return factory


@cache
def parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class or function by name, with their annotations as types."""
    call = builder.__init__ if isinstance(builder, type) else builder  # type: ignore[misc]
    try:
        hints = get_type_hints(call)
    except (NameError, TypeError):
        hints = {}  # a factory of the user's whose annotations only its type checker can read
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in inspect.signature(builder).parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }


def list_options(section: str, name: str, own: Collection[str]) -> dict[str, inspect.Parameter]:
    """The arguments that a recipe may set: no tensors and functions, and nothing that the run or the section sets.

    Defaults of torch's own optimizers are left out: they may change with torch, and decide nothing of ours.
    """
    builder = find_builder(section, name)
    arguments, foreign = dict(parameters(builder)), {}
    if section == "optimizer" and builder.__module__.startswith("torch."):
        foreign = arguments
    elif section == "optimizer" and any(p.kind is p.VAR_KEYWORD for p in arguments.values()):
        foreign = {key: p for key, p in parameters(BASE).items() if key not in arguments}
    arguments |= {key: p.replace(default=None) for key, p in foreign.items()}
    return {
        key: p
        for key, p in arguments.items()
        if p.kind is not p.VAR_KEYWORD and key not in SUPPLIED.union(own) and name_type(p.annotation)
    }


def find_differences(recipes: Sequence[Recipe]) -> list[dict[str, Value]]:
    """For each recipe its values of the keys in which they are not all alike: `optimizer.lr` and so on."""
    flat = [{f"{n}.{key}": v for n, own in r.to_dict().items() for key, v in own.items()} for r in recipes]
    keys = dict.fromkeys(key for each in flat for key in each)
    different = [key for key in keys if len({repr(each.get(key)) for each in flat}) > 1]
    return [{key: each[key] for key in different if key in each} for each in flat]


# ---- recipes as text: TOML files, the families that are shipped, and `--set section.key=value` ----


def read_recipe(name: str | Path) -> Tree:
    """The sections of a TOML file, or of a shipped recipe."""
    text = recipe_text(name)
    with name_errors(name, "recipe"):
        tree = tomllib.loads(text)
        if loose := [key for key, section in tree.items() if not isinstance(section, dict)]:
            raise InputError(f"'{loose[0]}' stands outside of a section; put it under one")
    return tree


def recipe_text(name: str | Path) -> str:
    """The text of a recipe file, or of the shipped recipe of that name, with its comments."""
    with name_errors(name, "recipe"):
        if Path(name).is_file() or Path(name).suffix == ".toml":
            return Path(name).read_text("utf-8")
        texts = {member: text for _, members in families().values() for member, text in members.items()}
        if str(name) not in texts:
            raise InputError(f"no such file, and no recipe of that name is shipped; {did_you_mean(str(name), texts)}")
        return texts[str(name)]


def override(tree: Tree, settings: Iterable[str]) -> Tree:
    """A copy of `tree` with each `section.key=value` put in; the value is TOML, or else plain text.

    >>> override({"optimizer": {"lr": 0.1}}, ["optimizer.lr=0.5", "loss.name=ls"])
    {'optimizer': {'lr': 0.5}, 'loss': {'name': 'ls'}}
    """
    changed = {name: dict(section) for name, section in tree.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        section, _, name = key.strip().partition(".")
        if not (section and name and equals):
            raise InputError(f"{setting!r}: not a setting; write section.key=value")
        changed.setdefault(section, {})[name] = parse_value(text.strip())
    return changed


def parse_value(text: str) -> Any:
    """A value as TOML writes it, where quotes around a word may be left out; `.5` is a number here.

    >>> parse_value("0.5"), parse_value(".5"), parse_value("true"), parse_value("[1, 2]"), parse_value("cosine")
    (0.5, 0.5, True, [1, 2], 'cosine')
    """
    try:
        return tomllib.loads(f"value = {'0' * text.startswith('.')}{text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


@cache
def families() -> dict[str, tuple[str, dict[str, str]]]:
    """The shipped recipes, and in a clone also those of the paper.

    By the name of the file with its axes, as in `digits-{ce,ivon}`: the comment in its first line, and the texts of
    its recipes by name. Such a text has the sections for all and its own, under their plain names, with their comments.
    """
    table = {}
    for path in sorted(path for folder in RECIPES for path in folder.glob("*.toml")):
        text = path.read_text("utf-8")
        tree = tomllib.loads(text)
        axes = [list(tree[axis]) for axis in AXES if axis in tree]
        members = {}
        for member in product(*axes):
            sections: dict[str, dict[str, str]] = {"": {}}
            lines = sections[""]
            for line in filter(None, text.splitlines()):
                if line.startswith("["):
                    *path_to, section = line.strip("[]").split(".")
                    mine = set(path_to) <= {*AXES, *member}
                    lines = sections.setdefault(section, {}) if mine else {}
                    line = f"[{section}]"
                lines[line.partition("=")[0]] = line
            joined = "\n\n".join("\n".join(lines.values()) for lines in sections.values())
            members["-".join((path.stem, *member))] = f"{joined}\n"
        name = "-".join([path.stem, *(f"{{{','.join(axis)}}}" for axis in axes)])
        table[name] = (text.partition("\n")[0].lstrip("# "), members)
    return table
