"""The command `bayesmooth`, before torch is loaded: Ctrl-C meanwhile ends it at once.

An exception raised inside a compiled module that is being loaded can abort the process or come out as something else,
so nothing is raised until everything that the command needs is there.
"""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Load the command line and what the command needs, and run it."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup's children do not
    if hears:
        signal.signal(signal.SIGINT, leave)
    from bayesmooth import cli

    if module := cli.COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else ""):
        for name in getattr(import_module(f"bayesmooth.cli.{module}"), "LOADED", ()):
            with suppress(ImportError):  # where it is used it is asked for again, and named
                import_module(name)
    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def leave(number: int, frame: FrameType | None) -> None:
    """End the process without raising anything."""
    os.write(2, b"bayesmooth: interrupted\n")
    os._exit(INTERRUPTED)
