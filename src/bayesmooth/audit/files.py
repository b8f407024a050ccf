"""A file is written whole or not at all, and a path that cannot be is explained."""

from pathlib import Path

from bayesmooth import files
from bayesmooth.errors import InputError


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Whoever opens `path` sees the old file or the new one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; create {path.parent} first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
    files.write_atomically(path, content)
