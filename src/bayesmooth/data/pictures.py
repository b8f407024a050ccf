"""Pictures on disk, decoded in threads when a batch asks for them, never all in memory."""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.reading import name_errors
from bayesmooth.errors import InputError
from bayesmooth.optional import require

MAX_PIXELS = 50_000_000  # a picture of more is taken for an attack on memory
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SHOWN_SIZE = 96  # pixels of the pictures that are only shown
# The formats of SUFFIXES, as Pillow calls them.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")


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
            return torch.empty(0, 3, out, out, dtype=torch.uint8, device="cpu")
        with ThreadPoolExecutor(self.threads) as pool:
            pictures = list(pool.map(lambda i: self.decode(i, self.size, out), index.tolist()))
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    def take(self, index: Tensor) -> "ImageFiles":
        """Some of the pictures, which are not read yet."""
        return replace(self, items=[self.items[i] for i in index.tolist()])

    def decode(self, number: int, size: int, crop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One picture as (crop, crop, 3), turned as its camera meant it."""
        with self.open(number) as picture:
            picture.draft("RGB", (size, size))  # a JPEG is decoded at a fraction of its size
            # Scale and cut in one go: the square in the middle becomes crop × crop.
            whole = as_rgb(picture)
            side = min(whole.size) * crop / size
            left, top = (whole.width - side) / 2, (whole.height - side) / 2
            bilinear = require("PIL.Image", extra="data").Resampling.BILINEAR
            box = (left, top, left + side, top + side)
            return np.array(whole.resize((crop, crop), bilinear, box), dtype=np.uint8)

    def open(self, number: int) -> AbstractContextManager[Any]:
        """One picture as Pillow opens it: its size is known, its pixels are not read yet."""
        item = self.items[number]
        if isinstance(item, bytes):
            return open_picture(item, f"picture {number}")
        return open_picture(self.root / item)


@contextmanager
def open_picture(source: Path | bytes, name: str = "") -> Iterator[Any]:
    """A picture as Pillow opens it, of `FORMATS` only: others start programs, as EPS does Ghostscript.

    Whatever is wrong with it, also while the body reads its pixels, is an error that names it.
    """
    with name_errors(name or str(source), "picture", "; replace it, or delete it"):
        if isinstance(source, Path) and not source.exists():
            raise InputError("no such picture; is the set complete?")
        if not (source.stat().st_size if isinstance(source, Path) else len(source)):
            raise InputError("is empty (0 bytes)")
        file = source if isinstance(source, Path) else io.BytesIO(source)
        with require("PIL.Image", extra="data").open(file, formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(
                    f"has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS:,}"
                )
            yield picture


def as_rgb(picture: Any) -> Any:
    """A picture that Pillow opened, turned as its camera meant it, with three bytes per pixel."""
    turned = require("PIL.ImageOps", extra="data").exif_transpose(picture)
    if turned.mode[0] in "IF":  # more than 8 bits, which Pillow would cut off at 255
        numbers = np.asarray(turned)
        if picture.format == "PNG":  # of 16 bits, which Pillow 10 opens as 32
            numbers = numbers.astype(np.uint16)
        turned = require("PIL.Image", extra="data").fromarray(as_bytes(numbers))
    return turned.convert("RGB")


def as_bytes(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Brightness as 0 … 255: whole numbers up to 255 as they are, 16 bits and reals in 0 … 1 scaled, others stretched.

    >>> as_bytes(np.array([0.0, 1.0])), as_bytes(np.array([-1e9, 1e9, np.nan]))
    (array([  0, 255], dtype=uint8), array([  0, 255,   0], dtype=uint8))
    """
    known = numbers[np.isfinite(numbers)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    whole = numbers.dtype.kind in "iu"
    if low >= 0 and (numbers.dtype.kind == "b" or high <= (255 if whole else 1)):
        low, high = 0.0, 255.0 if whole else 1.0
    elif numbers.dtype == np.uint16:
        low, high = 0.0, 65535.0
    scaled = (numbers.astype(np.float64) - low) * (255 / max(high - low, 1e-300))
    return np.nan_to_num(scaled, nan=0.0).clip(0, 255).round().astype(np.uint8)
