"""New examples of a trained run: read as its training data were (`Reading`, in `data.json`), and their predictions."""

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmooth.audit.opening import ARRAYS, TABLES, is_frame
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.sources import embed
from bayesmooth.data import Examples
from bayesmooth.data.columns import PICTURES, Reading, as_texts
from bayesmooth.data.csvtext import guard
from bayesmooth.data.examples import Mapped
from bayesmooth.data.formats import HUGGING_FACE, KEYS, find_name, read_arrow, split_folder
from bayesmooth.data.labels import as_text
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles, find_pictures
from bayesmooth.data.reading import as_finite, map_npy, read_npz
from bayesmooth.data.tabular import frame_from_arrow, number_rows, open_pictures, read_frame
from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.source import SOURCE
from bayesmooth.optional import require

READABLE = (SOURCE, "table", "folder", "embeddings")
"""The data sets that are files of the user's, so that there can be more of the kind."""


@dataclass(frozen=True)
class Forecast:
    """The class probabilities (N, K) of new examples: at the mean of the weights, and averaged over the posterior."""

    examples: Examples
    at_mean: Tensor
    averaged: Tensor | None

    def columns(self) -> dict[str, list[Any]]:
        """One row per example: the likeliest class and its probability, then those of all classes."""
        names, count = self.examples.class_names, len(self.examples)
        columns: dict[str, list[Any]] = {"id": list(self.examples.ids or map(str, range(count)))}
        kinds = {"at_mean": self.at_mean, "averaged": self.averaged}
        known = {how: rows for how, rows in kinds.items() if rows is not None}
        for how, rows in known.items():
            best, place = rows.max(1)
            columns[how] = [names[k] for k in place.tolist()]
            columns[f"{how}_probability"] = best.tolist()
        for how, rows in known.items():
            columns |= {f"{how}_{name}": rows[:, k].tolist() for k, name in enumerate(names)}
        return columns

    def save(self, path: str | Path) -> None:
        """Write them as CSV."""
        columns, text = self.columns(), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(guard, columns))
        for row in zip(*columns.values(), strict=True):
            writer.writerow([guard(v) if isinstance(v, str) else f"{v:.6g}" for v in row])
        write_atomically(Path(path), text.getvalue())


def open_new(given: Any, recipe: Recipe, facts: dict[str, Any]) -> Examples:
    """New inputs, read as the training inputs of a run were; `facts` are what its `data.json` says.

    No labels are needed and none are read: all have that of the first class.
    """
    options = dict(recipe.data.options)
    if recipe.data.name not in READABLE:
        raise InputError(
            f"a run on {recipe.data.name}, which is no file of yours; in Python Run.open(path).model() predicts"
        )
    names, shape = tuple(facts["class_names"]), tuple(facts["input_shape"])
    reading = Reading(**facts.get("reading", {}))
    if isinstance(given, Examples):
        examples = given
    elif isinstance(given, str | Path):
        examples = _open_path(Path(given), reading, names, options)
    elif is_frame(given):
        examples = _open_frame(
            number_rows(given, "table"), "table", Path(), reading, names, options
        )
    else:
        raise InputError(f"a {type(given).__name__}: give a path, a data frame or an Examples")
    if len(shape) == 3 and isinstance(examples.pictures, ImageFiles):
        size, crop = options.get("size", shape[1]), options.get("crop")
        examples = replace(examples, inputs=replace(examples.pictures, size=size, crop=crop))
    elif examples.input_shape == (0,):
        examples = embed(examples, Settings(encoder=reading.encoder, text=reading.text))
    if examples.input_shape != shape:
        raise InputError(
            f"{examples.name}: inputs of shape {examples.input_shape}; the run was trained on {shape}"
        )
    mean, std = (tuple(facts[key]) if key in facts else None for key in ("mean", "std"))
    return replace(examples, mean=mean, std=std)


def _open_path(
    path: Path, reading: Reading, names: tuple[str, ...], options: dict[str, Any]
) -> Examples:
    kind = path.suffix.lower()
    if path.is_dir() and any((path / name).is_file() for name in HUGGING_FACE):
        split, _ = split_folder(path)
        frame = frame_from_arrow(read_arrow(split), str(path))
        return _open_frame(frame, str(path), split, reading, names, options)
    tables = sorted(path.glob("*.parquet")) if path.is_dir() else [path] * (kind in TABLES)
    if tables:
        parts = [read_frame(file, encoding=options.get("encoding")) for file in tables]
        frame = require("pandas", extra="data").concat(parts, ignore_index=True)
        place = path if path.is_dir() else path.parent
        return _open_frame(frame, str(path), place, reading, names, options)
    if path.is_dir():
        files = find_pictures(path)
        empty = torch.empty(len(files), 0, dtype=torch.float32, device="cpu")
        pictures = ImageFiles(path.absolute(), files, SHOWN_SIZE)
        return _unlabelled(path.name, empty, names, ids=files, pictures=pictures)
    if not path.is_file() or kind not in ARRAYS:
        raise InputError(
            f"{path}: no such data; give one of {', '.join(ARRAYS + TABLES)}, or a folder"
        )
    if kind == ".npy":
        return _unlabelled(path.stem, Mapped(map_npy(path)), names)
    arrays = read_npz(path)
    rows = arrays[find_name(path, sorted(arrays), KEYS["embeddings"], "rename one", "array")]
    ids = tuple(map(as_text, arrays["ids"].tolist())) if "ids" in arrays else None
    return _unlabelled(path.stem, as_finite(rows, str(path), "embeddings"), names, ids=ids)


def _open_frame(
    frame: Any,
    where: str,
    place: Path,
    reading: Reading,
    names: tuple[str, ...],
    options: dict[str, Any],
) -> Examples:
    key = next((name for name in (options.get("id"), "id") if name in frame), None)
    ids = tuple(map(str, frame.index) if key is None else as_texts(frame[key]))
    rows, notes = torch.empty(len(frame), 0, dtype=torch.float32, device="cpu"), list[str]()
    meta, pictures = {}, None
    if reading.sources:
        rows, notes = reading.read(frame, where)
    elif reading.text is not None:
        find_name(where, frame.columns, (reading.text,), "the run was trained on its texts")
        meta = {"text": as_texts(frame[reading.text])}
    else:
        pictures = open_pictures(frame, place, SHOWN_SIZE, reading.image)
        if pictures is None:
            find_name(where, frame.columns, PICTURES, "the run was trained on pictures")
    how = {"ids": ids, "meta": meta, "pictures": pictures, "notes": tuple(notes)}
    return _unlabelled(Path(where).stem, rows, names, **how)


def _unlabelled(name: str, inputs: Any, class_names: tuple[str, ...], **how: Any) -> Examples:
    labels = torch.zeros(len(inputs), dtype=torch.int64, device="cpu")
    return Examples(inputs, labels, class_names, name=name, **how)
