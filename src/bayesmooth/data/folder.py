"""A folder of pictures: one folder a class, below `train/` and `test/` or directly."""

import os
from pathlib import Path

import torch

from bayesmooth.data.examples import Examples
from bayesmooth.data.files import MissingError, located, utf8_name
from bayesmooth.data.images import SUFFIXES, ImageFiles
from bayesmooth.errors import InputError


def folder(split: str, root: Path, path: str, size: int = 64, crop: int | None = None) -> Examples:
    """`path/train/<class>/*.jpg`, `path/test/<class>/*.jpg`; or `path/<class>/*.jpg`, all for training."""
    top = located(path, root)
    base = top if split == "train" and not (top / "train").is_dir() else top / split
    if not base.is_dir():
        raise MissingError(f"{base} is not a folder; put one folder a class in it")
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
        raise InputError(f"{base}: no folders in it; put one folder a class there")
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
