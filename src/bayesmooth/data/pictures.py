"""Pictures on disk: decoded in threads when a batch asks for them, never all in memory; a folder per class.

Layouts: `PATH/train/<class>/*.jpg` and `PATH/test/<class>/*.jpg`, or `PATH/<class>/*.jpg`.
"""

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.examples import Examples
from bayesmooth.data.reading import MissingError, located, utf8_name
from bayesmooth.errors import InputError
from bayesmooth.optional import require

MAX_PIXELS = 50_000_000  # a picture of more is taken for an attack on memory
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True, repr=False)
class ImageFiles:
    """files[index] → (B, 3, crop, crop) uint8: short side scaled to `size`, the middle cut out.

    `items` are paths below `root`, or the bytes of picture files. `crop` is `size` by default. Decoding
    releases Python's lock, so `threads` work at once.
    """

    root: Path
    items: Sequence[str | bytes]
    size: int
    crop: int | None = None
    threads: int = 4

    def __post_init__(self) -> None:
        if self.size < 1 or not 1 <= (self.crop or self.size) <= self.size:
            raise InputError(f"size={self.size}, crop={self.crop}: need 1 ≤ crop ≤ size")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        out = self.crop or self.size
        if not len(index):
            return torch.empty(0, 3, out, out, dtype=torch.uint8)
        with ThreadPoolExecutor(self.threads) as pool:
            pictures = list(pool.map(lambda i: self.decode(i, self.size, out), index.tolist()))
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    def decode(self, number: int, size: int, crop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One picture as (crop, crop, 3), turned as its camera meant it."""
        turn = require("PIL.ImageOps", extra="data").exif_transpose
        with self.open(number) as picture:
            picture.draft("RGB", (size, size))  # a JPEG is decoded at a fraction of its size
            turn(picture, in_place=True)
            fitted = _fit(picture.convert("RGB"), size, crop)
            return np.array(fitted, dtype=np.uint8)

    @contextmanager
    def open(self, number: int) -> Iterator[Any]:
        """One picture as Pillow opens it: its size is known, its pixels are not read yet."""
        pil = require("PIL.Image", extra="data")
        item = self.items[number]
        name = f"picture {number}" if isinstance(item, bytes) else str(self.root / item)
        try:
            source = io.BytesIO(item) if isinstance(item, bytes) else self.root / item
            if not (len(item) if isinstance(source, io.BytesIO) else source.stat().st_size):
                raise InputError("is empty (0 bytes)")
            with pil.open(source) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    raise InputError(
                        f"has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS:,}"
                    )
                yield picture
        except FileNotFoundError:
            raise InputError(f"{name}: no such picture; is the set complete?") from None
        except InputError as error:
            raise InputError(f"{name}: {error}; replace it, or take it off the list") from None
        except Exception as error:  # decoders of damaged files raise anything
            raise InputError(
                f"{name}: not a picture that can be read ({error}); replace it, or take it off the list"
            ) from None


def _fit(picture: Any, size: int, crop: int) -> Any:
    """Scale and cut in one go: the square in the middle that becomes crop × crop."""
    side = min(picture.size) * crop / size
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    resampling = require("PIL.Image", extra="data").Resampling.BILINEAR
    return picture.resize((crop, crop), resampling, box=(left, top, left + side, top + side))


def folder(split: str, root: Path, path: str, size: int = 64, crop: int | None = None) -> Examples:
    """`path/train/<class>/*.jpg`, `path/test/<class>/*.jpg`; or `path/<class>/*.jpg`, all for training."""
    top = located(path, root)
    base = top if split == "train" and not (top / "train").is_dir() else top / split
    if not base.is_dir():
        raise MissingError(f"{base} is not a folder; put one folder per class in it")
    # The classes of `train` also number the others, which may lack one.
    names = _classes(top / "train" if (top / "train").is_dir() else base)
    unknown = sorted(set(_classes(base)) - set(names))
    if unknown:
        raise InputError(f"{base}: class {unknown[0]!r} is not in {top / 'train'}")
    found = [(file, k) for k, name in enumerate(names) for file in _pictures(base, name)]
    if not found:
        raise InputError(f"{base}: no pictures in its folders ({', '.join(sorted(SUFFIXES))})")
    files = tuple(file for file, _ in found)
    return Examples(
        ImageFiles(base, files, size, crop),
        torch.tensor([k for _, k in found]),
        names,
        ids=files,
        name=f"{top.name}/{split}",
        meta={"path": [str(base / file) for file in files]},
    )


def _classes(base: Path) -> tuple[str, ...]:
    folders = [entry.name for entry in os.scandir(base) if entry.is_dir()]
    names = sorted(utf8_name(name, base) for name in folders if not name.startswith("."))
    if not names:
        raise InputError(f"{base}: no folders in it; put one folder per class there")
    return tuple(names)


def _pictures(base: Path, name: str) -> list[str]:
    """Paths below `base` of the pictures of one class, in a fixed order."""
    found = []
    for where, _, files in os.walk(base / name):
        for file in files:
            if Path(file).suffix.lower() in SUFFIXES:
                path = Path(where, utf8_name(file, Path(where)))
                if not path.stat().st_size:
                    raise InputError(f"{path}: is empty (0 bytes); replace it or delete it")
                found.append(path.relative_to(base).as_posix())
    return sorted(found)
