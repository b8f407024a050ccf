"""Optional packages load where they are used, and say how to get them where they are missing."""

from importlib import import_module
from typing import Any

from bayesmooth.errors import InputError


def require(module: str, extra: str) -> Any:
    """Import `module`, which the extra `extra` brings.

    >>> require("math", extra="train").pi
    3.14...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # the package is there; something inside it is broken
        raise InputError(f"{module} is not installed, and this needs it; pip install 'bayesmooth[{extra}]'") from None
