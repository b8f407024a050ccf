"""Whatever a user has, as one of three subjects that can give evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesmooth.audit.evidence import (
    Evidence,
    as_posterior,
    audit_embeddings,
    audit_network,
    check_labels,
    check_probabilities,
)
from bayesmooth.audit.findings import rows_of
from bayesmooth.data import Examples
from bayesmooth.data.tabular import encode, names_of, plain
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior


@dataclass(frozen=True)
class How:
    """The settings that subjects share."""

    out_of_sample: str = "none"
    folds: int = 5
    samples: int = 16
    seed: int = 0
    batch_size: int = 256
    cluster: str | None = None
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
            cluster=how.cluster,
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
        check_order(values, self.examples.labels, self.examples.class_names)
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


def embeddings_of(subject: Subject) -> Tensor | None:
    """The rows in which neighbours are looked for, where a subject has any."""
    examples = subject.examples
    if examples is None or isinstance(subject, Network) or examples.input_shape == (0,):
        return None
    # Its rows are the predictions.
    if isinstance(subject, Predicted) and examples.predicted is None:
        return None
    return rows_of(examples)


def check_order(probabilities: Tensor, labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse columns that fit the labels only in another order than that of the classes."""
    suggested, classes = probabilities.argmax(1), len(class_names)
    pairs = torch.bincount(labels * classes + suggested, minlength=classes**2).view(
        classes, classes
    )
    column = pairs.argmax(1)  # which one speaks for the examples of each class
    as_given = int(pairs.diagonal().sum())
    reordered = int(pairs.gather(1, column[:, None]).sum())
    if len({*column.tolist()}) == classes and 2 * as_given < len(labels) < 2 * reordered:
        order = ", ".join(class_names[int(k)] for k in column.argsort())[:200]
        raise InputError(
            f"probabilities: their columns agree with {as_given} of {len(labels)} labels as they stand, and with "
            f"{reordered} in the order {order}; give class_names in the order of the columns"
        )


def from_arrays(
    rows: Any, labels: Any, class_names: Sequence[str] | None, classes_are_columns: bool
) -> Examples:
    """Rows of numbers and labels, in memory, as `Examples`."""
    if labels is None:
        raise InputError("labels=: missing; they are what is audited")
    inputs = _tensor(rows, "the rows")
    if inputs.ndim != 2 or not len(inputs):
        raise InputError(f"rows of shape {tuple(inputs.shape)}: must be N × D, N ≥ 1")
    given = np.require(labels, requirements="W")
    if given.dtype.kind in "iu" and given.ndim == 1:
        if class_names is None:
            classes = inputs.shape[1] if classes_are_columns else int(given.max()) + 1
            class_names = tuple(map(str, range(classes)))
        return Examples(inputs, torch.as_tensor(given), tuple(class_names), name="arrays")
    words = plain(given.tolist(), "labels", class_names or ())
    columns = (
        [str(column) for column in getattr(rows, "columns", ())] if classes_are_columns else []
    )
    names = tuple(class_names or (columns if {*words} <= {*columns} else names_of(words)))
    return Examples(inputs, encode(words, names, "labels"), names, name="arrays")


def _examples(source: Any) -> Examples:
    if not isinstance(source, Examples):
        raise InputError(
            f"a {type(source).__name__}: no source for an audit; give a model, an Examples, "
            "a path, embeddings= or probabilities="
        )
    return source


def _tensor(values: Any, what: str) -> Tensor:
    try:
        if isinstance(values, Tensor):
            return values
        # A view of a frame may be read-only.
        return torch.as_tensor(np.require(values, requirements="W"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not an array of numbers ({error})") from None
