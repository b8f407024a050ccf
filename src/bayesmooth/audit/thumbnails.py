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
from bayesmooth.data.source import Inputs
from bayesmooth.errors import InputError
from bayesmooth.optional import require

SIZE, SMALL = 320, 112  # pixels of a picture to judge, and of one beside it
BUDGET = 8_000_000  # bytes of pictures in a report: it can still be mailed
SHEET = 4_000_000  # pixels, so that a sheet decodes at once
TILES_PER_SHEET = 256  # at most: one encoder header for 256 images
BLANK = 8  # pixels of the square that stands for a picture that cannot be read
TRIED = 9  # pictures from which the format is chosen
QUALITY = 82
FORMATS: dict[str, dict[str, Any]] = {
    "image/png": {"format": "PNG", "optimize": True},
    "image/webp": {"format": "WEBP", "quality": QUALITY},
    "image/jpeg": {"format": "JPEG", "quality": QUALITY, "optimize": True},
}


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


def make_thumbnails(pictures: Inputs, index: Sequence[int], size: int = SIZE, budget: int = BUDGET) -> Thumbnails:
    """Thumbnails of the pictures at these positions, at most `size` pixels wide and high; nothing is enlarged.

    The smallest of PNG, WebP and JPEG is kept, one format for all sheets. Sheets are made until the next one would
    exceed `budget` bytes, so `index` of the result may be shorter; there is always one sheet.
    """
    first = [shrink_picture(pictures, i, size) for i in index[: max(1, SHEET // size**2)]]
    tile = max(max(picture.size) for picture in first)
    per_sheet = max(1, min(SHEET // tile**2, TILES_PER_SHEET))
    columns = int(np.ceil(np.sqrt(min(len(index), per_sheet))))
    tried = _fill_sheet(first[:TRIED], tile, min(columns, 3))
    media_type = min(FORMATS, key=lambda name: len(encode_picture(tried, name)))
    sheets: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    for start in range(0, len(index), per_sheet):
        end = min(start + per_sheet, len(index))
        shown = first[start:end]
        if end > len(first):
            shown = [shrink_picture(pictures, i, tile) for i in index[start:end]]
        sheet = encode_picture(_fill_sheet(shown, tile, columns), media_type)
        if sheets and sum(map(len, sheets)) + len(sheet) > budget:
            break
        sheets.append(sheet)
        sizes.extend(picture.size for picture in shown)
    kept = np.array(sizes, np.int64)
    chosen = np.array(index[: len(kept)], np.int64)
    return Thumbnails(chosen, tile, columns, per_sheet, media_type, tuple(sheets), kept)


def shrink_picture(pictures: Inputs, number: int, size: int) -> Any:
    """One picture as a PIL image in grey or RGB of at most `size` pixels wide and high, whole and not cut to a square.

    One that cannot be read is among the problems, and blank here.
    """
    module = require("PIL.Image", extra="data")
    try:
        if isinstance(pictures, ImageFiles):
            with pictures.open(number) as opened:
                opened.draft("RGB", (SIZE, SIZE))  # a JPEG is decoded at a fraction of its size
                picture = as_rgb(opened)
        else:
            (one,) = pictures[torch.tensor([number], dtype=torch.int64, device="cpu")]
            pixels = as_bytes(one.cpu().numpy()).transpose(1, 2, 0)
            picture = module.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    except InputError:
        picture = module.new("L", (BLANK, BLANK))
    picture.thumbnail((size, size))
    return picture


def encode_picture(sheet: Any, media_type: str) -> bytes:
    """A PIL image as the file of one of `FORMATS`."""
    file = io.BytesIO()
    sheet.save(file, **FORMATS[media_type])
    return file.getvalue()


def _fill_sheet(pictures: list[Any], tile: int, columns: int) -> Any:
    """Each picture centred in its tile."""
    mode = "L" if all(picture.mode == "L" for picture in pictures) else "RGB"
    rows = -(-len(pictures) // columns)
    sheet = require("PIL.Image", extra="data").new(mode, (columns * tile, rows * tile))
    for i, picture in enumerate(pictures):
        left, upper = (tile - picture.width) // 2, (tile - picture.height) // 2
        sheet.paste(picture, (i % columns * tile + left, i // columns * tile + upper))
    return sheet


def find_pictures(audit: Audit) -> Inputs | None:
    """The pictures of the examples, where the data has any and Pillow is there to open them."""
    examples = audit.examples
    if not find_spec("PIL"):
        return None
    shape = examples.input_shape
    drawn = examples.pictures is None and len(shape) == 3 and shape[0] in (1, 3)
    return examples.inputs if drawn else examples.pictures


def report_thumbnails(audit: Audit, count: int) -> tuple[Thumbnails | None, Thumbnails | None]:
    """Pictures of the sample to review, of the worst labels and of what was found; small ones of their neighbours.

    None where the data has no pictures, or Pillow is not there to make them.
    """
    pictures = find_pictures(audit)
    if pictures is None or count < 1:
        return None, None
    found = audit.findings.positions()[: count // 2]
    queue = [] if audit.review is None else audit.review.queue.tolist()
    shown = dict.fromkeys([*queue, *audit.order[:count].tolist(), *found])
    large = make_thumbnails(pictures, list(shown))
    if audit.similar is None:
        return large, None
    rows = np.isin(audit.similar.examples, large.index)
    near = np.concatenate([audit.similar.given[rows], audit.similar.suggested[rows]], axis=1)
    near = near[(near >= 0) & ~np.isin(near, large.index)]
    beside = list(dict.fromkeys(near.tolist()))
    return large, make_thumbnails(pictures, beside, SMALL, BUDGET // 4) if beside else None
