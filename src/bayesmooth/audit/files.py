"""A file is written whole or not at all."""

import os
import tempfile
from pathlib import Path

from bayesmooth.errors import InputError


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside `path`, then rename: whoever opens `path` sees the old file or the new one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; create {path.parent} first")
    data = content.encode() if isinstance(content, str) else content
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(draft, 0o666 & ~_umask())  # mkstemp is private; a report is for colleagues
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
