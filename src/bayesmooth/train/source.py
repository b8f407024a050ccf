"""A user's own data: whatever can be audited can be trained on, and new examples are read as the training data were.

The same functions open, mend and embed the files; `Reading`, in `data.json`, says how the training data were read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bayesmooth.audit.opening import ARRAYS, RUN, TABLES, is_frame
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.sources import embed, open_source
from bayesmooth.data import Examples
from bayesmooth.data.columns import PICTURES, Reading, as_texts
from bayesmooth.data.encoder_models import PLAIN
from bayesmooth.data.examples import Mapped
from bayesmooth.data.formats import HUGGING_FACE, KEYS, find_name, read_arrow, split_folder
from bayesmooth.data.labels import as_text
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles, find_pictures
from bayesmooth.data.reading import MissingError, as_finite, locate, map_npy, read_npz
from bayesmooth.data.tabular import frame_from_arrow, number_rows, open_pictures, read_frame
from bayesmooth.errors import InputError
from bayesmooth.optional import require

if TYPE_CHECKING:
    from bayesmooth.train.recipe import Recipe

SOURCE = "source"
READABLE = (SOURCE, "table", "folder", "embeddings")  # files of the user's: there can be more alike
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


def open_new(given: Any, recipe: "Recipe", facts: dict[str, Any]) -> Examples:
    """New inputs, read as the training inputs of a run were; `facts` are what its `data.json` says.

    No labels are needed and none are read: all have that of the first class.
    """
    if recipe.data.name not in READABLE:
        raise InputError(
            f"a run on {recipe.data.name}, which is no file of yours; in Python Run.open(path).model() predicts"
        )
    reading, shape = Reading(**facts.get("reading", {})), tuple(facts["input_shape"])
    options = recipe.data.options
    opener = _Opener(reading, tuple(facts["class_names"]), options)
    if isinstance(given, Examples):
        examples = given
    elif isinstance(given, str | Path):
        examples = opener.open_path(Path(given))
    elif is_frame(given):
        examples = opener.open_frame(number_rows(given, "table"), "table", Path())
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


@dataclass(frozen=True)
class _Opener:
    """Opens new inputs: `reading` and `options` say how those of the training were read."""

    reading: Reading
    class_names: tuple[str, ...]
    options: Mapping[str, Any]

    def open_path(self, path: Path) -> Examples:
        kind = path.suffix.lower()
        if path.is_dir() and any((path / name).is_file() for name in HUGGING_FACE):
            split, _ = split_folder(path)
            frame = frame_from_arrow(read_arrow(split), str(path))
            return self.open_frame(frame, str(path), split)
        tables = sorted(path.glob("*.parquet")) if path.is_dir() else [path] * (kind in TABLES)
        if tables:
            parts = [read_frame(file, encoding=self.options.get("encoding")) for file in tables]
            frame = require("pandas", extra="data").concat(parts, ignore_index=True)
            place = path if path.is_dir() else path.parent
            return self.open_frame(frame, str(path), place)
        if path.is_dir():
            files = find_pictures(path)
            empty = torch.empty(len(files), 0, dtype=torch.float32, device="cpu")
            pictures = ImageFiles(path.absolute(), files, SHOWN_SIZE)
            return self.unlabelled(path.name, empty, ids=files, pictures=pictures)
        if not path.is_file() or kind not in ARRAYS:
            raise InputError(
                f"{path}: no such data; give one of {', '.join(ARRAYS + TABLES)}, or a folder"
            )
        if kind == ".npy":
            return self.unlabelled(path.stem, Mapped(map_npy(path)))
        arrays = read_npz(path)
        rows = arrays[find_name(path, sorted(arrays), KEYS["embeddings"], "rename one", "array")]
        ids = tuple(map(as_text, arrays["ids"].tolist())) if "ids" in arrays else None
        return self.unlabelled(path.stem, as_finite(rows, str(path), "embeddings"), ids=ids)

    def open_frame(self, frame: Any, where: str, place: Path) -> Examples:
        reading, options = self.reading, self.options
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
        return self.unlabelled(Path(where).stem, rows, **how)

    def unlabelled(self, name: str, inputs: Any, **how: Any) -> Examples:
        labels = torch.zeros(len(inputs), dtype=torch.int64, device="cpu")
        return Examples(inputs, labels, self.class_names, name=name, **how)
