"""A user's own data as the splits of a run: whatever can be audited can be trained on, and new data are read alike."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesmooth.data.encoder_models import PLAIN
from bayesmooth.data.features import Reading
from bayesmooth.data.folders import Pictures, find_base
from bayesmooth.data.opening import open_source, read_table
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.data.prepare import choose_to_embed, embed, prepare, prepare_like
from bayesmooth.data.reading import MissingError, locate
from bayesmooth.data.source import Columns, Source
from bayesmooth.errors import InputError

PIECE = 8192  # rows whose statistics are computed at once


def source(
    split: str,
    root: Path,
    path: str,
    label: str | None = None,
    clean_label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    features: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    labels: str | None = None,
    encoding: str | None = None,
    encoder: str | None = None,
    standardize: bool = True,
) -> Source:
    """What `bayesmooth audit` opens: a table, a folder of pictures, arrays; texts and pictures are embedded.

    The split is a column `split`, or stands in the path: `data/{split}.csv`. Without either all rows are for training:
    `data.validation` holds some back. Every column of numbers is standardised, unless `standardize` is false.
    """
    columns = Columns(
        label=label,
        clean_label=clean_label,
        text=text,
        image=image,
        id=id,
        features=features,
        class_names=class_names,
        encoding=encoding,
    )
    train = prepare(_open_split("train", root, path, labels, columns), columns, encoder=encoder)
    reading = train.reading or Reading()
    if reading.encoder == PLAIN and train.texts is not None:
        raise InputError(
            f"{path}: TF-IDF encodes texts by the words of all of them, and new texts not alike; "
            "pip install 'bayesmooth[audit]' brings an encoder that does"
        )
    if standardize and train.mean is None:
        mean, std = column_statistics(train)
        train = replace(train, mean=mean, std=std)
        reading = replace(reading, vectors={n: v or list(mean) for n, v in reading.vectors.items()})
    if not standardize:
        train = replace(train, mean=None, std=None)
    train = replace(train, reading=reading)
    if split == "train":
        return train
    columns = replace(columns, class_names=train.class_names)
    other = open_like(_open_split(split, root, path, labels, columns), reading)
    return replace(other, mean=train.mean, std=train.std)


def _open_split(split: str, root: Path, path: str, labels: str | None, columns: Columns) -> Source:
    """The rows of a split; their inputs are not chosen yet."""
    file = locate(path, root, split)
    apart = None if labels is None else locate(labels, root, split)
    if file.is_dir() and find_base(file) != file:
        found = read_table(Pictures(file, columns, split=split))
    else:
        found = open_source(file, columns, apart)
    found = replace(found, name=f"{found.name}/{split}")
    if "{split}" in path or (file.is_dir() and find_base(file) != file):
        return found
    if found.table is not None and "split" in found.table.names:
        rows = [str(value) == split for value in found.column("split")]
        if any(rows):
            return found.subset(torch.tensor(rows, dtype=torch.bool, device="cpu"))
        if split != "train":
            raise MissingError(f"{file}: no row whose column `split` is {split!r}")
    if split != "train":
        raise MissingError(
            f"{file}: has no {split!r}; add a column `split`, or put {{split}} in the path; or set "
            "evaluate.test=false, and data.validation=0.1"
        )
    return found


def folder(split: str, root: Path, path: str, size: int = 64, crop: int | None = None) -> Source:
    """`path/train/<class>/*.jpg`, `path/test/<class>/*.jpg`; or `path/<class>/*.jpg`, all for training."""
    top = locate(path, root)
    train = read_table(Pictures(top, Columns()))
    found = train
    if split != "train":
        if not find_base(top, split).is_dir():
            raise MissingError(
                f"{find_base(top, split)} is not a folder; put one folder per class in it"
            )
        columns = Columns(class_names=train.class_names)
        found = read_table(Pictures(top, columns, split=split))
    pictures = found.pictures
    assert isinstance(pictures, ImageFiles)
    for item in pictures.items:
        file = pictures.root / str(item)
        if not file.exists() or not file.stat().st_size:
            raise InputError(f"{file}: is empty or a broken link; replace it or delete it")
    raw = replace(pictures, size=size, crop=crop)
    return replace(found, inputs=raw, pictures=None, name=f"{top.name}/{split}")


def open_like(
    what: Any,
    reading: Reading,
    class_names: Sequence[str] | None = None,
    encoding: str | None = None,
    id: str | None = None,
    pixels: tuple[int, int | None] | None = None,
) -> Source:
    """New examples, read as those of a training were: the same columns, categories and encoder.

    No labels are needed where the names of the classes are given, and none are read: all have that of the first class.
    With `pixels`, (size, crop), the inputs are the pictures themselves.
    """
    columns = Columns(class_names=class_names, encoding=encoding)
    opened = open_source(what, columns, labelled=False)
    if id is not None and opened.table is not None and id in opened.table.names:
        opened = replace(opened, ids=tuple(opened.table.texts(id)))
    opened = prepare_like(opened, reading)
    if pixels is not None and isinstance(opened.pictures, ImageFiles):
        size, crop = pixels
        return replace(opened, inputs=replace(opened.pictures, size=size, crop=crop))
    chosen = Columns(text=reading.text) if reading.text else Columns()
    return embed(opened, choose_to_embed(opened, chosen), reading.encoder)


def column_statistics(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every column of the inputs; 1 for a column that does not vary."""
    total = square = torch.zeros(source.input_shape, dtype=torch.float64, device="cpu")
    for index in torch.split(torch.arange(len(source), device="cpu"), PIECE):
        rows = source.inputs[index].double()
        total, square = total + rows.sum(0), square + rows.square().sum(0)
    mean = total / len(source)
    spread = (square / len(source) - mean.square()).clamp_min(0).sqrt()
    std = torch.where(spread > 1e-6 * mean.abs().clamp_min(1e-6), spread, torch.ones_like(spread))
    return tuple(mean.tolist()), tuple(std.tolist())
