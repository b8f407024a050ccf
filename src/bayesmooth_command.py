"""The command `bayesmooth`, before torch is loaded: Ctrl-C meanwhile ends it without a traceback."""

import sys


def main() -> int:
    """Load the command line and run it."""
    try:
        from bayesmooth.cli import main as run
    except KeyboardInterrupt:
        print("bayesmooth: interrupted", file=sys.stderr)
        return 130
    return run()
