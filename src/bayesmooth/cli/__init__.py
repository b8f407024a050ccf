"""The command `bayesmooth`: a table from command to plain function, parsed, called, printed.

A command is a function `name(arguments) -> exit code` in a module of this package. Its options stand above it in
`@command(…)`; its docstring is the help, and ends with an example. These modules load nothing heavy until a command is
called, so help is there at once.
"""

import io
import os
import signal
import sys
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any

from bayesmooth import __version__
from bayesmooth.errors import InputError, did_you_mean

WRONG_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
COMMANDS = {
    "runs": ("train", "evaluate", "predict", "compare", "recipes"),
    "audit": ("audit", "clean"),
    "sweeps": ("sweep", "data", "reproduce", "studies", "demo"),
}
MODULES = {name: module for module, names in COMMANDS.items() for name in names}

Function = Callable[[Namespace], int]
Option = tuple[tuple[str, ...], dict[str, Any]]
OPTIONS: dict[str, tuple[Option, ...]] = {}  # of the commands whose modules are loaded


def command(*options: Option) -> Callable[[Function], Function]:
    """Make a function the command of its name, with these options."""

    def mark(function: Function) -> Function:
        OPTIONS[function.__name__] = options
        return function

    return mark


def option(*names: str, **settings: Any) -> Option:
    """The arguments of `ArgumentParser.add_argument`."""
    return names, settings


def split_names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


# ---- options that several commands share ----

RECIPE = "a TOML file, or a name that `bayesmooth recipes` lists"
MANY: dict[str, Any] = {"action": "append", "default": []}  # may be given several times
SET = option("--set", dest="settings", metavar="SECTION.KEY=VALUE", help="change a setting; may be repeated", **MANY)
DATA_DIR = option("--data-dir", type=Path, help="folder of public data sets (default: $BAYESMOOTH_DATA, ./data)")
QUIET = option("--quiet", action="store_true", help="show no progress")
DEVICE = (DATA_DIR, option("--device", help="cpu, cuda or cuda:N (default: a GPU, if there is one)"), QUIET)
PLACE = (
    SET,
    option("--jobs", type=int, default=1, help="runs at a time on this machine (default: 1)"),
    option("--cluster", choices=("ray",), help="run on a cluster instead of this machine"),
    option("--address", help="Ray cluster to use; `auto` finds one (default: start one)"),
    option("--cpus", type=int, help="CPUs per run on a cluster (default: 1)"),
    option("--gpus", type=float, help="GPUs per run on a cluster (default: 0)"),
    *DEVICE,
)
READING = (
    option("--id", metavar="COLUMN", help="column of ids (default: id, else the content of a row)"),
    option("--class-names", metavar="NAME,…", type=split_names, help="classes in the order of their numbers"),
    option("--encoding", help="encoding of a CSV or JSON (default: UTF-8 or UTF-16)"),
)
COLUMNS = (
    option("--label", metavar="COLUMN", help="column of labels (default: label)"),
    option("--clean-label", metavar="COLUMN", help="column of true labels (default: clean_label)"),
    option("--text", metavar="COLUMN", help="column of texts to learn from"),
    option("--image", metavar="COLUMN", help="column of pictures (default: path, or image)"),
    option("--features", metavar="COLUMN,…", type=split_names, help="to learn from (default: numbers and categories)"),
    option("--labels", metavar="FILE", help="a .npy of labels, beside a .npy of embeddings"),
    *READING,
    option("--encoder", help="of texts or pictures: plain, or a model's name or path (default: the best installed)"),
)


# ---- parse, load, call ----


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. An error that a user can put right is one line and exit code 2; a bug shows its traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:
        sys.path.append("")  # a recipe may name a model of the user's, from the directory they are in
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow must not end a long computation
    # A process that ignores Ctrl-C, as nohup's children do, goes on to do so.
    hears = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        return run_command(given, hears)
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


def run_command(given: Sequence[str], hears: bool) -> int:
    """Parse, load, call; `--quiet` and `--data-dir` hold for all that is called, and warnings are for the user."""
    name = given[0] if given else "--help"
    if name in ("--help", "-h"):
        explain_all()
        return 0
    if name == "--version":
        print(f"bayesmooth {__version__}")
        return 0
    if name not in MODULES:
        raise InputError(f"unknown command '{name}'; {did_you_mean(name, MODULES)}")
    function = getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    options = vars(make_parser(name, function).parse_args(given[1:]))
    if hears:  # Ctrl-C ends the process at once: an exception inside a compiled module that is being loaded may be lost
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        import_module("bayesmooth.audit" if MODULES[name] == "audit" else "bayesmooth.train")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    from bayesmooth.data import keep_data_in
    from bayesmooth.progress import silence

    with warnings.catch_warnings(), silence(options.get("quiet", False)), keep_data_in(options.get("data_dir")):
        warnings.showwarning = show_warning  # type: ignore[assignment]
        code: int = function(Namespace(**options))
    return code


def make_parser(name: str, function: Function) -> ArgumentParser:
    """The parser of a command."""
    every = [(settings.get("metavar", names[0]), settings) for names, settings in OPTIONS[name] if names[0][0] != "-"]
    places = [f"[{place}]" if settings.get("nargs") == "?" else place for place, settings in every]
    parser = ArgumentParser(
        usage=" ".join(["bayesmooth", name, *places, "[option …]"]),
        description=getdoc(function),
        formatter_class=RawDescriptionHelpFormatter,
    )
    for names, settings in OPTIONS[name]:
        parser.add_argument(*names, **settings)
    return parser


def show_warning(message: Warning | str, *where: object) -> None:
    """A warning is for the user: the line of code that gave it is not."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # of a progress line
    print(f"{clear}bayesmooth: warning: {message}", file=sys.stderr)


def explain_all() -> None:
    """Print the list of the commands."""
    print(
        "usage: bayesmooth COMMAND …\n\nTrain with labels that are partly wrong, and find the wrong ones.\n\ncommands:"
    )
    for name, module in MODULES.items():
        about = getdoc(getattr(import_module(f"{__name__}.{module}"), name)) or ""
        print(f"  {name:10} {about.partition(chr(10))[0]}")
    print("\n`bayesmooth COMMAND --help` explains a command, with examples; `bayesmooth --version`.")
