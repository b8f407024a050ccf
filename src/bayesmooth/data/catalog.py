"""Data sets by name: digits, your own data as the splits of a run, and in a clone the public sets of the paper."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from bayesmooth.data.encoders import PLAIN
from bayesmooth.data.features import Reading
from bayesmooth.data.labels import Labels
from bayesmooth.data.opening import make_ready, open_like, open_source, read_table
from bayesmooth.data.pictures import ImageFiles, read_folder
from bayesmooth.data.source import Columns, Source, data_root
from bayesmooth.errors import InputError, one_of, require

PUBLIC = "reproduce.datasets"  # in a clone
SPLITS = ("train", "test")
PIECE = 8192  # rows whose statistics are computed at once


class MissingError(InputError):
    """Files that are not where they should be; `load` adds a way to get them."""


@dataclass(frozen=True)
class Dataset:
    """One row of the catalog: its `load(split, root, **options)`, its files, how to get them, and the places one of
    which they are in; without places it needs no files, or the user names them."""

    load: Callable[..., Source]
    about: str
    files: str
    bring: str = "give its path with path="
    places: tuple[str, ...] = ()


def digits(split: str, root: Path) -> Source:
    """1,797 digits of 8 × 8; every fifth is for the test, so both parts have all the writers."""
    bunch = require("sklearn.datasets", extra="data").load_digits()
    position = torch.arange(len(bunch.target), device="cpu")
    chosen = position[(position % 5 == 4) == (split == "test")]
    return Source(
        torch.from_numpy(bunch.images / 16).float().unsqueeze(1)[chosen],
        Labels(torch.from_numpy(bunch.target)[chosen], tuple("0123456789")),
        ids=tuple(map(str, chosen.tolist())),
        name=f"digits/{split}",
        mean=(0.3053,),
        std=(0.3764,),
    )


def folder(split: str, root: Path, path: str, size: int = 64, crop: int | None = None) -> Source:
    """`path/train/<class>/*.jpg`, `path/test/<class>/*.jpg`; or `path/<class>/*.jpg`, all for training."""
    opened = _open_split("train", root, path, None, Columns())
    if split != "train":
        opened = _open_split(split, root, path, None, Columns(class_names=opened.class_names))
    if not isinstance(opened.pictures, ImageFiles):
        raise InputError(f"{path}: no folder of pictures; for tables and arrays the data set is `source`")
    return replace(opened, inputs=replace(opened.pictures, size=size, crop=crop), pictures=None)


def source(
    split: str,
    root: Path,
    path: str,
    labels: str | None = None,
    encoder: str | None = None,
    standardize: bool = True,
    **columns: Any,
) -> Source:
    """Data as `bayesmooth audit` opens them: a table, a folder of pictures, arrays; texts and pictures are embedded.

    The split is a column `split`, or stands in the path: `data/{split}.csv`. Without either all rows are for training:
    `data.validation` holds some back. Every column of numbers is standardised, unless `standardize` is false.
    """
    named = Columns(**columns)
    train = make_ready(_open_split("train", root, path, labels, named), named, encoder=encoder)
    reading = train.reading or Reading()
    if reading.encoder == PLAIN and train.texts is not None:
        raise InputError(f"{path}: TF-IDF encodes texts by the words of all of them; pip install 'bayesmooth[audit]'")
    scale = column_statistics(train) if standardize and train.mean is None else (train.mean, train.std)
    mean, std = scale if standardize else (None, None)
    train = replace(train, reading=reading, mean=mean, std=std)
    if split == "train":
        return train
    named = replace(named, class_names=train.class_names)
    other = open_like(_open_split(split, root, path, labels, named), reading)
    return replace(other, mean=train.mean, std=train.std)


def _name_columns(load: Callable[..., Source]) -> None:
    """Let the signature of a loader name the columns that it takes, which stand in `Columns` alone."""
    votes_and_tags = {"annotator", "separator", "tags"}  # which a run does not learn from
    parameters = [p for p in inspect.signature(load).parameters.values() if p.kind is not p.VAR_KEYWORD]
    kinds = {f.name: f.type for f in fields(Columns) if f.name not in votes_and_tags}
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(n, keyword, default=None, annotation=k) for n, k in kinds.items()]
    load.__signature__ = inspect.Signature([*parameters, *more])  # type: ignore[attr-defined]
    load.__annotations__ |= kinds


_name_columns(source)


def _open_split(split: str, root: Path, path: str, labels: str | None, columns: Columns) -> Source:
    """The rows of a split; their inputs are not chosen yet."""
    file = find_path(path, root, split)
    if (file / "train").is_dir():
        if not (file / split).is_dir():
            raise MissingError(f"{file / split} is not a folder; put one folder per class in it")
        opened = read_table(read_folder(file, columns, split=split))
        return replace(opened, name=f"{opened.name}/{split}")
    opened = open_source(file, columns, None if labels is None else find_path(labels, root, split))
    opened = replace(opened, name=f"{opened.name}/{split}")
    if "{split}" in path:
        return opened
    has_column = opened.table is not None and "split" in opened.table.names
    parts = [*map(str, opened.column("split"))] if has_column else []
    if split in parts:
        return opened.subset([part == split for part in parts])
    if split != "train" or "test" in parts:
        raise MissingError(
            f"{file}: has no {split!r}; add a column `split` that says so, or put {{split}} in the path; or set "
            "evaluate.test=false, and data.validation=0.1"
        )
    return opened


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


OWN: dict[str, Dataset] = {
    "digits": Dataset(
        digits, "1,797 digits of 8 × 8, 10 classes", "none: part of scikit-learn", "pip install 'bayesmooth[data]'"
    ),
    "folder": Dataset(
        folder, "your pictures as pixels, a folder per class", "PATH/{train,test}/<class>/*.jpg, or PATH/<class>/*.jpg"
    ),
    "source": Dataset(
        source,
        "your data, as `bayesmooth audit` opens them: a table, texts, pictures or embeddings",
        "PATH.csv, .parquet, .npz or a folder, with a column `split` or one file per split: PATH-{split}.csv",
    ),
}


@cache
def datasets() -> dict[str, Dataset]:
    """All data sets by name; those of the paper where the package lies in a clone, or the command runs in one."""
    for clone in (Path(__file__).parents[3], Path.cwd()):
        file = clone.joinpath(*PUBLIC.split(".")).with_suffix(".py")
        if PUBLIC not in sys.modules and file.is_file():  # without its package, which trains
            spec = spec_from_file_location(PUBLIC, file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[PUBLIC] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[PUBLIC])
    public = sys.modules.get(PUBLIC)
    return OWN | (public.DATASETS if public else {})


def load(name: str, split: str = "train", data_dir: str | Path | None = None, **options: Any) -> Source:
    """A split of a data set, read from `data_dir` (else BAYESMOOTH_DATA, else ./data).

    >>> load("digits", "test")
    Source(digits/test: 359 × float32[1, 8, 8], 10 classes)
    """
    dataset = datasets()[one_of("data set", name, datasets())]
    one_of("split", split, SPLITS)
    parameters = tuple(inspect.signature(dataset.load).parameters)[2:]  # beside the split
    for option in options:
        one_of(f"option of {name}", option, parameters)
    if "path" in parameters and "path" not in options:
        raise InputError(f"{name}: give its path with path=; it looks like {dataset.files}")
    root = data_root(data_dir)
    try:
        return dataset.load(split, root, **options)
    except MissingError as missing:
        bring = dataset.bring.replace("DIR", str(root))
        advice = f"  to get them: {bring}\n  if you have them elsewhere: --data-dir, or BAYESMOOTH_DATA"
        text = f"{name}: {missing}\n  files: {dataset.files}"
        raise MissingError(text if "path" in options else f"{text}\n{advice}") from None


def find_path(path: str, root: Path, split: str) -> Path:
    """A path of the user, with {split} filled in: as it stands, else below the data directory."""
    path = path.replace("{split}", split)
    given = Path(path).expanduser()
    place = given if given.exists() else root / given
    if not place.exists():
        raise MissingError(f"path={path!r}: found neither there nor in {root}")
    return place
