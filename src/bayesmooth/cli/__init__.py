"""The command `bayesmooth`: a table from command to plain function, parsed, called, printed.

A command `name` is a function `name(arguments) -> exit code` in a module of this package, with a function
`name_arguments(parser)` beside it; its docstring is the help, and ends with an example.
"""

import argparse
import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean
from bayesmooth_command import COMMANDS, overview

WRONG_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, call, print. What a user can put right is one line and exit code 2; a bug shows its traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:
        # A recipe may name a model of the user's, from the directory they are in.
        sys.path.append("")
    show_anything()
    try:
        command, parser = parser_for(given)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]
            return command(parser.parse_args(given[1:]))
    except InputError as error:
        print(f"bayesmooth: {error}", file=sys.stderr)
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


def parser_for(
    given: Sequence[str],
) -> tuple[Callable[[argparse.Namespace], int], argparse.ArgumentParser]:
    """The function of the command that the line begins with, and the parser of the rest."""
    name = given[0] if given else "--help"
    if name in ("--help", "-h", "--version"):
        overview().parse_args([name])
    if name not in COMMANDS:
        raise InputError(f"unknown command '{name}'; {did_you_mean(name, COMMANDS)}")
    module = import_module(f"{__name__}.{COMMANDS[name]}")
    command: Callable[[argparse.Namespace], int] = getattr(module, name)
    parser = argparse.ArgumentParser(
        prog=f"bayesmooth {name}",
        description=inspect.getdoc(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    getattr(module, f"{name}_arguments")(parser)
    return command, parser


def add_settings(
    parser: argparse.ArgumentParser, explanation: str, metavar: str = "SECTION.KEY=VALUE"
) -> None:
    """`--set`, as often as the user likes."""
    parser.add_argument(
        "--set", dest="settings", metavar=metavar, action="append", default=[], help=explanation
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """`--data-dir`."""
    parser.add_argument(
        "--data-dir", type=Path, help="where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What every command that trains has."""
    add_data_dir(parser)
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")


LABELS_FILE = "a .npy of labels, beside a .npy of embeddings"


def add_columns(parser: argparse.ArgumentParser, labels: str = LABELS_FILE) -> None:
    """How a data set of the user's is read, as `audit` and `train` have in common; `labels` says what --labels is."""
    add = parser.add_argument
    add("--label", metavar="COLUMN", help="column of labels (default: label)")
    add("--clean-label", metavar="COLUMN", help="column of true labels (default: clean_label)")
    add("--text", metavar="COLUMN", help="column of texts to learn from")
    add("--image", metavar="COLUMN", help="column of pictures (default: path, or image)")
    add("--id", metavar="COLUMN", help="column of ids (default: id, else row numbers)")
    features = "columns to learn from (default: numbers and categories)"
    add("--features", metavar="COLUMN,…", type=split_names, help=features)
    add(
        "--class-names",
        metavar="NAME,…",
        type=split_names,
        help="classes in the order of their numbers",
    )
    add("--labels", metavar="FILE", default=None, help=labels)
    add("--encoding", help="encoding of a CSV (default: detected: UTF-8, UTF-16 or cp1252)")
    add("--encoder", help="plain, or a model's name or path (default: the best)")


def split_names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
