"""Files from outside: found, read within limits, checked. Nothing in them is run, and errors name the file."""

import codecs
import gzip
import hashlib
import io
import math
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from bayesmooth.errors import InputError

Array = np.ndarray[Any, Any]
LIMIT = 256 << 20  # bytes; the largest public file read whole, CIFAR-100's train, has 155 MB
MAX_BYTES = 8 << 30  # of all arrays in a .npz
NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}
MAX_RATIO = 100  # unpacked to packed: numbers that carry information stay far below


class MissingError(InputError):
    """Files that are not where they should be; `load` adds how to bring them."""


def data_root(data_dir: str | Path | None) -> Path:
    """Where data sets are kept: the argument, else BAYESMOOTH_DATA, else ./data."""
    return Path(data_dir or os.environ.get("BAYESMOOTH_DATA") or "data").expanduser()


@contextmanager
def name_errors(name: Path | str, what: str, way_out: str = "") -> Iterator[None]:
    """Whatever goes wrong inside is an InputError that names the file: a damaged one makes decoders raise anything."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}{way_out}") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        problem = f"not a {what} that can be read ({reason})"
        if isinstance(error, OSError) and error.strerror:
            problem = f"cannot be read ({error.strerror})"
        raise InputError(f"{name}: {problem}{way_out}") from None


def check_columns(where: Path | str, names: Sequence[Any]) -> None:
    """Refuse a table in which a column appears twice."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{where}: the column {twice[0]!r} appears twice; rename one")


def find_file(root: Path, candidates: Sequence[str]) -> Path:
    """The first of the candidates that exists under `root`."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise MissingError(f"not found in {root}: {' or '.join(candidates)}")


def locate(path: str, root: Path, split: str = "") -> Path:
    """A path of the user, with {split} filled in if one is given: as it stands, else below the data directory."""
    path = path.replace("{split}", split) if split else path
    given = Path(path).expanduser()
    place = given if given.exists() else root / given
    if not place.exists():
        raise MissingError(f"path={path!r}: found neither there nor in {root}")
    return place


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """The content of a file, unpacked if it is gzip; `md5` is what the unpacked content must have."""
    way_out = "; if it was cut short, download it again, or copy it again"
    with name_errors(path, "whole file", way_out), path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(LIMIT + 1)
    if len(data) > LIMIT:
        raise InputError(f"{path}: more than {LIMIT >> 20} MB unpacked; not the file it should be")
    if md5 is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise InputError(
            f"{path}: its md5 is not the public file's, {md5}; "
            "download it again, or copy it again, or load it with verify=False"
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


def decode_text(
    data: bytes, name: str, encoding: str | None = None
) -> tuple[str, str, tuple[str, ...]]:
    """A text, the codec that writes it again with its byte order mark, and a note where the codec was guessed.

    Without `encoding` it is UTF-8 or UTF-16, else cp1252, in which Excel saves a CSV.
    """
    asked = encoding or _guess_codec(data)
    try:
        codec = codecs.lookup(asked).name
        if codec == "utf-16":
            codec = "utf-16-be" if data.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
        codec = codec.removesuffix("-sig")
        text = data.decode(codec)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{name}: cannot be read as {asked} ({error}); name its encoding with encoding (--encoding)"
        ) from None
    guessed = f"{name} is not UTF-8 and was read as cp1252; `encoding` (--encoding) names another"
    return text, codec, (guessed,) if asked == "cp1252" and encoding is None else ()


def _guess_codec(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a mark: most characters of a table have a byte of zero, all on the same side.
    zeros = [data[side:4096:2].count(0) for side in (0, 1)]
    if max(zeros) > min(len(data), 4096) / 8 and not min(zeros):
        return "utf-16-be" if zeros[0] else "utf-16-le"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def load_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict that a pickle holds: numbers, strings, containers of these, and numpy arrays."""
    with name_errors(name, "pickle", "; download it again, or copy it again"):
        return _as_dict(_Unpickler(io.BytesIO(data), encoding="latin1").load())


def load_torch(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a file of torch.save, with the same contents allowed."""
    with name_errors(name, "file of torch.save"):
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                _within_limit(sum(entry.file_size for entry in archive.infolist()))
        try:
            with torch.serialization.safe_globals(TORCH_GLOBALS):
                return _as_dict(torch.load(io.BytesIO(data), weights_only=True))
        except pickle.UnpicklingError:  # which explains at length how to run the file all the same
            raise TypeError("damaged, or more than arrays and plain containers") from None


RECONSTRUCT = np.empty(0).__reduce__()[0]  # how numpy makes an array before it is filled
# What the arrays of CIFAR-N ask for; beside them torch admits plain containers only.
TORCH_GLOBALS: list[Any] = [
    (RECONSTRUCT, "numpy.core.multiarray._reconstruct"),
    (RECONSTRUCT, "numpy._core.multiarray._reconstruct"),
    (codecs.encode, "_codecs.encode"),
    np.ndarray,
    np.dtype,
    *(type(np.dtype(code)) for code in NUMBERS),
]


def _encode_latin1(text: str, codec: str) -> bytes:
    """Bytes as protocol 2 writes them."""
    if codec != "latin1":
        raise InputError("asks for a codec other than latin1")
    return text.encode(codec)


class _Unpickler(pickle._Unpickler):
    """The standard unpickler, which finds nothing but what numpy arrays are made of.

    It is the one written in Python: its memo is a dict, so no file can take memory by counting from 2³².
    """

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that arrays need."""
        admitted = {
            "numpy.core.multiarray._reconstruct": RECONSTRUCT,
            "numpy._core.multiarray._reconstruct": RECONSTRUCT,
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            "_codecs.encode": _encode_latin1,
        }
        asked = f"{module}.{name}"
        if asked not in admitted:
            raise InputError(f"asks for {asked[:80]!r}; only arrays and plain containers are read")
        return admitted[asked]


def _within_limit(size: int) -> int:
    if size > LIMIT:
        raise InputError(f"unpacks to more than {LIMIT >> 20} MB; not the file it should be")
    return size


def _as_dict(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}; a dict was expected")
    return content


def read_npz(file: Path, raw: bool = False) -> dict[str, Array]:
    """All arrays of a .npz; bytes become text, unless they are to stay `raw`."""
    with name_errors(file, ".npz"), zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        _check_unpacked(file.stat().st_size, sum(entry.file_size for entry in entries))
        arrays = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            with name_errors(name, "array"), archive.open(entry) as stream:
                arrays[name] = _read_array(stream, entry.file_size, raw)
        return arrays


def _check_unpacked(packed: int, unpacked: int) -> None:
    if unpacked > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES >> 30} GB unpacked; read it in parts")
    if unpacked > max(LIMIT, MAX_RATIO * packed):
        raise InputError(
            f"{packed:,} bytes that unpack to {unpacked:,}, more than {MAX_RATIO} times as many; "
            "if that is right, save it unpacked with numpy.savez"
        )


def read_npy(file: Path, raw: bool = False) -> Array:
    """The array of a .npy; bytes become text, unless they are to stay `raw`."""
    with name_errors(file, "array"), file.open("rb") as stream:
        return _read_array(stream, file.stat().st_size, raw)


def map_npy(file: Path) -> Array:
    """The array of a .npy, left on the disk: rows are read when they are asked for."""
    with name_errors(file, "array"), file.open("rb") as stream:
        _check_header(stream, file.stat().st_size)
        return np.lib.format.open_memmap(file, mode="r")


def _read_array(stream: IO[bytes], size: int, raw: bool) -> Array:
    _check_header(stream, size)
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "S" and not raw:
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "U":  # what Python cannot write down would fail later, far from the file
        points = array.ravel("K").view(array.dtype.str[0] + "u4")
        if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
            raise InputError("holds invalid characters")
    return array


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array that `size` bytes cannot hold, before any memory is taken, and one of objects."""
    if stream.read(6) != b"\x93NUMPY":
        raise InputError("not in numpy's format")
    stream.seek(0)
    try:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except Exception as error:  # it is parsed as Python
        raise InputError(f"not an array with a shape, or not a type of numbers ({error})") from None
    if dtype.kind not in "biufUS":
        raise InputError("not an array of numbers or strings (objects are not read)")
    count = math.prod(shape) * dtype.itemsize
    if not 0 < count <= size - stream.tell():
        raise InputError(
            f"the shape {shape} of {dtype} does not go with {size} bytes; if it ends too early, download it again, or "
            "copy it again"
        )


def as_finite(array: Array, where: str, what: str) -> torch.Tensor:
    """Numbers as float32, every one of them finite."""
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {what} are {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    broken = np.argwhere(~np.isfinite(numbers))
    if len(broken):
        i, j = broken[0]
        raise InputError(f"{where}: {what}[{i}, {j}] is {array[i, j]}; must be finite")
    return torch.from_numpy(numbers)
