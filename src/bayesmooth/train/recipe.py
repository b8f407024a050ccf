"""The recipe: everything that decides a run, in one frozen object that a TOML file writes and a hash names.

A loss, an optimizer, a model, a schedule or a data set states its options once, in its own signature. A recipe is
checked against that, and what only the run knows (the parameters, the number of classes, …) is supplied by name.
"""

import hashlib
import inspect
import json
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from torch.optim import SGD

from bayesmooth.data import AUGMENTATIONS, Corruption, datasets
from bayesmooth.data.draws import KINDS
from bayesmooth.errors import InputError, name_place
from bayesmooth.losses import LOSSES
from bayesmooth.models import MODELS
from bayesmooth.optim import OPTIMIZERS, settings
from bayesmooth.optim.schedule import SCHEDULES
from bayesmooth.randomness import KERNELS
from bayesmooth.train.networks import import_factory, transformers_classifier
from bayesmooth.train.recipe_files import MisfitError, Tree, Value, fit, is_writable, override, read_recipe, write_toml
from bayesmooth.words import did_you_mean

Builders = Mapping[str, Callable[..., Any]]
NONE, FILE = "none", "file"  # corruptions that draw nothing: there is none, or that of a noise.json
CHOSEN = ("hess_init", "beta2")  # settings of IVON that follow from the weights and the run
BASE = SGD  # what SAM wraps; an optimizer's `**` arguments are those of this class

# section → (what is meant when it names nothing, the table)
CHOICES: dict[str, tuple[str, Builders]] = {
    "data": ("digits", {name: data.load for name, data in datasets().items()}),
    "corruption": (NONE, {NONE: lambda: None, **KINDS, FILE: Corruption.load}),
    "model": ("cnn", ChainMap(MODELS, {"transformers": transformers_classifier})),
    "loss": ("ce", LOSSES),
    "optimizer": ("sgd", OPTIMIZERS),
    "schedule": ("constant", SCHEDULES),
}
FILLED = frozenset({"ess", "transition"})
"""May be left out of a recipe although the signature has no default: the number of training examples, and the
matrix that the corruption drew from."""
SUPPLIED = {"params", "base_optimizer", "num_examples", "generator", "seed", "reduction", "epochs"}
SUPPLIED |= {"steps", "num_classes", "in_channels", "input_shape", "pretrained"}
SUPPLIED |= {"split", "root", "progress"}
"""Arguments that a recipe does not set: the run knows them."""


def setting(default: Any, *, low: float = -inf, below: float = inf, among: Collection[str] = ()) -> Any:
    """A field with a rule: low ≤ value < below, or one of some names."""
    return field(default=default, metadata={"low": low, "below": below, "among": among})


@dataclass(frozen=True)
class Choice:
    """A name out of one of the tables in CHOICES, and the keyword arguments for what it names."""

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

    def flat(self) -> dict[str, Value]:
        """`optimizer.lr` and all the others, with their values."""
        sections = self.to_dict().items()
        return {f"{name}.{key}": value for name, own in sections for key, value in own.items()}

    @cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of all that decides the run."""
        content = self.to_dict() | {"beyond": describe_rules(self.optimizer)}
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A directory name that a person can read, and that no other recipe has."""
        return f"{self.data.name}-{self.loss.name}-{self.optimizer.name}-{self.hash}"

    def changes(self, other: Self) -> list[str]:
        """What differs in `other`, one line per key: `optimizer.lr: 0.2 → 0.5`."""
        ours, theirs = self.flat(), other.flat()
        return [
            f"{key}: {ours.get(key, 'unset')} → {theirs.get(key, 'unset')}"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key) != theirs.get(key)
        ]

    def make(self, section: str, **supplied: Any) -> Any:
        """What a section names, called with its options and whatever of `supplied` it has a name for."""
        choice: Choice = getattr(self, section)
        with name_place(f"[{section}] {choice.name}"):
            builder = find_builder(section, choice.name)
            known = parameters(builder)
            given = {name: supplied[name] for name in known if name in supplied}
            given.update(choice.options)
            for name, p in known.items():
                if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in given:
                    raise InputError(f"needs '{name}', which nothing here supplies; set it")
            return builder(**given)


def describe_rules(optimizer: Choice) -> dict[str, Any]:
    """What decides a run and stands in no recipe: who draws the noise, and the rules for settings that are left out."""
    builder = find_builder("optimizer", optimizer.name)
    if not hasattr(builder, "posterior"):
        return {}
    rules: dict[str, Any] = {"noise": "C kernels" if KERNELS else "torch"}
    left = [key for key in CHOSEN if optimizer.options.get(key, "auto") == "auto"]
    if CHOSEN[0] in parameters(builder) and left:
        constants = {k: v for k, v in vars(settings).items() if k.isupper() and type(v) in (int, float)}
        rules |= {"chosen": left, "constants": constants}
    return rules


def _section(kind: type[Any], section: str, given: Mapping[str, Value], source: str) -> Any:
    """Build one section: its own fields, and the options of what it names, with their defaults."""
    own = {part.name: part for part in fields(kind) if part.name != "options"}
    hints, where = get_type_hints(kind), f"{source}: [{section}]"
    values = {
        key: _check(given[key], hints[key], part.metadata, f"{where} {key}")
        for key, part in own.items()
        if key in given
    }
    known: Mapping[str, inspect.Parameter] = {}
    if section in CHOICES:
        name = values.setdefault("name", CHOICES[section][0])
        with name_place(where):
            known = list_options(section, name, own)
    for key in given:
        if key not in own and key not in known:
            hint = did_you_mean(key, [*own, *known])
            raise InputError(f"{source}: unknown key '{key}' in [{section}]; {hint}")
    options = {}
    for key, option in known.items():
        value = given.get(key, option.default)
        if value is option.empty and key not in FILLED:
            raise InputError(f"{where} needs '{key}'; it has no default")
        if value is not None and value is not option.empty:  # what TOML can write
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


def find_builder(section: str, name: str) -> Callable[..., Any]:
    """What a name in a section stands for: a row of its table, or a model's `package.module:factory`."""
    table = CHOICES[section][1]
    if name in table:
        return table[name]
    if section == "model" and ":" in name:
        return import_factory(name)
    own = "; a model of your own is package.module:factory" if section == "model" else ""
    raise InputError(f"unknown name '{name}'; {did_you_mean(name, table)}{own}")


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
    found, foreign = dict(parameters(builder)), {}
    if section == "optimizer" and builder.__module__.startswith("torch."):
        foreign = found
    elif section == "optimizer" and any(p.kind is p.VAR_KEYWORD for p in found.values()):
        foreign = {key: p for key, p in parameters(BASE).items() if key not in found}
    found |= {key: p.replace(default=None) for key, p in foreign.items()}
    return {
        key: p
        for key, p in found.items()
        if p.kind is not p.VAR_KEYWORD and key not in SUPPLIED.union(own) and is_writable(p.annotation)
    }
