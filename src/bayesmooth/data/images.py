"""Pictures on disk, decoded in threads when a batch asks for them; never all in memory."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optional import require

MAX_PIXELS = 50_000_000  # a picture of more is taken for an attack on memory
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True, repr=False)
class ImageFiles:
    """files[index] → (B, 3, crop, crop) uint8: short side scaled to `size`, the middle cut out.

    `crop` is `size` by default. Decoding releases Python's lock, so `threads` work at once.
    """

    root: Path
    paths: Sequence[str]
    size: int
    crop: int | None = None
    threads: int = 4

    def __post_init__(self) -> None:
        if self.size < 1 or not 1 <= (self.crop or self.size) <= self.size:
            raise InputError(f"size={self.size}, crop={self.crop}: need 1 ≤ crop ≤ size")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        files = [self.root / self.paths[i] for i in index.tolist()]
        out = self.crop or self.size
        if not files:
            return torch.empty(0, 3, out, out, dtype=torch.uint8)
        with ThreadPoolExecutor(self.threads) as pool:
            pictures = list(pool.map(lambda file: decode(file, self.size, out), files))
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def decode(path: Path, size: int, crop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One picture as (crop, crop, 3)."""
    pil = require("PIL.Image", extra="data")
    try:
        if not path.stat().st_size:
            raise InputError("is empty (0 bytes)")
        with pil.open(path) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(
                    f"has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS:,}"
                )
            picture.draft("RGB", (size, size))  # a JPEG is decoded at a fraction of its size
            fitted = _fit(picture.convert("RGB"), size, crop, pil.Resampling.BILINEAR)
            return np.array(fitted, dtype=np.uint8)
    except FileNotFoundError:
        raise InputError(f"{path}: no such picture; is the set complete?") from None
    except InputError as error:
        raise InputError(f"{path}: {error}; replace it, or take it off the list") from None
    except Exception as error:  # decoders of damaged files raise anything
        raise InputError(
            f"{path}: not a picture that can be read ({error}); replace it, or take it off the list"
        ) from None


def _fit(picture: Any, size: int, crop: int, resampling: Any) -> Any:
    """Scale and cut in one go: the square in the middle that becomes crop × crop."""
    side = min(picture.size) * crop / size
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    return picture.resize((crop, crop), resampling, box=(left, top, left + side, top + side))
