"""Pictures on disk, decoded in threads when a batch asks for them, never all in memory; and folders of them.

A folder is `PATH/<class>/*.jpg`, or `PATH/train/<class>/*.jpg` and `PATH/test/<class>/*.jpg`.
"""

import io
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data.source import Columns, Kind, Note, Source
from bayesmooth.data.tables import Array, Changes, Table, write_folder
from bayesmooth.errors import InputError
from bayesmooth.files import copy_files, is_file_name, leads_up, name_errors
from bayesmooth.optional import require

MAX_PIXELS = 50_000_000  # a picture of more is taken for an attack on memory
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SHOWN_SIZE = 96  # pixels of the pictures that are only shown
# The formats of SUFFIXES, as Pillow calls them.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# Pictures that Pillow does not open, or opens with other programs.
OTHER_FORMATS = {".heic", ".heif", ".svg", ".avif", ".jxl", ".psd", ".cr2", ".nef", ".dng", ".eps"}


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
                raise InputError(f"has {picture.width} × {picture.height} pixels, more than {MAX_PIXELS:,}")
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


class PictureFolder(Table):
    """One folder of pictures per class; the id of a picture is its path below the folder of the classes.

    Without labels it is a folder of pictures in any folders. Spellings of a class that differ only in how accents are
    encoded are one class.
    """

    names = ("label", "id", "path")

    def __init__(self, path: Path, columns: Columns, labelled: bool = True, split: str = "train"):
        super().__init__(str(path), columns)
        if columns.tags is not None or columns.separator is not None:
            raise InputError(f"{path}: tags are read from tables; list the pictures in one")
        self.path = path
        self.base = find_base(path, split) if labelled else path
        if not self.base.is_dir():
            raise InputError(f"{self.base} is not a folder; put one folder per class in it")
        self.closed, self.misnamed, self.other = list[str](), list[str](), list[str]()
        self.files = self._list_labelled() if labelled else self._list_pictures("")
        if not self.files:
            kinds = ", ".join(sorted(SUFFIXES))
            closed = f"; {self.closed[0]} cannot be read" if self.closed else ""
            raise InputError(f"{self.base}: no pictures in its folders ({kinds}){closed}")
        self.notes = tuple(self._note_left_out())
        if labelled and self.base != path and (path / "test").is_dir() and split == "train":
            text = "these are the pictures in train; test can be audited by itself"
            self.notes += (Note(Kind.SPLIT, text),)

    def _list_labelled(self) -> list[str]:
        """The pictures of all classes, class by class."""
        try:
            inside = [p for p in self.base.iterdir() if not p.name.startswith(".")]
        except OSError as error:
            raise InputError(f"{self.base}: cannot be read ({error.strerror})") from None
        folders = [p.name for p in inside if p.is_dir() and not leads_up(p)]
        if not folders:
            raise InputError(f"{self.base}: no folders in it; put one folder per class there")
        classes = {name: unicodedata.normalize("NFC", name) for name in folders}
        order = sorted(filter(self._is_utf8, folders), key=lambda name: (classes[name], name))
        return [file for name in order for file in self._list_pictures(name)]

    def _list_pictures(self, name: str) -> list[str]:
        """Paths below the base of the pictures in a folder, in a fixed order; links to folders are not followed."""
        found = []
        for where, _, files in os.walk(self.base / name, onerror=self._remember):
            for file in files:
                place = Path(where, file).relative_to(self.base).as_posix()
                kind = Path(file).suffix.lower()
                if kind in OTHER_FORMATS:
                    self.other.append(place)
                elif kind in SUFFIXES and self._is_utf8(place):
                    found.append(place)
        return sorted(found)

    def _remember(self, error: OSError) -> None:
        self.closed.append(Path(error.filename or "").relative_to(self.base).as_posix())

    def _is_utf8(self, name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            self.misnamed.append(repr(os.fsencode(name)))
            return False
        return True

    def _note_left_out(self) -> Iterable[Note]:
        """What was left out, and why."""
        if self.closed:
            text = f"{_count(self.closed, 'folder')} cannot be opened, and their pictures are left out"
            yield Note(Kind.UNREADABLE, f"{text}: {self.closed[0]}", tuple(self.closed))
        if self.misnamed:
            text = f"{_count(self.misnamed, 'name')} not in UTF-8, left out: {self.misnamed[0]}; rename them"
            yield Note(Kind.UNREADABLE, text, tuple(self.misnamed))
        if self.other:
            kinds = ", ".join(sorted({Path(file).suffix.lower() for file in self.other}))
            ids = tuple(file.encode("utf-8", "backslashreplace").decode() for file in self.other)
            text = f"{_count(self.other, 'file')} of a format that is not read ({kinds}), left out"
            yield Note(Kind.UNKNOWN_FORMAT, f"{text}; save them as JPEG or PNG", ids)

    def __len__(self) -> int:
        return len(self.files)

    def values(self, name: str) -> list[Any]:
        """The folder of the class, or the path of the picture."""
        if name == "label":
            return [unicodedata.normalize("NFC", file.partition("/")[0]) for file in self.files]
        return list(self.files)

    texts = values

    def fill(self, source: Source, rows: Array) -> Source:
        """With the pictures."""
        items = [self.files[i] for i in rows]
        return replace(source, pictures=ImageFiles(self.base.absolute(), items, SHOWN_SIZE))

    def write(self, out: Path, changes: Changes, rows: list[int]) -> None:
        """A copy in which the pictures lie in the folders of their new classes; no two under one name."""
        assert self.path is not None
        changed, inside, kept = changes["label"], self.base.relative_to(self.path), set(rows)
        for name in {*changed.values()}:
            if not is_file_name(name):
                raise InputError(f"class {name!r}: cannot be a folder's name; rename the class")
        folders = {unicodedata.normalize("NFC", f.partition("/")[0]): f for f in self.files[::-1]}
        places: dict[Path, Path | None] = {}
        taken = {name.casefold() for name in self.files}  # some disks know no capitals
        for row, name in enumerate(self.files):
            if row not in kept:
                places[inside / name] = None
            elif row in changed:
                old, _, rest = name.partition("/")
                new = folders.get(changed[row], changed[row]).partition("/")[0]
                places[inside / name] = inside / _find_free(Path(new) / rest, old, taken)
        source = self.path

        def fill(beside: Path) -> None:
            copy_files(source, beside, lambda file: places.get(file, file))

        write_folder(out, source, fill)


def find_base(top: Path, split: str = "train") -> Path:
    """Where the folders of the classes are: `top/split`, or `top` itself where there is no `top/train`."""
    return top if split == "train" and not (top / "train").is_dir() else top / split


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _find_free(place: Path, old: str, taken: set[str]) -> Path:
    """A name that no picture has, or had; the class it came from tells it apart."""
    prefixes = chain(("", f"{old}-"), (f"{old}-{number}-" for number in count(2)))
    names = (place.with_name(prefix + place.name) for prefix in prefixes)
    free = next(path for path in names if path.as_posix().casefold() not in taken)
    taken.add(free.as_posix().casefold())
    return free
