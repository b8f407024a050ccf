"""Small pictures for the report: the images that matter most, packed in sprite sheets."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesmooth.audit.table import Audit
from bayesmooth.data.pictures import ImageFiles, as_bytes, as_rgb
from bayesmooth.errors import InputError
from bayesmooth.optional import require

SIZE, SMALL = 320, 112  # pixels of a picture to judge, and of one beside it
BUDGET = 8_000_000  # bytes of pictures in a report: it can still be mailed
SHEET = 4_000_000  # pixels, so that a sheet decodes at once
TILES_PER_SHEET = 256  # at most: one encoder header for 256 images
BLANK = 8  # pixels of the square that stands for a picture that cannot be read
TRIED = 9  # pictures from which the format is chosen
QUALITY = 82


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Encoded sheets of `tile` × `tile` pixels, filled row by row; `index[i]` is the example of tile i."""

    index: NDArray[np.int64]
    tile: int
    columns: int
    per_sheet: int
    media_type: str
    sheets: tuple[bytes, ...]
    sizes: NDArray[np.int64]
    """Width and height of each picture in the middle of its tile."""

    def payload(self) -> dict[str, Any]:
        """What the page reads."""
        return {
            "index": self.index.tolist(),
            "tile": self.tile,
            "columns": self.columns,
            "perSheet": self.per_sheet,
            "type": self.media_type,
            "sizes": None if (self.sizes == self.tile).all() else self.sizes.tolist(),
            "sheets": [base64.b64encode(sheet).decode() for sheet in self.sheets],
        }


def make_thumbnails(
    images: Any, index: Sequence[int] | NDArray[Any], size: int = SIZE, budget: int = BUDGET
) -> Thumbnails:
    """Thumbnails of `images[i]` for each i in `index`, at most `size` pixels wide and high.

    `images` holds arrays or tensors, (H, W), (H, W, C) or (C, H, W), or PIL images. Numbers
    are brought to 0 … 255 as `as_bytes` does. Nothing is enlarged. The smallest of PNG, WebP and JPEG is kept, one
    format for all sheets. Sheets are made until the next one would exceed `budget` bytes, so `index` of the result may
    be shorter; there is always one sheet.
    """
    chosen = np.asarray(index, np.int64)
    if len(chosen) == 0:
        raise InputError("index is empty: name at least one example, or leave the thumbnails out")

    def load(positions: NDArray[np.int64], side: int) -> list[Any]:
        return [as_picture(images[int(i)], side) for i in positions]

    first = load(chosen[: max(1, SHEET // size**2)], size)
    tile = max(max(picture.size) for picture in first)
    per_sheet = max(1, min(SHEET // tile**2, TILES_PER_SHEET))
    columns = int(np.ceil(np.sqrt(min(len(chosen), per_sheet))))
    tried = _fill_sheet(first[:TRIED], tile, min(columns, 3))
    media_type = min(FORMATS, key=lambda name: len(encode_picture(tried, name)))
    sheets: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    for start in range(0, len(chosen), per_sheet):
        part = chosen[start : start + per_sheet]
        end = start + len(part)
        pictures = first[start:end] if end <= len(first) else load(part, tile)
        sheet = encode_picture(_fill_sheet(pictures, tile, columns), media_type)
        if sheets and sum(map(len, sheets)) + len(sheet) > budget:
            break
        sheets.append(sheet)
        sizes.extend(picture.size for picture in pictures)
    kept = np.array(sizes, np.int64)
    return Thumbnails(
        chosen[: len(kept)], tile, columns, per_sheet, media_type, tuple(sheets), kept
    )


FORMATS: dict[str, dict[str, Any]] = {
    "image/png": {"format": "PNG", "optimize": True},
    "image/webp": {"format": "WEBP", "quality": QUALITY},
    "image/jpeg": {"format": "JPEG", "quality": QUALITY, "optimize": True},
}


def encode_picture(sheet: Any, media_type: str) -> bytes:
    """A PIL image as the file of one of `FORMATS`."""
    file = io.BytesIO()
    sheet.save(file, **FORMATS[media_type])
    return file.getvalue()


def _fill_sheet(pictures: list[Any], tile: int, columns: int) -> Any:
    """Each picture centred in its tile."""
    module = require("PIL.Image", extra="data")
    mode = "L" if all(picture.mode == "L" for picture in pictures) else "RGB"
    rows = -(-len(pictures) // columns)
    sheet = module.new(mode, (columns * tile, rows * tile))
    for i, picture in enumerate(pictures):
        left, upper = (tile - picture.width) // 2, (tile - picture.height) // 2
        sheet.paste(picture, (i % columns * tile + left, i // columns * tile + upper))
    return sheet


def as_picture(image: Any, size: int) -> Any:
    """Any image as a PIL image in grey or RGB of at most `size` pixels wide and high; the rest leaves the memory."""
    module = require("PIL.Image", extra="data")
    if not isinstance(image, module.Image):
        array = image.detach().cpu().numpy() if hasattr(image, "detach") else np.asarray(image)
        image = module.fromarray(_to_pixels(array))
    picture = image.copy() if image.mode in ("L", "RGB") else as_rgb(image)
    picture.thumbnail((size, size))
    return picture


def _to_pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """An (H, W) or (H, W, 3) array of bytes."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise InputError(f"image of shape {array.shape}: must be (H, W), (H, W, C) or (C, H, W)")
    return np.ascontiguousarray(as_bytes(array))


class _OneByOne:
    """Inputs that are indexed by tensors, as pictures by number; those in files whole, not cut to a square."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def __getitem__(self, number: int) -> Any:
        try:
            if not isinstance(self.inputs, ImageFiles):
                return self.inputs[torch.tensor([number], dtype=torch.int64, device="cpu")][0]
            with self.inputs.open(number) as picture:
                picture.draft("RGB", (SIZE, SIZE))  # a JPEG is decoded at a fraction of its size
                return as_rgb(picture)
        except InputError:  # a picture that cannot be read is among the problems, and blank here
            return np.zeros((BLANK, BLANK), np.uint8)


def open_shown(audit: Audit) -> _OneByOne | None:
    """The pictures of the examples by number, where the data has any and Pillow is there to open them."""
    examples = audit.examples
    if examples is None or not find_spec("PIL"):
        return None
    pictures = examples.pictures
    if pictures is None and len(examples.input_shape) == 3 and examples.input_shape[0] in (1, 3):
        pictures = examples.inputs
    return None if pictures is None else _OneByOne(pictures)


def report_thumbnails(audit: Audit, count: int) -> tuple[Thumbnails | None, Thumbnails | None]:
    """Pictures of the worst labels and of what was found, and small ones of the examples shown beside them.

    None where the data has no pictures, or Pillow is not there to make them.
    """
    pictures = open_shown(audit)
    if pictures is None or count < 1:
        return None, None
    found = audit.found.positions()[: count // 2]
    index = list(dict.fromkeys([*audit.order[:count].tolist(), *found]))
    large = make_thumbnails(pictures, index)
    beside = _list_beside(audit, large.index)
    return large, make_thumbnails(pictures, beside, SMALL, BUDGET // 4) if beside else None


def _list_beside(audit: Audit, shown: NDArray[np.int64]) -> list[int]:
    """The examples that stand beside those that are shown, and are not among them."""
    if audit.similar is None:
        return []
    rows = np.isin(audit.similar.examples, shown)
    near = np.concatenate([audit.similar.given[rows], audit.similar.suggested[rows]], axis=1)
    near = near[(near >= 0) & ~np.isin(near, shown)]
    return list(dict.fromkeys(near.tolist()))
