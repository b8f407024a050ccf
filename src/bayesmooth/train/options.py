"""What a recipe may choose from, and what it may say about a choice.

A loss, an optimizer, a model, a schedule or a data set states its options once, in its own signature. The recipe is
checked against that, and what only the run knows (the parameters, the number of classes, …) is supplied by name.
"""

import inspect
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import isnan
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch.optim import SGD

from bayesmooth.data import DATASETS, Corruption
from bayesmooth.data.corrupt import KINDS
from bayesmooth.errors import InputError
from bayesmooth.losses import LOSSES
from bayesmooth.models import MODELS
from bayesmooth.optim import OPTIMIZERS
from bayesmooth.optim.schedule import SCHEDULES
from bayesmooth.train.pretrained import import_factory, transformers_classifier
from bayesmooth.words import did_you_mean

if TYPE_CHECKING:
    from bayesmooth.train.recipe import Recipe

T = TypeVar("T")
Builders = Mapping[str, Callable[..., Any]]
Value = Any  # what TOML can write: one of these, or a list of them
SCALARS = (bool, int, float, str)
NONE, FILE = "none", "file"  # corruptions that draw nothing: there is none, or that of a noise.json


# section → (what is meant when it names nothing, the table)
CHOICES: dict[str, tuple[str, Builders]] = {
    "data": ("digits", {name: data.load for name, data in DATASETS.items()}),
    "corruption": (NONE, {NONE: lambda: None, **KINDS, FILE: Corruption.load}),
    "model": ("cnn", ChainMap(MODELS, {"transformers": transformers_classifier})),
    "loss": ("ce", LOSSES),
    "optimizer": ("sgd", OPTIMIZERS),
    "schedule": ("constant", SCHEDULES),
}

BASE = SGD  # what SAM wraps; an optimizer's `**` arguments are those of this class
FILLED = frozenset({"ess", "transition"})
"""May be left out of a recipe although the signature has no default: the number of training examples, and the
matrix that the corruption drew from."""

SUPPLIED = {"params", "base_optimizer", "num_examples", "generator", "seed", "reduction", "epochs"}
SUPPLIED |= {"steps", "num_classes", "in_channels", "input_shape", "pretrained"}
SUPPLIED |= {"split", "root", "progress"}
"""Arguments that a recipe does not set: the run knows them."""


def find_builder(section: str, name: str) -> Callable[..., Any]:
    """What a name in a section stands for: a row of its table, or a model's `package.module:factory`."""
    table = CHOICES[section][1]
    if name in table:
        return table[name]
    if section == "model" and ":" in name:
        return import_factory(name)
    own = "; a model of your own is package.module:factory" if section == "model" else ""
    raise InputError(f"unknown name '{name}'; {did_you_mean(name, table)}{own}")


class MisfitError(Exception):
    """A value has another type than its place wants; says which type that is."""


def fit(value: Value, kind: Any) -> Value:
    """`value` in the form that the annotation `kind` wants.

    >>> fit(1, float), fit([3, 4], tuple[int, ...]), fit("price", Literal["price", "gradsq"])
    (1.0, (3, 4), 'price')
    """
    if isinstance(value, float) and isnan(value):
        raise MisfitError(name_type(float))
    if kind is Any or kind is inspect.Parameter.empty:
        if isinstance(value, Mapping):
            raise MisfitError("a number, a text, true or false, or a list")
        return value
    if get_origin(kind) in (Union, UnionType):
        return _fit_first(value, [part for part in get_args(kind) if is_writable(part)])
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


def _fit_first(value: Value, kinds: Sequence[Any]) -> Value:
    """The first of a union's types that takes the value; exact types go before the widening of int to float."""
    for kind in sorted(kinds, key=lambda kind: type(value) is not kind):
        try:
            return fit(value, kind)
        except MisfitError:
            continue
    raise MisfitError(" or ".join(name_type(kind) for kind in kinds if kind is not NoneType))


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


@cache
def parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class or function by name, with their annotations as types."""
    call = builder.__init__ if isinstance(builder, type) else builder  # type: ignore[misc]
    try:
        hints = get_type_hints(call)
    except (NameError, TypeError):
        hints = {}  # a factory of the user's whose annotations only its type checker can read
    found = inspect.signature(builder).parameters
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in found.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }


def settable(
    section: str, builder: Callable[..., Any], own: Collection[str]
) -> dict[str, inspect.Parameter]:
    """The arguments that a recipe may set: no tensors and functions, and nothing that the run or the section sets."""
    found = dict(parameters(builder))
    if section == "optimizer" and any(p.kind is p.VAR_KEYWORD for p in found.values()):
        found = {**parameters(BASE), **found}
    return {
        name: parameter
        for name, parameter in found.items()
        if parameter.kind is not parameter.VAR_KEYWORD
        and name not in SUPPLIED.union(own)
        and is_writable(parameter.annotation)
    }


def is_foreign(section: str, builder: Callable[..., Any], key: str) -> bool:
    """Whether an option is one of torch's optimizers, and not of ours."""
    torch_has_it = builder.__module__.startswith("torch.") or key not in parameters(builder)
    return section == "optimizer" and torch_has_it


def build(builder: Callable[..., T], options: Mapping[str, Value], **supplied: Any) -> T:
    """Call `builder` with the recipe's options and whatever of `supplied` it has a name for.

    >>> build(lambda rate, seed=0: (rate, seed), {"rate": 0.5}, seed=3, num_classes=10)
    (0.5, 3)
    """
    known = parameters(builder)
    given = {name: value for name, value in supplied.items() if name in known} | dict(options)
    for name, p in known.items():
        needed = p.default is p.empty and p.kind is not p.VAR_KEYWORD
        if needed and name not in given:
            raise InputError(f"needs '{name}', which nothing here supplies; set it")
    return builder(**given)


def make(recipe: "Recipe", section: str, **supplied: Any) -> Any:
    """What a section of the recipe names."""
    choice = getattr(recipe, section)
    with name_place(f"[{section}] {choice.name}"):
        return build(find_builder(section, choice.name), choice.options, **supplied)


@contextmanager
def name_place(place: str) -> Iterator[None]:
    """An error inside says which place it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
