"""Folders of pictures: `PATH/<class>/*.jpg`, or `PATH/train/<class>/*.jpg` and `PATH/test/<class>/*.jpg`."""

import os
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesmooth.data.pictures import SHOWN_SIZE, SUFFIXES, ImageFiles
from bayesmooth.data.source import Columns, Inputs, Kind, Note
from bayesmooth.data.tables import Table, write_folder
from bayesmooth.errors import InputError
from bayesmooth.files import copy_files, is_file_name, leads_up

# Pictures that Pillow does not open, or opens with other programs.
OTHER_FORMATS = {".heic", ".heif", ".svg", ".avif", ".jxl", ".psd", ".cr2", ".nef", ".dng", ".eps"}


class Pictures(Table):
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
        self._found = Walk(self.base)
        self.files = self._list_labelled() if labelled else self._found.list_pictures("")
        if not self.files:
            raise InputError(f"{path}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
        self.notes = tuple(self._found.notes())
        if labelled and self.base != path and (path / "test").is_dir() and split == "train":
            text = "these are the pictures in train; test can be audited by itself"
            self.notes += (Note(Kind.SPLIT, text),)

    def _list_labelled(self) -> list[str]:
        names = self._found.list_folders()
        if not names and not self._found.closed and not self._found.misnamed:
            raise InputError(f"{self.base}: no folders in it; put one folder per class there")
        found = {name: self._found.list_pictures(name) for name in names}
        if not any(found.values()):
            closed = f"; {self._found.closed[0]} cannot be read" if self._found.closed else ""
            kinds = ", ".join(sorted(SUFFIXES))
            raise InputError(f"{self.base}: no pictures in its folders ({kinds}){closed}")
        classes = {name: unicodedata.normalize("NFC", name) for name in found}
        order = sorted(found, key=lambda name: (classes[name], name))
        return [file for name in order for file in found[name]]

    def __len__(self) -> int:
        return len(self.files)

    def values(self, name: str) -> list[Any]:
        """The folder of the class, or the path of the picture."""
        if name == "label":
            return [unicodedata.normalize("NFC", file.partition("/")[0]) for file in self.files]
        return list(self.files)

    def pictures(self, rows: Tensor, size: int = SHOWN_SIZE, crop: int | None = None) -> Inputs:
        """The pictures at these positions."""
        return ImageFiles(self.base.absolute(), [self.files[i] for i in rows.tolist()], size, crop)

    def write(self, out: Path, changes: Mapping[str, Mapping[int, str]], rows: list[int]) -> None:
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


class Walk:
    """Looks for pictures below a folder, and remembers what it could not read."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.closed: list[str] = []
        self.misnamed: list[str] = []
        self.other: list[str] = []

    def list_folders(self) -> list[str]:
        """The folders that may be classes."""
        try:
            inside = [p for p in self.base.iterdir() if not p.name.startswith(".")]
        except OSError as error:
            raise InputError(f"{self.base}: cannot be read ({error.strerror})") from None
        folders = sorted(p.name for p in inside if p.is_dir() and not leads_up(p))
        return [name for name in folders if self._is_utf8(name)]

    def list_pictures(self, name: str) -> list[str]:
        """Paths below the base of the pictures in a folder, in a fixed order; links to folders are not followed."""
        found = []
        for where, _, files in os.walk(self.base / name, onerror=self._remember):
            for file in files:
                path, kind = Path(where, file), Path(file).suffix.lower()
                place = path.relative_to(self.base).as_posix()
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

    def notes(self) -> Iterable[Note]:
        """What was left out, and why."""
        if self.closed:
            text = (
                f"{_count(self.closed, 'folder')} cannot be opened, and their pictures are left out"
            )
            yield Note(Kind.UNREADABLE, f"{text}: {self.closed[0]}", tuple(self.closed))
        if self.misnamed:
            text = f"{_count(self.misnamed, 'name')} not in UTF-8, left out: {self.misnamed[0]}; rename them"
            yield Note(Kind.UNREADABLE, text, tuple(self.misnamed))
        if self.other:
            kinds = ", ".join(sorted({Path(file).suffix.lower() for file in self.other}))
            ids = tuple(file.encode("utf-8", "backslashreplace").decode() for file in self.other)
            text = f"{_count(self.other, 'file')} of a format that is not read ({kinds}), left out"
            yield Note(Kind.UNKNOWN_FORMAT, f"{text}; save them as JPEG or PNG", ids)


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _find_free(place: Path, old: str, taken: set[str]) -> Path:
    """A name that no picture has, or had; the class it came from tells it apart."""
    prefixes = chain(("", f"{old}-"), (f"{old}-{number}-" for number in count(2)))
    names = (place.with_name(prefix + place.name) for prefix in prefixes)
    free = next(path for path in names if path.as_posix().casefold() not in taken)
    taken.add(free.as_posix().casefold())
    return free
