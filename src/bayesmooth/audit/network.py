"""Predictions from a network with a posterior over its weights."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.audit.left_out import predict_left_out
from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.settings import Settings
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.posterior import Posterior

STATISTICS_FROM = 2_000  # examples from which batch-norm statistics are computed


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
    made = make(model)
    assert isinstance(made, Posterior)
    return made


def predict_with_network(
    model: nn.Module, posterior: Posterior, data: Any, settings: Settings
) -> Predictions:
    """From posterior samples; `loo` takes each example's pull on the network back.

    The examples are those that the network was trained on, so each draw computes its batch-norm statistics from them.
    """
    if settings.out_of_sample == "folds":
        raise InputError(
            "folds: a network would have to be trained again for each; use 'loo', which needs "
            "no refit, or audit its embeddings"
        )
    noise = label_noise(
        model,
        posterior,
        data,
        samples=settings.samples,
        seed=settings.seed,
        batch_size=settings.batch_size,
        batchnorm=_read_for_statistics(model, data, settings.batch_size),
        quiet=settings.quiet,
    )
    labels = _check_labels(noise)
    left_out = predict_left_out(noise.logits, noise.logit_variance, noise.averaged, labels)
    way = {"loo": "leave-one-out", "none": "in-sample"}[settings.out_of_sample]
    return Predictions(
        labels,
        left_out if settings.out_of_sample == "loo" else noise.averaged,
        noise.expected,
        f"{type(model).__name__}, {settings.samples} posterior samples, {way}",
        index=noise.index,
        without_label=LeftOut.of(left_out, labels),
    )


def _read_for_statistics(model: nn.Module, data: Any, batch_size: int) -> list[Tensor] | None:
    """Inputs for batch-norm statistics, where there are such layers and the data gives its rows by position."""
    norms = any(isinstance(part, _BatchNorm) for part in model.modules())
    if not norms or not isinstance(data, Examples):
        return None
    device = next(model.parameters()).device
    some = torch.arange(min(len(data), STATISTICS_FROM), device="cpu")
    return [data.batch(part).to(device) for part in torch.split(some, batch_size)]


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
