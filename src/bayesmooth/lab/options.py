"""What a recipe may say about a choice: the keyword arguments of the class or function it names.

A loss, an optimizer, a model, a schedule or a data set states its options once, in its own signature. The recipe is
checked against that, and what only the run knows (the parameters, the number of classes, …) is supplied by name.
"""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import isnan
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bayesmooth.errors import InputError

T = TypeVar("T")
Value = Any
"""What TOML can write: a bool, int, float, str, or a list of those."""

SCALARS = (bool, int, float, str)


class MisfitError(Exception):
    """A value has another type than its place wants; says which type that is."""


def fit(value: Value, kind: Any) -> Value:
    """`value` in the form that the annotation `kind` wants.

    >>> fit(1, float), fit([3, 4], tuple[int, ...]), fit("price", Literal["price", "gradsq"])
    (1.0, (3, 4), 'price')
    """
    if isinstance(value, float) and isnan(value):
        raise MisfitError(spoken(float))
    if kind is Any or kind is inspect.Parameter.empty:
        return value
    if get_origin(kind) in (Union, UnionType):
        return _fit_first(value, [part for part in get_args(kind) if writable(part)])
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
    raise MisfitError(spoken(kind))


def _fit_first(value: Value, kinds: Sequence[Any]) -> Value:
    """The first of a union's types that takes the value; exact types go before the widening of int to float."""
    for kind in sorted(kinds, key=lambda kind: type(value) is not kind):
        try:
            return fit(value, kind)
        except MisfitError:
            continue
    raise MisfitError(" or ".join(spoken(kind) for kind in kinds if kind is not NoneType))


def spoken(kind: Any) -> str:
    """The name of a type as an error says it.

    >>> spoken(float), spoken(Literal["a", "b"]), spoken(tuple[int, ...])
    ('a number', "one of 'a', 'b'", 'a list')
    """
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names.get(kind, "a list")


def writable(kind: Any) -> bool:
    """Whether TOML can write a value of this type (a tensor, a function or a generator it cannot)."""
    if kind is Any or kind in SCALARS:
        return True
    if get_origin(kind) is Literal:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(map(writable, get_args(kind)))
    if get_origin(kind) in (tuple, list, Sequence):
        return all(writable(part) for part in get_args(kind) if part is not Ellipsis)
    return False


@cache
def parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class or function by name, with their annotations as types."""
    call = builder.__init__ if isinstance(builder, type) else builder  # type: ignore[misc]
    hints = get_type_hints(call)
    found = inspect.signature(builder).parameters
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in found.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }


def settable(
    builder: Callable[..., Any], supplied: Collection[str], base: Callable[..., Any]
) -> dict[str, inspect.Parameter]:
    """The arguments that a recipe may set: not those which are tensors, functions, or the run's own.

    A builder that takes `**` arguments hands them on to `base`.
    """
    found = dict(parameters(builder))
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
        found = {**parameters(base), **found}
    return {
        name: parameter
        for name, parameter in found.items()
        if parameter.kind is not parameter.VAR_KEYWORD
        and name not in supplied
        and writable(parameter.annotation)
    }


def build(builder: Callable[..., T], options: Mapping[str, Value], **supplied: Any) -> T:
    """Call `builder` with the recipe's options and whatever of `supplied` it has a name for.

    >>> build(lambda rate, seed=0: (rate, seed), {"rate": 0.5}, seed=3, num_classes=10)
    (0.5, 3)
    """
    given = dict(options)
    for name, parameter in parameters(builder).items():
        if name in supplied and name not in given:
            given[name] = supplied[name]
        elif (
            parameter.default is parameter.empty
            and name not in given
            and parameter.kind is not parameter.VAR_KEYWORD
        ):
            raise InputError(f"needs '{name}', which nothing here supplies; set it")
    return builder(**given)


def unknown(name: str, kind: str, known: Iterable[str], where: str) -> InputError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known) or 'none'}"
    return InputError(f"{where}: unknown {kind}; {hint}")
