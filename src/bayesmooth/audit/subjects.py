"""The three subjects of an audit, each with its way to predict labels: a network, embeddings, given probabilities."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from bayesmooth.audit.embedded import predict_embedded
from bayesmooth.audit.findings import MOST_ROWS, read_rows
from bayesmooth.audit.predictions import (
    LeftOut,
    Predictions,
    check_order,
    check_probabilities,
    predict_left_out,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.data import Columns, Source, open_source
from bayesmooth.data.opening import can_open, read_vote_array
from bayesmooth.data.prepare import choose_inputs, choose_to_embed, embed, prepare, settle
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.posterior import Posterior

STATISTICS_FROM = 2_000  # examples from which batch-norm statistics are computed


@dataclass(frozen=True)
class Network:
    """A network, its posterior and its data: a `Source`, or else `batches` in a fixed order."""

    model: nn.Module
    posterior: Posterior
    source: Source | None
    batches: Any = None

    def predict(self, settings: Settings) -> Predictions:
        """From posterior samples; `loo` takes each example's pull on the network back.

        The examples are those that the network was trained on, so each draw computes its batch-norm statistics from
        them.
        """
        if settings.out_of_sample == "folds":
            raise InputError(
                "folds: a network would have to be trained again for each; use 'loo', which needs "
                "no refit, or audit its embeddings"
            )
        noise = label_noise(
            self.model,
            self.posterior,
            self.batches if self.source is None else self.source,
            samples=settings.samples,
            seed=settings.seed,
            batch_size=settings.batch_size,
            batchnorm=self._read_for_statistics(settings.batch_size),
            quiet=settings.quiet,
        )
        labels = _check_labels(noise)
        left_out = predict_left_out(noise.logits, noise.logit_variance, noise.averaged, labels)
        name, way = type(self.model).__name__, settings.describe_way()
        return Predictions(
            labels,
            left_out if settings.out_of_sample == "loo" else noise.averaged,
            noise.expected,
            f"{name}, {settings.samples} posterior samples, {way}",
            index=noise.index,
            without_label=LeftOut.of(left_out, labels),
        )

    def _read_for_statistics(self, batch_size: int) -> list[Tensor] | None:
        """Inputs for batch-norm statistics, where there are such layers and the data gives its rows by position."""
        norms = any(isinstance(part, _BatchNorm) for part in self.model.modules())
        if not norms or self.source is None:
            return None
        device = next(self.model.parameters()).device
        some = torch.arange(min(len(self.source), STATISTICS_FROM), device="cpu")
        return [self.source.batch(part).to(device) for part in torch.split(some, batch_size)]

    def rows(self) -> None:
        """None: neighbours are not looked for among the inputs of a network."""


@dataclass(frozen=True)
class Embedded:
    """A table of embeddings."""

    source: Source

    def predict(self, settings: Settings) -> Predictions:
        """From a variational softmax regression and the nearest neighbours."""
        if self.source.predicted is not None and self.source.input_shape == (0,):
            raise InputError(
                f"{self.source.name}: has predicted probabilities and no embeddings; audit them with "
                "--probabilities, in Python with probabilities=path"
            )
        return predict_embedded(self.source, settings)

    def rows(self) -> Tensor | Source:
        """The rows in which neighbours are looked for: in memory, or as they are where they may not fit."""
        return read_rows(self.source) if len(self.source) <= MOST_ROWS else self.source


@dataclass(frozen=True)
class Predicted:
    """Probabilities that someone else's model predicted, which should be out of sample."""

    source: Source

    def predict(self, settings: Settings) -> Predictions:
        """As they are."""
        source, rows = self.source, self.source.predicted
        if rows is None:
            rows = source.batch(torch.arange(len(source), device="cpu"))
        values = check_probabilities(rows, len(source), source.num_classes)
        check_order(values, source.labels.numbers, source.class_names)
        return Predictions(source.labels.numbers, values, None, "probabilities as given")

    def rows(self) -> Tensor | Source | None:
        """The rows in which neighbours are looked for, where there are embeddings beside the predictions."""
        alone = self.source.predicted is None or self.source.input_shape == (0,)
        return None if alone else Embedded(self.source).rows()


Subject = Network | Embedded | Predicted


def check_batches(batches: Any) -> None:
    """Refuse a loader that does not keep the order of its data: no label could be told from another."""
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return
    order = batches.batch_sampler
    if order is None or type(order) is BatchSampler:
        order = getattr(order, "sampler", batches.sampler)
    if not isinstance(order, SequentialSampler):
        raise InputError(
            f"a DataLoader with a {type(order).__name__}: its batches come in another order than the data, so that no "
            "id would be right; give DataLoader(dataset, batch_size) without shuffle or sampler"
        )


def open_subject(
    source: Any,
    posterior: Any,
    data: Any,
    *,
    embeddings: Any,
    probabilities: Any,
    labels: Any,
    votes: Any,
    columns: Columns,
    settings: Settings,
) -> Subject:
    """The subject that the arguments of `audit` describe."""
    given = [x for x in (source, embeddings, probabilities) if x is not None]
    if len(given) != 1:
        raise InputError("give one source: a model, a table, embeddings= or probabilities=")
    if isinstance(source, nn.Module):
        if posterior is None or data is None:
            raise InputError("a model: give its posterior (or optimizer) and its data too")
        learned = as_posterior(posterior, source)
        if isinstance(data, Source):
            return Network(source, learned, settle(data))
        check_batches(data)
        return Network(source, learned, None, data)
    if votes is not None and labels is not None:
        raise InputError("votes and labels: give one; with several labels, audit one tag at a time")
    if votes is not None:
        labels = read_vote_array(votes, columns.class_names)
    elif columns.annotator is not None and not can_open(source):
        raise InputError(
            "annotator: needs a table with one row per vote; for an array N × A use votes="
        )
    elif labels is None and source is None and not can_open(given[0]):
        raise InputError("labels=: missing; they are what is audited")
    predicted = probabilities is not None
    opened = open_source(given[0], columns, labels, predicted=predicted)
    settings.check_for(opened.labels)
    how = {"encoder": settings.encoder, "cache": settings.cache, "quiet": settings.quiet}
    ready = prepare(opened, columns, predicted=predicted, **how)  # type: ignore[arg-type]
    return Predicted(ready) if predicted else Embedded(ready)


def open_other_split(against: Any, columns: Columns, settings: Settings) -> Source:
    """The split that is only compared with: its labels are not judged, so any will do."""
    if not can_open(against):
        raise InputError(
            f"against: a {type(against).__name__}; must be embedded data: a file, a table, a Source"
        )
    opened = open_source(against, columns)
    chosen = choose_inputs(opened, columns, False, settings.cache, settings.quiet)
    what = choose_to_embed(chosen, columns)
    return embed(chosen, what, settings.encoder, settings.cache, settings.quiet)


def as_posterior(source: Any, model: nn.Module) -> Posterior:
    """A posterior as it is, or that of an optimizer that has one (IVON, bSAM)."""
    if isinstance(source, Posterior):
        return source
    make = getattr(source, "posterior", None)
    if not callable(make):
        raise InputError(
            f"{type(source).__name__} has no posterior: give a Posterior, or an optimizer that "
            "learns one (IVON, BSAM)"
        )
    made: Posterior = make(model)
    return made


def _check_labels(noise: LabelNoise) -> Tensor:
    if noise.label is None:
        raise InputError("the data has no labels to audit; give batches (inputs, labels)")
    classes = noise.logits.shape[1]
    bad = ((noise.label < 0) | (noise.label >= classes)).nonzero().flatten()
    if len(bad):
        at = int(bad[0])
        raise InputError(
            f"label {int(noise.label[at])} of example {int(noise.index[at])}: must be from 0 to "
            f"{classes - 1}, the model's classes"
        )
    return noise.label
