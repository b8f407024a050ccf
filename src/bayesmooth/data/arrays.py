"""Your own arrays: embeddings with labels in a .npz, or in a .npy beside a .npy of labels."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from bayesmooth.data.examples import Examples, Inputs
from bayesmooth.data.formats import KEYS, find_array, find_name
from bayesmooth.data.labels import as_text, encode, name_classes, read_labels
from bayesmooth.data.pictures import SHOWN_SIZE, ImageFiles
from bayesmooth.data.reading import Array, MissingError, as_finite, locate, read_npy, read_npz
from bayesmooth.errors import InputError

WAYS_OUT = {
    "embeddings": "predicted probabilities are read with probabilities=True",
    "labels": "name a .npy of labels with labels=",
}


def embeddings(
    split: str,
    root: Path,
    path: str,
    labels: str | None = None,
    class_names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> Examples:
    """Rows of numbers from `path` (.npz or .npy); `labels` names a .npy of labels kept apart.

    A path with {split} in it has one file per split. In a .npz: embeddings (or features, X), labels (or y), and, if you
    have them, clean_labels, class_names, ids, texts, and images (paths, or pictures as bytes). `probabilities` is for
    audits: it reads those that a model predicted (probabilities, or pred_probs) too, and where there are no embeddings
    beside them, or beside images or texts, the inputs have no columns.
    """
    if split != "train" and "{split}" not in path:
        raise MissingError(f"path={path!r}: put {{split}} in it, to read {split!r} from its file")

    def content(split: str) -> dict[str, Array]:
        apart = None if labels is None else read_npy(locate(labels, root, split))
        return read_arrays(locate(path, root, split), apart, probabilities)

    file = locate(path, root, split)
    names = tuple(class_names or ())
    if not names and split != "train":
        # The train file numbers the classes of the others, which may lack one.
        names = _npz_names(content("train"), locate(path, root, "train"))
    made = arrays_as_examples(content(split), file, names)
    return replace(made, name=f"{file.stem}/{split}")


def read_arrays(
    file: Path,
    labels: Array | None = None,
    probabilities: bool = False,
    *,
    label: str | None = None,
    id: str | None = None,
) -> dict[str, Array]:
    """The arrays of a file under the names of KEYS, of which the first counts; `label` and `id` name others."""
    found = {"embeddings": read_npy(file)} if file.suffix == ".npy" else read_npz(file)
    content = {k: found[name] for k, names in KEYS.items() for name in names[::-1] if name in found}
    for key, name in {"labels": label, "ids": id}.items():
        if name is not None:
            content[key] = found[find_array(file, found, name, key)]
    if not probabilities:
        content.pop("predicted", None)
    for key in ("predicted", "images", "texts") if probabilities else ():
        if key in content:
            content.setdefault("embeddings", np.empty((*content[key].shape[:1], 0), np.float32))
    if labels is not None:
        content["labels"] = labels
    for key, way_out in WAYS_OUT.items():
        if key not in content:
            find_name(file, sorted(found), KEYS[key], way_out, "array")
    for key, ndim in {"embeddings": 2, "predicted": 2, "labels": 1}.items():
        if key in content and content[key].ndim != ndim:
            shape = content[key].shape
            raise InputError(f"{file}: {key} of shape {shape}: must be N × D, and N labels")
    if "class_names" in found:
        content["class_names"] = found["class_names"]
    return content


def arrays_as_examples(content: dict[str, Array], file: Path, names: Sequence[str]) -> Examples:
    """The arrays as examples; without `names` the file itself names its classes, or they are those that occur."""
    names = tuple(names) or _npz_names(content, file)
    numbers = {
        key: encode(labels, names, f"{file}: {key}")
        for key, labels in _npz_labels(content, file, names).items()
    }
    predicted, images = content.get("predicted"), content.get("images")
    shown = {"text": content.get("texts")}
    if images is not None and images.dtype.kind == "U":
        shown["path"] = images
    return Examples(
        as_finite(content["embeddings"], str(file), "embeddings"),
        numbers["labels"],
        names,
        numbers.get("clean_labels"),
        tuple(map(as_text, content["ids"].tolist())) if "ids" in content else None,
        file.stem,
        meta={key: _strings(a, file, key) for key, a in shown.items() if a is not None},
        pictures=_pictures(images, file),
        predicted=None if predicted is None else as_finite(predicted, str(file), "probabilities"),
    )


def _npz_names(content: dict[str, Array], file: Path) -> tuple[str, ...]:
    return read_names(content, file) or name_classes(chain(*_npz_labels(content, file).values()))


def read_names(content: dict[str, Array], file: Path) -> tuple[str, ...]:
    """The classes that a .npz names; none where it has no `class_names`."""
    found = content.get("class_names")
    return () if found is None else tuple(_strings(found, file, "class_names"))


def _npz_labels(
    content: dict[str, Array], file: Path, names: Sequence[str] = ()
) -> dict[str, list[str]]:
    present = [key for key in ("labels", "clean_labels") if key in content]
    return {key: read_labels(content[key].tolist(), f"{file}: {key}", names) for key in present}


def _strings(rows: Array, file: Path, key: str) -> list[str]:
    if rows.ndim != 1 or rows.dtype.kind != "U":
        raise InputError(f"{file}: {key} are {rows.dtype} of shape {rows.shape}; must be N strings")
    return [str(value) for value in rows]


def _pictures(array: Array | None, file: Path) -> Inputs | None:
    """(N, C, H, W) bytes from (N, H, W) or (N, H, W, C); or the pictures at paths beside the file."""
    if array is None:
        return None
    if array.dtype.kind == "U" and array.ndim == 1:
        return ImageFiles(file.parent, array.tolist(), SHOWN_SIZE)
    pictures = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] not in (1, 3):
        raise InputError(
            f"{file}: images are {array.dtype} of shape {array.shape}; must be paths, or bytes (uint8) "
            "of shape N × H × W or N × H × W × 3"
        )
    return torch.from_numpy(pictures).permute(0, 3, 1, 2)
