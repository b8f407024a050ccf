"""The command `bayesmooth`, before torch is loaded: it explains commands without it, and Ctrl-C ends it at once.

An exception raised inside a compiled module that is being loaded can abort the process or come out as something else,
so nothing is raised until everything that the command needs is there.
"""

import argparse
import ast
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType

INTERRUPTED = 130

# command → the module of `bayesmooth.cli` that has it; loaded when it is called
COMMANDS: dict[str, str] = {
    "train": "runs",
    "resume": "runs",
    "evaluate": "runs",
    "predict": "runs",
    "compare": "runs",
    "recipes": "runs",
    "data": "data",
    "audit": "audit",
    "clean": "audit",
    "sweep": "sweeps",
    "tune": "sweeps",
    "reproduce": "studies",
    "studies": "studies",
    "demo": "studies",
}


def main() -> int:
    """Load the command line and what the command needs, and run it."""
    if len(sys.argv) < 2 or sys.argv[1] in ("--help", "-h", "--version"):
        overview().parse_args(sys.argv[1:2] or ["--help"])
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup's children do not
    if hears:
        signal.signal(signal.SIGINT, leave)
    explained = {"--help", "-h"}.intersection(sys.argv[2:])
    if explained:
        open_package()
    from bayesmooth import cli

    module = COMMANDS.get(sys.argv[1])
    if module and not explained:
        for name in getattr(import_module(f"bayesmooth.cli.{module}"), "LOADED", ()):
            with suppress(ImportError):  # where it is used it is asked for again, and named
                import_module(name)
    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = cli.main()
    if hears:  # the work is done: whatever comes now changes nothing
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def open_package() -> None:
    """For `--help`: the package without what its front door loads, torch above all; the process ends after it."""
    if "bayesmooth" not in sys.modules:
        package = ModuleType("bayesmooth")
        package.__path__ = [str(Path(__file__).parent / "bayesmooth")]
        sys.modules["bayesmooth"] = package


def overview() -> argparse.ArgumentParser:
    """The parser that explains what there is; it has no other use."""
    known = {module: read_docstrings(module) for module in {*COMMANDS.values()}}
    lines = {name: known[module][name].partition("\n")[0] for name, module in COMMANDS.items()}
    listed = "\n".join(f"  {command:10} {line}" for command, line in lines.items())
    parser = argparse.ArgumentParser(
        prog="bayesmooth",
        usage="bayesmooth COMMAND …",
        description="Train with labels that are partly wrong, and find the wrong ones.",
        epilog=f"commands:\n{listed}\n\n`bayesmooth COMMAND --help` has an example of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shown = f"bayesmooth {version('bayesmooth')}"
    parser.add_argument("--version", action="version", version=shown)
    return parser


def read_docstrings(module: str) -> dict[str, str]:
    """What each function of a module of `bayesmooth.cli` does, read and not loaded."""
    file = Path(__file__).parent / "bayesmooth" / "cli" / f"{module}.py"
    functions = [n for n in ast.parse(file.read_bytes()).body if isinstance(n, ast.FunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def leave(number: int, frame: FrameType | None) -> None:
    """End the process without raising anything."""
    os.write(2, b"bayesmooth: interrupted\n")
    os._exit(INTERRUPTED)
