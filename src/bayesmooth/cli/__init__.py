"""The command `bayesmooth`: a table from command to plain function, parsed, called, printed.

A command `name` is a function `name(arguments) -> exit code` of a module in this package, beside `add_name(parser)`
with its options; the docstring is the help, and ends with an example. These modules load nothing heavy until a command
is called, so help is there at once. `LOADED` names what the commands of a module need.
"""

import io
import os
import signal
import sys
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from types import FrameType, ModuleType

from bayesmooth import __version__
from bayesmooth.errors import InputError
from bayesmooth.words import did_you_mean

WRONG_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
COMMANDS = {
    "runs": ("train", "resume", "evaluate", "predict", "compare", "recipes"),
    "data": ("data",),
    "audit": ("audit", "clean"),
    "sweeps": ("sweep", "tune", "reproduce", "studies", "demo"),
}
MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}
RECIPE = "a TOML file, or a name that `bayesmooth recipes` lists"
LABELS_FILE = "a .npy of labels, beside a .npy of embeddings"


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
    with warnings.catch_warnings(), silence(given.get("quiet", False)), set_variable(DATA, given.get("data_dir")):
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


def make_parser(module: ModuleType, command: str) -> ArgumentParser:
    """The parser of a command."""
    parser = ArgumentParser(
        prog=f"bayesmooth {command}",
        description=getdoc(getattr(module, command)),
        formatter_class=RawDescriptionHelpFormatter,
    )
    getattr(module, f"add_{command}")(parser)
    return parser


def explain_all() -> ArgumentParser:
    """The parser that lists the commands; it has no other use."""
    lines = [
        f"  {command:10} {getattr(find_module(command), command).__doc__.partition(chr(10))[0]}" for command in MODULES
    ]
    listed = "\n".join(lines)
    parser = ArgumentParser(
        prog="bayesmooth",
        usage="bayesmooth COMMAND …",
        description="Train with labels that are partly wrong, and find the wrong ones.",
        epilog=f"commands:\n{listed}\n\n`bayesmooth COMMAND --help` has an example of each.",
        formatter_class=RawDescriptionHelpFormatter,
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


# ---- options that several commands share ----


def add_columns(parser: ArgumentParser, labels: str) -> None:
    """How a data set of the user's is read; `labels` says what --labels is."""
    add = parser.add_argument
    add("--label", metavar="COLUMN", help="column of labels (default: label)")
    add("--clean-label", metavar="COLUMN", help="column of true labels (default: clean_label)")
    add("--text", metavar="COLUMN", help="column of texts to learn from")
    add("--image", metavar="COLUMN", help="column of pictures (default: path, or image)")
    features = "columns to learn from (default: numbers and categories)"
    add("--features", metavar="COLUMN,…", type=split_names, help=features)
    add("--labels", metavar="FILE", default=None, help=labels)
    add_reading(parser)
    add("--encoder", help="plain, or a model's name or path (default: the best)")


def add_reading(parser: ArgumentParser) -> None:
    """What every command that reads a table has."""
    add = parser.add_argument
    add("--id", metavar="COLUMN", help="column of ids (default: id, else row numbers)")
    names = "classes in the order of their numbers"
    add("--class-names", metavar="NAME,…", type=split_names, help=names)
    add("--encoding", help="encoding of a CSV or JSON (default: detected)")


def split_names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def add_settings(parser: ArgumentParser, explanation: str, metavar: str = "SECTION.KEY=VALUE") -> None:
    """`--set`, as often as it is needed."""
    parser.add_argument("--set", dest="settings", metavar=metavar, action="append", default=[], help=explanation)


def add_data_dir(parser: ArgumentParser) -> None:
    """Where public data sets lie."""
    place = "where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    parser.add_argument("--data-dir", type=Path, help=place)


def add_prediction(parser: ArgumentParser) -> None:
    """What every command that predicts with a run has."""
    add_device(parser)
    usual = "how many to draw from the posterior (default: as in the recipe)"
    parser.add_argument("--samples", type=int, default=0, help=usual)


def add_device(parser: ArgumentParser) -> None:
    """What every command that trains or predicts has."""
    add_data_dir(parser)
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_place(parser: ArgumentParser) -> None:
    """Where the runs of a command go, and how many at a time."""
    add = parser.add_argument
    add_settings(parser, "change a key in every recipe; may be repeated")
    add("--jobs", type=int, default=1, help="runs at a time here (default: 1)")
    add("--cluster", choices=("ray",), help="run on a cluster instead of here")
    add("--address", help="Ray cluster to use; auto finds one (default: start one)")
    add("--cpus", type=int, help="CPUs per run on a cluster (default: 1)")
    add("--gpus", type=float, help="GPUs per run on a cluster (default: 0)")
    add_device(parser)
