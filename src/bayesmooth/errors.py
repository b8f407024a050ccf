"""What a user can put right: the one exception for it, and its words for a wrong name and for a missing package."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class InputError(ValueError):
    """A value, a file or a setting that breaks a rule; the command line prints it in a line and exits with 2.

    The message gives the value, the rule and the way out:

    >>> raise InputError("rho=-1: must be ≥ 0; use SGD for plain descent")
    Traceback (most recent call last):
        ...
    bayesmooth.errors.InputError: rho=-1: must be ≥ 0; use SGD for plain descent
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about a name that does not exist: the nearest ones that do, or all of them.

    >>> did_you_mean("weight_deacy", ["lr", "weight_decay"]), did_you_mean("x", ["lr", "ess"])
    ("did you mean 'weight_decay'?", "there are 'ess', 'lr'")
    """
    known = sorted(known)
    if near := get_close_matches(name, known):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are {', '.join(map(repr, known[:8])) or 'none'}" + f", … ({len(known)} in all)" * (len(known) > 8)


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """The value of an argument, which must be among the choices."""
    names = list(choices)
    if value not in names:
        near = get_close_matches(str(value), names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one"
        rule = f"must be one of {', '.join(map(repr, names))}; {hint}" if names else "there is none; leave it out"
        raise InputError(f"{name}={value!r}: {rule}")
    return value


def require(module: str, extra: str) -> Any:
    """Import `module`, which the extra `extra` brings; optional packages load where they are used.

    >>> require("math", extra="train").pi
    3.14...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # the package is there; something inside it is broken
        raise InputError(f"{module} is not installed, and this needs it; pip install 'bayesmooth[{extra}]'") from None
