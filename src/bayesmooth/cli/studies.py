"""`reproduce`, `studies` and `demo`: the paper's code lies beside the package in a clone, and is called from here."""

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from bayesmooth.errors import InputError

LOADED = ("pandas", "matplotlib.figure", "sklearn.datasets")
"""Optional packages, loaded before a command starts, because Ctrl-C must not hit a module that is being loaded."""
CLONE = "https://github.com/bayesmooth/bayesmooth"


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims.

    example:
      bayesmooth reproduce data-dependent --scale laptop --jobs 2 --data-dir ~/data
    """
    code: int = import_studies().reproduce(arguments)
    return code


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes.

    example:
      bayesmooth studies --scale full
    """
    code: int = import_studies().studies(arguments)
    return code


def demo(arguments: Namespace) -> int:
    """See it work: six ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    code: int = import_studies().demo(arguments)
    return code


def import_studies() -> Any:
    """The module `reproduce.commands` of the clone that the package or the current directory belongs to."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "reproduce" / "commands.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return import_module("reproduce.commands")
    raise InputError(
        f"the paper's studies are not part of the installed package; git clone {CLONE}, "
        "and start the command in that folder"
    )
