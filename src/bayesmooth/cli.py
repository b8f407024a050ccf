"""The command `bayesmooth`."""


def main() -> int:
    """Parse, call, print."""
    return 0
