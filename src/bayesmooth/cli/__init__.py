"""The command `bayesmooth`: a table from command to plain function, parsed, called, printed.

A command `name` is a function `name(arguments) -> exit code` of a module in this package, beside `add_name(parser)`
with its options; the docstring is the help, and ends with an example. These modules load nothing heavy until a command
is called, so help is there at once. `LOADED` names what the commands of a module need.
"""

import argparse
import io
import os
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import getdoc
from types import FrameType, ModuleType

from bayesmooth import __version__
from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean

WRONG_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
COMMANDS = {
    "runs": ("train", "resume", "evaluate", "predict", "compare", "recipes"),
    "data": ("data",),
    "audit": ("audit", "clean"),
    "sweeps": ("sweep", "tune"),
    "studies": ("reproduce", "studies", "demo"),
}
MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, call, print. What a user can put right is one line and exit code 2; a bug shows its traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:
        # A recipe may name a model of the user's, from the directory they are in.
        sys.path.append("")
    show_anything()
    hears = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        name = given[0] if given else "--help"
        if name.startswith("-"):
            explain_all().parse_args([name])
        module = find_module(name)
        parsed = make_parser(module, name).parse_args(given[1:])
        if hears:  # nohup's children do not
            load_all(module)
        code = call(getattr(module, name), parsed)
        if hears:  # the work is done: whatever comes now changes nothing
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except InputError as error:
        print(f"bayesmooth: {error}", file=sys.stderr)
        return WRONG_INPUT
    except PermissionError as error:
        print(f"bayesmooth: {error.filename}: {error.strerror}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt as stop:
        print(f"bayesmooth: interrupted{stop}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # So that exiting does not write there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def call(command: Callable[[Namespace], int], parsed: Namespace) -> int:
    """Call a command where `--quiet` and `--data-dir` hold for all that it calls, and warnings are for the user."""
    from bayesmooth.executors import DATA, set_variable
    from bayesmooth.progress import silence

    given = vars(parsed)
    with (
        warnings.catch_warnings(),
        silence(given.get("quiet", False)),
        set_variable(DATA, given.get("data_dir")),
    ):
        warnings.showwarning = show_warning  # type: ignore[assignment]
        return command(parsed)


def find_module(command: str) -> ModuleType:
    """The module of this package that has a command."""
    if command not in MODULES:
        raise InputError(f"unknown command '{command}'; {did_you_mean(command, MODULES)}")
    return import_module(f"{__name__}.{MODULES[command]}")


def load_all(module: ModuleType) -> None:
    """Load what the commands of a module need, while Ctrl-C ends the process at once.

    An exception raised inside a compiled module that is being loaded can abort the process or come out as another.
    """
    signal.signal(signal.SIGINT, leave)
    for name in module.LOADED:
        with suppress(ImportError):  # where it is used it is asked for again, and named
            import_module(name)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(number: int, frame: FrameType | None) -> None:
    """End the process without raising anything."""
    os.write(2, b"bayesmooth: interrupted\n")
    os._exit(INTERRUPTED)


def make_parser(module: ModuleType, command: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    parser = argparse.ArgumentParser(
        prog=f"bayesmooth {command}",
        description=getdoc(getattr(module, command)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    getattr(module, f"add_{command}")(parser)
    return parser


def explain_all() -> argparse.ArgumentParser:
    """The parser that lists the commands; it has no other use."""
    lines = [
        f"  {command:10} {getattr(find_module(command), command).__doc__.partition(chr(10))[0]}"
        for command in MODULES
    ]
    listed = "\n".join(lines)
    parser = argparse.ArgumentParser(
        prog="bayesmooth",
        usage="bayesmooth COMMAND …",
        description="Train with labels that are partly wrong, and find the wrong ones.",
        epilog=f"commands:\n{listed}\n\n`bayesmooth COMMAND --help` has an example of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bayesmooth {__version__}")
    return parser


def show_anything() -> None:
    """What the terminal cannot show becomes a question mark: an arrow must not end a long computation."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def show_warning(message: Warning | str, *where: object) -> None:
    """A warning is for the user: the line of code that gave it is not."""
    print(f"bayesmooth: warning: {message}", file=sys.stderr)
