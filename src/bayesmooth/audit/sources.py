"""Whatever a user has, as one of three subjects that can give evidence."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesmooth.audit.embeddings import audit_embeddings
from bayesmooth.audit.evidence import Evidence, check_labels, check_probabilities
from bayesmooth.audit.networks import as_posterior, audit_network
from bayesmooth.data import Examples, load
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior

ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class How:
    """The settings that subjects share."""

    out_of_sample: str = "none"
    folds: int = 5
    samples: int = 16
    seed: int = 0
    batch_size: int = 256
    quiet: bool = False


@dataclass(frozen=True)
class Network:
    """A network, its posterior and the data: an `Examples`, or batches in a fixed order."""

    model: nn.Module
    posterior: Posterior
    data: Any
    examples: Examples | None

    def evidence(self, how: How) -> Evidence:
        """From posterior samples."""
        if how.out_of_sample == "folds":
            raise InputError(
                "folds: a network would have to be trained again for each; use 'loo', which needs "
                "no refit, or audit its embeddings"
            )
        return audit_network(
            self.model,
            self.posterior,
            self.data,
            out_of_sample=how.out_of_sample,
            samples=how.samples,
            seed=how.seed,
            batch_size=how.batch_size,
            quiet=how.quiet,
        )


@dataclass(frozen=True)
class Embedded:
    """A table of embeddings."""

    examples: Examples

    def evidence(self, how: How) -> Evidence:
        """From a variational softmax regression."""
        if self.examples.predicted is not None and self.examples.input_shape == (0,):
            raise InputError(
                f"{self.examples.name}: has predicted probabilities and no embeddings; audit them with "
                "--probabilities, in Python with probabilities=path"
            )
        return audit_embeddings(
            self.examples,
            out_of_sample=how.out_of_sample,
            folds=how.folds,
            seed=how.seed,
            quiet=how.quiet,
        )


@dataclass(frozen=True)
class Predicted:
    """Probabilities that someone else's model predicted, out of sample one hopes."""

    examples: Examples

    def evidence(self, how: How) -> Evidence:
        """As they are."""
        rows = self.examples.predicted
        if rows is None:
            rows = self.examples.batch(torch.arange(len(self.examples)))
        values = check_probabilities(rows, len(self.examples), self.examples.num_classes)
        return Evidence(self.examples.labels, values, None, "probabilities as given")


Subject = Network | Embedded | Predicted


def gather(
    source: Any,
    posterior: Any = None,
    data: Any = None,
    *,
    embeddings: Any = None,
    probabilities: Any = None,
    labels: Any = None,
    class_names: Sequence[str] | None = None,
) -> Subject:
    """The subject that the arguments describe; labels are checked where they are known already."""
    arrays = embeddings if probabilities is None else probabilities
    if sum(x is not None for x in (source, embeddings, probabilities)) != 1:
        raise InputError("give one source: a model, a table, embeddings= or probabilities=")
    subject: Subject
    if isinstance(source, nn.Module):
        if posterior is None or data is None:
            raise InputError("a model: give its posterior (or optimizer) and its data too")
        known = data if isinstance(data, Examples) else None
        subject = Network(source, as_posterior(posterior, source), data, known)
    elif arrays is not None:
        made = arrays
        if not isinstance(arrays, Examples):
            made = from_arrays(arrays, labels, class_names, embeddings is None)
        subject = Embedded(made) if probabilities is None else Predicted(made)
    else:
        subject = Embedded(_examples(source))
    if subject.examples is not None:
        check_labels(subject.examples.labels, subject.examples.class_names)
    return subject


def open_path(path: str | Path, **options: Any) -> Any:
    """A file as `Examples`, by what it is."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: a folder; a run is audited by Run.open(path).audit()")
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .npz, .csv or .parquet, or a run's folder")
    if path.suffix not in ARRAYS + TABLES:
        known = ", ".join(ARRAYS + TABLES)
        raise InputError(f"{path}: unknown kind of file; must be one of {known}, or a run's folder")
    options = {key: value for key, value in options.items() if value is not None}
    kind = "table"
    if path.suffix in ARRAYS:
        kind, options["probabilities"] = "embeddings", True
    return load(kind, "train", path=os.path.abspath(path), **options)


def from_arrays(
    rows: Any, labels: Any, class_names: Sequence[str] | None, classes_are_columns: bool
) -> Examples:
    """Rows of numbers and labels, in memory, as `Examples`."""
    if labels is None:
        raise InputError("labels=: missing; they are what is audited")
    inputs, given = _tensor(rows, "the rows"), _tensor(labels, "labels")
    if inputs.ndim != 2 or not len(inputs):
        raise InputError(f"rows of shape {tuple(inputs.shape)}: must be N × D, N ≥ 1")
    if class_names is None:
        classes = inputs.shape[1] if classes_are_columns else int(given.max()) + 1
        class_names = tuple(map(str, range(classes)))
    return Examples(inputs, given, tuple(class_names), name="arrays")


def _examples(source: Any) -> Examples:
    if not isinstance(source, Examples):
        raise InputError(
            f"a {type(source).__name__}: no source for an audit; give a model, an Examples, "
            "a path, embeddings= or probabilities="
        )
    return source


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array of numbers ({error})") from None
