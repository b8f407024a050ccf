"""Whatever can be audited can be trained on: the same files, opened, mended and embedded by the same functions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bayesmooth.audit.encoders import PLAIN
from bayesmooth.audit.opening import ARRAYS, RUN, TABLES
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.sources import open_source
from bayesmooth.data import Examples
from bayesmooth.data.columns import Reading
from bayesmooth.data.reading import MissingError, locate
from bayesmooth.errors import InputError

SOURCE = "source"
PIECE = 8192  # rows whose statistics are computed at once


def is_source(path: Path) -> bool:
    """Whether it looks like data, and not like a recipe or a run."""
    if path.is_dir():
        return not (path / RUN).is_file()
    return path.is_file() and path.suffix.lower() in (*ARRAYS, *TABLES)


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
) -> Examples:
    """What `bayesmooth audit` opens: a table, a folder of pictures, arrays; texts and pictures are embedded.

    Every column of numbers is standardised. All rows are for training: `data.validation` holds some back.
    """
    if split != "train":
        raise MissingError("has no test split; set evaluate.test=false, and data.validation=0.1")
    columns = {"label": label, "clean_label": clean_label, "text": text, "image": image, "id": id}
    names = {"features": features, "class_names": class_names}
    settings = Settings(**columns, **names, encoding=encoding, encoder=encoder)  # type: ignore[arg-type]
    apart = None if labels is None else locate(labels, root)
    examples = open_source(locate(path, root), labels=apart, settings=settings).examples
    assert examples is not None
    reading: Reading = examples.reading or Reading()
    if reading.encoder == PLAIN and "text" in examples.meta:
        raise InputError(
            f"{path}: TF-IDF encodes texts by the words of all of them, and new texts not alike; "
            "pip install 'bayesmooth[audit]' brings an encoder that does"
        )
    if examples.mean is None:
        mean, std = column_statistics(examples)
        examples = replace(examples, mean=mean, std=std)
        filled = {name: means or list(mean) for name, means in reading.vectors.items()}
        reading = replace(reading, vectors=filled)
    notes = (*examples.notes, *(problem.text for problem in examples.problems))
    return replace(examples, reading=reading, notes=notes)


def column_statistics(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every column of the inputs; 1 for a column that does not vary."""
    total = square = torch.zeros(examples.input_shape, dtype=torch.float64, device="cpu")
    for index in torch.split(torch.arange(len(examples), device="cpu"), PIECE):
        rows = examples.inputs[index].double()
        total, square = total + rows.sum(0), square + rows.square().sum(0)
    mean = total / len(examples)
    spread = (square / len(examples) - mean.square()).clamp_min(0).sqrt()
    std = torch.where(spread > 1e-6 * mean.abs().clamp_min(1e-6), spread, torch.ones_like(spread))
    return tuple(mean.tolist()), tuple(std.tolist())
