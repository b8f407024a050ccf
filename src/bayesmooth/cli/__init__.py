"""The command `bayesmooth`: a table from command to plain function, parsed, called, printed.

A command `name` is a function `name(arguments) -> exit code` in the module of this package that `COMMANDS` says; its
docstring is the help, and ends with an example. `arguments.py` has its options. A command's module loads all that the
command needs, so it is loaded only to run it, and never to explain it.
"""

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from bayesmooth.cli import arguments
from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean
from bayesmooth_command import COMMANDS, overview, read_docstrings

WRONG_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, call, print. What a user can put right is one line and exit code 2; a bug shows its traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:
        # A recipe may name a model of the user's, from the directory they are in.
        sys.path.append("")
    show_anything()
    try:
        parsed = parser_for(given).parse_args(given[1:])
        command = getattr(import_module(f"{__name__}.{COMMANDS[given[0]]}"), given[0])
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]
            code: int = command(parsed)
            return code
    except InputError as error:
        print(f"bayesmooth: {error}", file=sys.stderr)
        return WRONG_INPUT
    except PermissionError as error:
        print(
            f"bayesmooth: {error.filename}: {error.strerror}; choose another place", file=sys.stderr
        )
        return WRONG_INPUT
    except KeyboardInterrupt as stop:
        print(f"bayesmooth: interrupted{stop}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # So that exiting does not write there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def show_anything() -> None:
    """What the terminal cannot show becomes a question mark: an arrow must not end a long computation."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def show_warning(message: Warning | str, *where: object) -> None:
    """A warning is for the user: the line of code that gave it is not."""
    print(f"bayesmooth: warning: {message}", file=sys.stderr)


def parser_for(given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command that the line begins with."""
    name = given[0] if given else "--help"
    if name in ("--help", "-h", "--version"):
        overview().parse_args([name])
    if name not in COMMANDS:
        raise InputError(f"unknown command '{name}'; {did_you_mean(name, COMMANDS)}")
    parser = argparse.ArgumentParser(
        prog=f"bayesmooth {name}",
        description=read_docstrings(COMMANDS[name])[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    getattr(arguments, f"add_{name}")(parser)
    return parser
