"""Files from outside: found, read within a limit, checked; errors name the file."""

import gzip
import hashlib
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from bayesmooth.errors import InputError

LIMIT = 256 << 20  # bytes; the largest public file read whole, CIFAR-100's train, has 155 MB


ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, OSError, RuntimeError, ValueError, OverflowError, MemoryError,
)  # fmt: skip
"""All that reading a damaged zip can raise."""


class MissingError(InputError):
    """Files that are not where they should be; `load` adds how to bring them."""


def data_root(data_dir: str | Path | None) -> Path:
    """Where data sets are kept: the argument, else BAYESMOOTH_DATA, else ./data."""
    return Path(data_dir or os.environ.get("BAYESMOOTH_DATA") or "data").expanduser()


def find(root: Path, candidates: Iterable[str]) -> Path:
    """The first of the candidates that exists under `root`."""
    candidates = list(candidates)
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise MissingError(f"not found in {root}: {' or '.join(candidates)}")


def located(path: str, root: Path) -> Path:
    """A path of the user: as it stands, else below the data directory."""
    given = Path(path).expanduser()
    place = given if given.exists() else root / given
    if not place.exists():
        raise MissingError(f"path={path!r}: neither there nor in {root}")
    return place


def split_path(path: str, split: str, root: Path) -> Path:
    """The file of a split: `path` with {split} filled in, or `path` itself."""
    return located(path.replace("{split}", split), root)


def read_bytes(path: Path, md5: str | None = None, limit: int = LIMIT) -> bytes:
    """The content of a file, unpacked if it is gzip; with `md5`, that of the unpacked content."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(limit + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged or cut short ({error}); bring it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > limit:
        raise InputError(f"{path}: more than {limit >> 20} MB unpacked; not the file it should be")
    if md5 is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise InputError(
            f"{path}: its md5 is not the public file's, {md5}; "
            "bring it again, or load it with verify=False"
        )
    return data


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file."""
    data = read_bytes(path)
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8; save it as UTF-8") from None


def utf8_name(name: str, folder: Path) -> str:
    """A file's name, if it can be written down (others come from the system with surrogates)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(name)
        raise InputError(f"{folder}: the name {shown!r} is not UTF-8; rename it") from None
    return name
