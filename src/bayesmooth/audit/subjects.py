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
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.posterior import Posterior

STATISTICS_FROM = 2_000  # examples from which batch-norm statistics are computed


@dataclass(frozen=True)
class Network:
    """A network, its posterior and its data: an `Examples`, or else `batches` in a fixed order."""

    model: nn.Module
    posterior: Posterior
    examples: Examples | None
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
            self.batches if self.examples is None else self.examples,
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
        if not norms or self.examples is None:
            return None
        device = next(self.model.parameters()).device
        some = torch.arange(min(len(self.examples), STATISTICS_FROM), device="cpu")
        return [self.examples.batch(part).to(device) for part in torch.split(some, batch_size)]

    def rows(self) -> None:
        """None: neighbours are not looked for among the inputs of a network."""


@dataclass(frozen=True)
class Embedded:
    """A table of embeddings."""

    examples: Examples

    def predict(self, settings: Settings) -> Predictions:
        """From a variational softmax regression and the nearest neighbours."""
        if self.examples.predicted is not None and self.examples.input_shape == (0,):
            raise InputError(
                f"{self.examples.name}: has predicted probabilities and no embeddings; audit them with "
                "--probabilities, in Python with probabilities=path"
            )
        return predict_embedded(self.examples, settings)

    def rows(self) -> Tensor | Examples:
        """The rows in which neighbours are looked for: in memory, or as they are where they may not fit."""
        return read_rows(self.examples) if len(self.examples) <= MOST_ROWS else self.examples


@dataclass(frozen=True)
class Predicted:
    """Probabilities that someone else's model predicted, which should be out of sample."""

    examples: Examples

    def predict(self, settings: Settings) -> Predictions:
        """As they are."""
        examples, rows = self.examples, self.examples.predicted
        if rows is None:
            rows = examples.batch(torch.arange(len(examples), device="cpu"))
        values = check_probabilities(rows, len(examples), examples.num_classes)
        check_order(values, examples.labels, examples.class_names)
        return Predictions(examples.labels, values, None, "probabilities as given")

    def rows(self) -> Tensor | Examples | None:
        """The rows in which neighbours are looked for, where there are embeddings beside the predictions."""
        alone = self.examples.predicted is None or self.examples.input_shape == (0,)
        return None if alone else Embedded(self.examples).rows()


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
