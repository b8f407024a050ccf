"""The front door: whatever a user has becomes one of three subjects whose labels can be predicted.

Every check comes before the first long computation.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesmooth.audit.opening import is_frame, open_data
from bayesmooth.audit.problems import (
    UNREADABLE,
    check_share,
    find_missing_pictures,
    leave_out,
    leave_out_missing,
    settle,
    settle_classes,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.subjects import (
    Embedded,
    Network,
    Predicted,
    Subject,
    as_posterior,
    check_batches,
)
from bayesmooth.data import Examples
from bayesmooth.data.columns import Reading
from bayesmooth.data.encoders import (
    embed_pictures,
    embed_texts,
    explain_unreadable,
)
from bayesmooth.data.examples import Problem
from bayesmooth.data.labels import encode, name_classes, read_labels
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError

DEFAULT = Settings()


def open_source(
    source: Any = None,
    posterior: Any = None,
    data: Any = None,
    *,
    embeddings: Any = None,
    probabilities: Any = None,
    labels: Any = None,
    settings: Settings = DEFAULT,
) -> Subject:
    """The subject that the arguments describe; labels are checked where they are known already."""
    given = [x for x in (source, embeddings, probabilities) if x is not None]
    if len(given) != 1:
        raise InputError("give one source: a model, a table, embeddings= or probabilities=")
    if isinstance(source, nn.Module):
        if posterior is None or data is None:
            raise InputError("a model: give its posterior (or optimizer) and its data too")
        learned = as_posterior(posterior, source)
        if isinstance(data, Examples):
            return Network(source, learned, settle(data))
        check_batches(data)
        return Network(source, learned, None, data)
    file = Path(labels) if isinstance(labels, str | Path) else None
    settings = replace(settings, labels_file=file, predicted=probabilities is not None)
    arrays = source is None and (labels is not None or not _can_be_opened(given[0]))
    if arrays and file is None and not isinstance(given[0], Examples):
        examples = from_arrays(given[0], labels, settings)
    else:
        examples = open_data(given[0], settings)
    how = {"learned": not settings.predicted, "named": settings.class_names is not None}
    what = choose_to_embed(examples, settings)
    if what != "pictures":
        missing = find_missing_pictures(examples)
        examples = replace(examples, problems=(*examples.problems, *missing))
    before = settle(examples, texts=what == "texts", tagged=settings.tagged, **how)
    examples = embed(before, settings)
    if len(examples) < len(before) and not settings.tagged:
        examples = settle_classes(examples, before, **how)
    return Predicted(examples) if settings.predicted else Embedded(examples)


def open_other_split(against: Any, settings: Settings) -> Examples:
    """The split that is only compared with: its labels are not judged, so any will do."""
    if not _can_be_opened(against):
        raise InputError(
            f"against: a {type(against).__name__}; must be embedded data: a file, a table, an Examples"
        )
    return embed(open_data(against, settings), settings)


def from_arrays(rows: Any, labels: Any, settings: Settings) -> Examples:
    """Rows of numbers and labels, in memory, as `Examples`."""
    if labels is None:
        raise InputError("labels=: missing; they are what is audited")
    inputs, class_names = _as_tensor(rows, "the rows"), settings.class_names
    if inputs.ndim != 2 or not len(inputs):
        raise InputError(f"rows of shape {tuple(inputs.shape)}: must be N × D, N ≥ 1")
    given = _as_array(labels, "labels")
    if given.ndim != 1:
        raise InputError(f"labels of shape {given.shape}: must be one per row, ({len(inputs)},)")
    whole = given.dtype.kind in "iu"

    def make(given: np.ndarray[Any, Any]) -> Examples:
        names: Sequence[str]
        if not whole:
            words = read_labels(given.tolist(), "labels", class_names or ())
            columns = [str(column) for column in getattr(rows, "columns", ()) if settings.predicted]
            names = class_names or (columns if {*words} <= {*columns} else name_classes(words))
            numbers = encode(words, names, "labels")
        elif class_names or settings.predicted:
            names = class_names or [str(k) for k in range(inputs.shape[1])]
            numbers = torch.as_tensor(given, device="cpu")
        else:  # the classes are the numbers that occur
            present, places = np.unique(given, return_inverse=True)
            names, numbers = [str(k) for k in present], torch.from_numpy(places)
        return Examples(inputs, numbers, tuple(names), name="arrays")

    return leave_out_missing(given, make, class_names, numbered=whole and settings.predicted)


def choose_to_embed(examples: Examples, settings: Settings) -> str:
    """What is to be embedded: "pictures" or "texts" where there is nothing else to learn from, else ""."""
    if examples.input_shape != (0,) or examples.predicted is not None:
        return ""
    if examples.pictures is not None and settings.text is None:
        return "pictures"
    if "text" in examples.meta:
        return "texts"
    raise InputError(f"{examples.name}: no embeddings, texts or pictures: nothing to learn from")


def embed(examples: Examples, settings: Settings) -> Examples:
    """The examples with embeddings of their pictures or texts, without those whose picture cannot be read."""
    what = choose_to_embed(examples, settings)
    if not what:
        return examples
    pictures = examples.pictures if what == "pictures" else None
    how: dict[str, Any] = {"cache": settings.cache, "quiet": settings.quiet}
    if pictures is None:
        made = embed_texts(examples.meta["text"], settings.encoder, **how)
    else:
        made = embed_pictures(pictures, settings.encoder, skip_unreadable=True, **how)
    rows, encoder, note = made
    reading = replace(examples.reading or Reading(), encoder=encoder)
    embedded = replace(examples, inputs=rows, reading=reading, notes=(*examples.notes, note))
    unreadable = rows.isnan().all(1)
    if not bool(unreadable.any()) or not isinstance(pictures, ImageFiles):
        return embedded
    count, first = int(unreadable.sum()), int(unreadable.nonzero()[0])
    # Where the data lie is private, and the report may be passed on.
    reason = explain_unreadable(pictures, first).replace(f"{pictures.root}{os.sep}", "")
    text = (
        f"{count} of {len(rows)} pictures cannot be read or are tiny, and are left out ({reason})"
    )
    check_share(count, len(rows), [Problem(UNREADABLE, text, ())])
    return leave_out(embedded, unreadable, UNREADABLE, text)


def _can_be_opened(source: Any) -> bool:
    """Whether it is something that may hold its own labels."""
    kinds = (str, Path, Examples)
    return isinstance(source, kinds) or is_frame(source) or hasattr(source, "to_pandas")


def _as_tensor(values: Any, what: str) -> Tensor:
    array = values if isinstance(values, Tensor) else _as_array(values, what)
    try:
        tensor = array if isinstance(array, Tensor) else torch.as_tensor(array, device="cpu")
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array of numbers ({error})") from None
    if tensor.is_complex():
        raise InputError(f"{what}: complex numbers; must be real: give real and imaginary parts")
    return tensor.detach()


def _as_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    """An array that owns its numbers; a mask would be lost, so it is refused."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what}: a masked array; fill it in, or leave the masked rows out")
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        return np.require(values, requirements="W")  # a view of a frame may be read-only
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array ({error})") from None
