"""Embeddings with labels: a .npz with both, or a .npy beside a .npy of labels."""

import re
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.classes import encode, names_of, plain
from bayesmooth.data.examples import Examples
from bayesmooth.data.files import ZIP_ERRORS, MissingError, split_path
from bayesmooth.errors import InputError

Array = np.ndarray[Any, Any]
KEYS = {
    "embeddings": ("embeddings", "features", "X"),
    "predicted": ("probabilities", "pred_probs"),
    "labels": ("labels", "y"),
    "clean_labels": ("clean_labels",),
    "class_names": ("class_names",),
    "ids": ("ids",),
    "texts": ("texts",),
    "images": ("images",),
}
WAYS_OUT = {
    "embeddings": "predicted probabilities are read with probabilities=True",
    "labels": "name a .npy of labels with labels=",
}
MAX_BYTES = 8 << 30


def embeddings(
    split: str,
    root: Path,
    path: str,
    labels: str | None = None,
    class_names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> Examples:
    """Rows of numbers from `path` (.npz or .npy); `labels` names a .npy of labels kept apart.

    A path with {split} in it has one file a split. In a .npz: embeddings (or features, X), labels (or y), and, if you
    have them, clean_labels, class_names, ids, texts, and images (paths, or pictures as bytes). `probabilities` reads
    those that a model predicted (probabilities, or pred_probs) too; without embeddings, inputs have no columns then.
    """
    if split != "train" and "{split}" not in path:
        raise MissingError(
            f"path={path!r}: put {{split}} in it, to read {split!r} from another file"
        )
    file = split_path(path, split, root)
    content = _content(file, labels, split, root, probabilities)
    names = tuple(class_names or ())
    if not names:  # the train file numbers the classes of the others, which may lack one
        train = split_path(path, "train", root)
        first = content if train == file else _content(train, labels, "train", root, probabilities)
        names = _names(first, file)
    given = encode(_labels(content, "labels", file), names, f"{file}: labels")
    clean = None
    if "clean_labels" in content:
        clean = encode(_labels(content, "clean_labels", file), names, f"{file}: clean_labels")
    return Examples(
        _finite(content["embeddings"], file, "embeddings"),
        given,
        names,
        clean,
        tuple(map(str, content["ids"].tolist())) if "ids" in content else None,
        f"{file.stem}/{split}",
        meta=_meta(content, file),
        pictures=_pictures(content.get("images"), file),
        predicted=_predicted(content.get("predicted"), file),
    )


def _content(
    file: Path, labels: str | None, split: str, root: Path, probabilities: bool
) -> dict[str, Array]:
    """The arrays of a file under the names of KEYS, of which the first counts."""
    found = {"embeddings": read_npy(file)} if file.suffix == ".npy" else read_npz(file)
    content = {k: found[name] for k, names in KEYS.items() for name in names[::-1] if name in found}
    if not probabilities:
        content.pop("predicted", None)
    elif "predicted" in content:
        none = np.empty((*content["predicted"].shape[:1], 0), np.float32)
        content.setdefault("embeddings", none)
    if labels is not None:
        content["labels"] = read_npy(split_path(labels, split, root))
    for key, way_out in WAYS_OUT.items():
        if key not in content:
            known, asked = ", ".join(sorted(found))[:200], " or ".join(KEYS[key])
            raise InputError(f"{file}: has no {asked}, only {known}; {way_out}")
    for key, ndim in {"embeddings": 2, "predicted": 2, "labels": 1}.items():
        if key in content and content[key].ndim != ndim:
            shape = content[key].shape
            raise InputError(f"{file}: {key} of shape {shape}: must be N × D, and N labels")
    return content


def _names(content: dict[str, Array], file: Path) -> tuple[str, ...]:
    if "class_names" in content:
        return tuple(_strings(content["class_names"], file, "class_names"))
    present = [key for key in ("labels", "clean_labels") if key in content]
    return names_of([label for key in present for label in _labels(content, key, file)])


def _labels(content: dict[str, Array], key: str, file: Path) -> list[str]:
    return plain(content[key].tolist(), f"{file}: {key}")


def _finite(array: Array, file: Path, key: str) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{file}: {key} are {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    broken = np.argwhere(~np.isfinite(numbers))
    if len(broken):
        row, column = broken[0]
        raise InputError(f"{file}: {key}[{row}, {column}] is {array[row, column]}; must be finite")
    return torch.from_numpy(numbers)


def _predicted(array: Array | None, file: Path) -> Tensor | None:
    return None if array is None else _finite(array, file, "probabilities")


def _strings(array: Array, file: Path, key: str) -> list[str]:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise InputError(
            f"{file}: {key} are {array.dtype} of shape {array.shape}; must be N strings"
        )
    return [str(value) for value in array]


def _meta(content: dict[str, Array], file: Path) -> dict[str, list[str]]:
    """Texts, and images where they are paths."""
    shown = {"text": content.get("texts"), "path": content.get("images")}
    return {
        name: _strings(array, file, name)
        for name, array in shown.items()
        if array is not None and (name == "text" or array.dtype.kind == "U")
    }


def _pictures(array: Array | None, file: Path) -> Tensor | None:
    """(N, C, H, W) bytes from (N, H, W) or (N, H, W, C)."""
    if array is None or array.dtype.kind == "U":
        return None
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise InputError(
            f"{file}: images must be paths, or bytes of shape N × H × W or N × H × W × 3"
        )
    pictures = torch.from_numpy(array)
    return pictures.unsqueeze(1) if array.ndim == 3 else pictures.permute(0, 3, 1, 2)


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of a .npz."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            if sum(entry.file_size for entry in entries) > MAX_BYTES:
                raise InputError(
                    f"{file}: more than {MAX_BYTES >> 30} GB unpacked; read it in parts"
                )
            arrays = {}
            for entry in entries:
                with archive.open(entry) as stream:
                    name = entry.filename.removesuffix(".npy")
                    arrays[name] = _array(stream, entry.file_size, f"{file}: {name}")
            return arrays
    except InputError:
        raise
    except ZIP_ERRORS as error:
        raise InputError(f"{file}: not a .npz that can be read ({error})") from None


def read_npy(file: Path) -> Array:
    """The array of a .npy."""
    try:
        with file.open("rb") as stream:
            return _array(stream, file.stat().st_size, str(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None


HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>|=]?)([biufU])([1-9]\d{0,8})',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([\d,\s]{0,80})\)\s*,?\s*\}\s*"
)


def _array(stream: IO[bytes], size: int, name: str) -> Array:
    """One array; its header is held against the size of the file before memory is taken."""
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\1", b"\2", b"\3"):
        raise InputError(f"{name}: not in numpy's format")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    header = HEADER.fullmatch(stream.read(length)) if length < 10_000 else None
    if header is None:
        raise InputError(f"{name}: not an array of numbers or strings (objects are not read)")
    order, kind, wide, fortran, sizes = (part.decode("ascii") for part in header.groups())
    shape = tuple(int(n) for n in sizes.replace(",", " ").split())
    try:
        dtype = np.dtype(order + kind + wide)
    except TypeError:
        raise InputError(f"{name}: {kind}{wide} is no type of numbers") from None
    count = prod(shape) * dtype.itemsize
    if not 0 < count <= size or len(shape) > 4:
        raise InputError(f"{name}: the shape {shape} of {dtype} does not go with {size} bytes")
    array = np.frombuffer(_exactly(stream, count, name), dtype)
    if kind == "U":
        _check_text(array, name)
    return array.reshape(shape, order="F" if fortran == "True" else "C")


def _exactly(stream: IO[bytes], count: int, name: str) -> bytearray:
    """Into one buffer, so that a large array is in memory once."""
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise InputError(f"{name}: ends too early; bring it again")
        done += got
    return buffer


def _check_text(array: Array, name: str) -> None:
    """Code points that Python cannot write down would fail later, far from the file."""
    points = array.view(array.dtype.str[0].replace("|", "=") + "u4")
    if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
        raise InputError(f"{name}: holds characters that are none")
