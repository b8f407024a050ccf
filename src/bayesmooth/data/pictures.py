"""Pictures on disk, decoded in threads when a batch asks for them, never all in memory; and folders of them.

A folder is `PATH/<class>/*.jpg`, or `PATH/train/<class>/*.jpg` and `PATH/test/<class>/*.jpg`.
"""

import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.labels import Labels, as_text, encode, name_classes
from bayesmooth.data.source import Columns, Kind, Note
from bayesmooth.data.tables import Changes, Table, write_folder
from bayesmooth.errors import InputError, require
from bayesmooth.files import copy_files, is_file_name, name_errors, walk

MAX_PIXELS = 50_000_000  # a picture of more is taken for an attack on memory
SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
THREADS = 4  # that decode pictures
SHOWN_SIZE = 96  # pixels of the pictures that are only shown
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # of SUFFIXES, as Pillow calls them
SURROGATES = re.compile("[\ud800-\udfff]")  # in a name that is not UTF-8
# Pictures that Pillow does not open, or opens with other programs.
OTHER_FORMATS = {".heic", ".heif", ".svg", ".avif", ".jxl", ".psd", ".cr2", ".nef", ".dng", ".eps"}


@dataclass(frozen=True, repr=False)
class ImageFiles:
    """files[index] → (B, 3, crop, crop) uint8: short side scaled to `size`, the middle cut out.

    `items` are paths below `root`, or the bytes of picture files. `crop` is `size` by default. Decoding releases
    Python's lock, so several threads work at once.
    """

    root: Path
    items: Sequence[str | bytes]
    size: int
    crop: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        out = self.crop or self.size
        if not len(index):
            return torch.empty(0, 3, out, out, dtype=torch.uint8, device="cpu")
        with ThreadPoolExecutor(THREADS) as pool:
            pictures = list(pool.map(self.decode, index.tolist()))
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    def take(self, index: Tensor) -> "ImageFiles":
        """Some of the pictures, which are not read yet."""
        return replace(self, items=[self.items[i] for i in index.tolist()])

    def decode(self, number: int, smallest: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One picture as (crop, crop, 3), turned as its camera meant it; a side below `smallest` is refused."""
        with self.open(number) as picture:
            if min(picture.size) < smallest:
                raise InputError(f"has {picture.width} × {picture.height} pixels, a side below {smallest}")
            picture.draft("RGB", (self.size, self.size))  # a JPEG is decoded at a fraction of its size
            # Scale and cut in one go: the square in the middle becomes crop × crop.
            image, crop = as_rgb(picture), self.crop or self.size
            side = min(image.size) * crop / self.size
            left, top = (image.width - side) / 2, (image.height - side) / 2
            bilinear = require("PIL.Image", extra="data").Resampling.BILINEAR
            box = (left, top, left + side, top + side)
            return np.array(image.resize((crop, crop), bilinear, box), dtype=np.uint8)

    @contextmanager
    def open(self, number: int) -> Iterator[Any]:
        """One picture as Pillow opens it, of `FORMATS` only: others start programs, as EPS does Ghostscript.

        Every failure, also while the body reads its pixels, is an error that names the picture.
        """
        item = self.items[number]
        file: Any = io.BytesIO(item) if isinstance(item, bytes) else self.root / item
        name = f"picture {number}" if isinstance(item, bytes) else str(file)
        library = require("PIL.Image", extra="data")
        named = name_errors(name, "picture", "; replace it, or delete it")
        with named, library.open(file, formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(f"has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS:,}")
            yield picture

    def read_bytes(self, number: int) -> bytes:
        """The content of a file; empty where it cannot be read."""
        item = self.items[number]
        try:
            return item if isinstance(item, bytes) else (self.root / item).read_bytes()
        except (OSError, ValueError):
            return b""


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
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    is_integer = numbers.dtype.kind in "iu"
    if low >= 0 and (numbers.dtype.kind == "b" or high <= (255 if is_integer else 1)):
        low, high = 0.0, 255.0 if is_integer else 1.0
    elif numbers.dtype == np.uint16:
        low, high = 0.0, 65535.0
    scaled = (numbers.astype(np.float64) - low) * (255 / max(high - low, 1e-300))
    return np.nan_to_num(scaled, nan=0.0).clip(0, 255).round().astype(np.uint8)


def read_folder(path: Path, columns: Columns, labelled: bool = True, split: str = "train") -> Table:
    """One folder of pictures per class, in the folder of the split where there is one of `train`; the id of a picture
    is its path below the folder of the classes.

    Without labels it is a folder of pictures in any folders. Spellings of a class that differ only in how accents are
    encoded are one class. A note lists pictures in other formats.
    """
    if columns.tags is not None or columns.separator is not None:
        raise InputError(f"{path}: tags are read from tables; list the pictures in one")
    base = path / split if labelled and (path / "train").is_dir() else path
    listed = [file.as_posix() for file in walk(base, follow=int(labelled))]
    if labelled:  # files in the folder of a class
        listed = [name for name in listed if "/" in name and not name.startswith(".")]
    listed.sort(key=lambda name: (unicodedata.normalize("NFC", name.partition("/")[0]) if labelled else "", name))
    files = [name for name in listed if Path(name).suffix.lower() in SUFFIXES and not SURROGATES.search(name)]
    if not files:
        raise InputError(
            f"{base}: no pictures in its folders ({', '.join(sorted(SUFFIXES))}); put one folder per class in it"
        )
    notes = []
    if other := [name for name in listed if Path(name).suffix.lower() in OTHER_FORMATS or SURROGATES.search(name)]:
        text = f"files left out: {len(other)}, such as {as_text(other[0])}; save them as JPEG or PNG, named in UTF-8"
        notes.append(Note(Kind.UNKNOWN_FORMAT, text, tuple(map(as_text, other))))
    if labelled and base != path and (path / "test").is_dir() and split == "train":
        notes.append(Note(Kind.SPLIT, "these are the pictures in train; test can be audited by itself"))
    classes = [unicodedata.normalize("NFC", file.partition("/")[0]) for file in files]
    names = tuple(columns.class_names or name_classes(classes))
    given = Labels(encode(classes, names, str(path)), names) if labelled else None
    cells = {"label": np.array(classes, object), "id": np.array(files, object), "path": np.array(files, object)}
    write = partial(_write_folder, path, base, files)
    parts = {"pictures": ImageFiles(base.absolute(), files, SHOWN_SIZE)}
    return Table(str(path), columns, cells, len(files), write, path, notes=tuple(notes), given=given, parts=parts)


def _write_folder(path: Path, base: Path, files: Sequence[str], out: Path, changes: Changes, rows: list[int]) -> None:
    """A copy in which the pictures lie in the folders of their new classes; no two under one name."""
    changed, inside, kept = changes["label"], base.relative_to(path), set(rows)
    for name in {*changed.values()}:
        if not is_file_name(name):
            raise InputError(f"class {name!r}: cannot be a folder's name; rename the class")
    folders = {unicodedata.normalize("NFC", f): f for f in (file.partition("/")[0] for file in files[::-1])}
    places: dict[Path, Path | None] = {}
    taken = {name.casefold() for name in files}  # some disks know no capitals
    for row, name in enumerate(files):
        if row not in kept:
            places[inside / name] = None
        elif row in changed:
            old, _, rest = name.partition("/")
            new = Path(folders.get(changed[row], changed[row])) / rest
            # The class it came from tells a picture apart from one that has its name.
            prefixes = chain(("", f"{old}-"), (f"{old}-{number}-" for number in count(2)))
            names = (new.with_name(prefix + new.name) for prefix in prefixes)
            free = next(place for place in names if place.as_posix().casefold() not in taken)
            taken.add(free.as_posix().casefold())
            places[inside / name] = inside / free
    write_folder(out, path, lambda beside: copy_files(path, beside, lambda file: places.get(file, file)))
