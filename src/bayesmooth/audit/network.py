"""The audit of a network's own training labels, by a posterior over its weights."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from bayesmooth.audit.api import add_review, make_table
from bayesmooth.audit.decisions import read_decisions
from bayesmooth.audit.predictions import LeftOut, Predictions, predict_left_out
from bayesmooth.audit.table import Audit
from bayesmooth.data import Columns, Labels, Source
from bayesmooth.data.prepare import check_labels, settle
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import label_noise
from bayesmooth.posterior import Posterior
from bayesmooth.progress import silence

STATISTICS_FROM = 2_000  # examples from which batch-norm statistics are computed


def audit_network(
    model: nn.Module,
    posterior: Any,
    data: Any,
    *,
    samples: int = 16,
    seed: int = 0,
    batch_size: int = 256,
    class_names: Sequence[str] | None = None,
    decisions: str | Path | None = None,
    budget: int | None = None,
    leave_out: bool = False,
    quiet: bool = False,
) -> Audit:
    """Which labels are wrong by a network that was trained on them.

    `posterior` is its posterior, or the optimizer that learned it (IVON, BSAM). `data` is a `Source`, or batches
    (inputs, labels) in a fixed order. The prediction averages over `samples` draws of the weights; each draw computes
    its batch-norm statistics from the examples, as the network was trained on these. `leave_out` takes each example's
    pull on the network back.
    """
    start, statistics = time.perf_counter(), None
    with silence(quiet):
        if isinstance(data, Source):
            source = settle(data)
            inputs: Any = source
            if any(isinstance(part, _BatchNorm) for part in model.modules()):
                some = torch.arange(min(len(source), STATISTICS_FROM), device="cpu")
                device = next(model.parameters()).device
                pieces = torch.split(some, batch_size)
                statistics = [source.batch(part).to(device) for part in pieces]
        elif decisions is not None:
            raise InputError("decisions: batches have no ids; give the data as a Source")
        else:
            check_batches(data)
            inputs = data
        learned = as_posterior(posterior, model)
        how = {"samples": samples, "seed": seed, "batch_size": batch_size}
        noise = label_noise(model, learned, inputs, batchnorm=statistics, quiet=quiet, **how)
        classes = noise.logits.shape[1]
        if not isinstance(data, Source):
            if noise.label is None:
                raise InputError("the data has no labels to audit; give batches (inputs, labels)")
            names = tuple(class_names or map(str, range(classes)))
            given = Labels(noise.label, names)
            check_labels(given.numbers, names)
            ids = tuple(map(str, noise.index.tolist()))
            empty = torch.empty(len(given), 0, dtype=torch.float32, device="cpu")
            source = Source(empty, given, ids=ids, name="batches")
        if source.num_classes != classes:
            raise InputError(f"{source.num_classes} class names for a model of {classes} classes")
        labels = source.labels.numbers
        left_out = predict_left_out(noise.logits, noise.logit_variance, noise.averaged, labels)
        way = "leave-one-out" if leave_out else "in-sample"
        predictions = Predictions(
            labels,
            left_out if leave_out else noise.averaged,
            noise.expected,
            f"{type(model).__name__}, {samples} posterior samples, {way}",
            without_label=LeftOut.of(left_out, labels),
        )
        made = make_table(source, predictions, Columns(), embedded=False)
        decided = () if decisions is None else read_decisions(decisions)
        return add_review(made, start, decided, budget, embedded=False)


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
            f"{type(source).__name__} has no posterior: give a Posterior, or an optimizer that learns one (IVON, BSAM)"
        )
    made: Posterior = make(model)
    return made
