"""The verb `audit`: a data set → predictions of its labels → scores and findings → a ranked table.

`audit` takes a data set. Ready probabilities, an array of votes, and a network with its posterior have functions of
their own beside it.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from bayesmooth.audit.annotators import Consensus, predict_consensus
from bayesmooth.audit.decisions import read_decisions
from bayesmooth.audit.findings import find
from bayesmooth.audit.multilabel import TagAudit, TagPredictions, note_odd_tags, predict_tags, take_tag_probabilities
from bayesmooth.audit.predictions import (
    SMALLEST,
    LeftOut,
    Predictions,
    check_probabilities,
    estimate_noise_rate,
    predict_left_out,
)
from bayesmooth.audit.predictors import SAMPLE, Projection, measure_likelihood, predict_embedded, read_rows
from bayesmooth.audit.review import PLACES, describe, design, learn
from bayesmooth.audit.table import Audit
from bayesmooth.data import Columns, Labels, Source, open_source
from bayesmooth.data.arrays import read_vote_array
from bayesmooth.data.encoders import PLAIN, Encoder
from bayesmooth.data.opening import choose_inputs, embed, make_ready, settle
from bayesmooth.data.source import REMARKS, Kind
from bayesmooth.errors import InputError, did_you_mean, one_of
from bayesmooth.labelnoise import label_noise
from bayesmooth.posterior import Posterior
from bayesmooth.progress import silence

Array = NDArray[Any]
CHOOSING = 2_000  # examples on which one of several encoders is chosen
SIMILAR = 1_000  # examples whose neighbours are shown: as many as a person will look at
STATISTICS_FROM = 2_000  # examples from which batch-norm statistics are computed
WARN_ABOVE = 0.5  # share of contradicted labels above which the input is probably wrong
WEAK_WARNING = (
    "The encoder is weak: many of the contradicted labels are its own mistakes, and it cannot tell how many labels are "
    "wrong. pip install 'bayesmooth[audit]' brings a better one."
)
NOTHING_TOLD = (
    "Nothing can be told of these labels: what the examples look like predicts them no better than the sizes of the "
    "classes do. Are rows and labels in the same order, and do the embeddings fit the task?"
)
CONTRADICTED = (
    "{:.0%} of the labels are contradicted: the input is probably wrong, not the labels. Are rows and labels in the "
    "same order, the columns of probabilities in that of the classes, and do the embeddings fit the task?"
)
LEARNED_ERRORS = "Errors that are always made the same way are not counted."


def audit(
    data: Any,
    labels: Any = None,
    *,
    against: Any = None,
    predicted: Any = None,
    decisions: str | Path | None = None,
    budget: int | None = None,
    encoder: Encoder | list[Encoder] | tuple[Encoder, ...] = None,
    device: str | None = None,
    cache: str | Path | None = None,
    leave_out: bool = False,
    quiet: bool = False,
    **columns: Any,
) -> Audit:
    """Find the labels that look wrong and the examples that are ambiguous.

    Args:
        data: a folder of pictures, a table (.csv, .parquet, …), an .npz, a data frame, a data set of Hugging Face or
            torch, a `Source`, or rows of numbers, texts or pictures.
        labels: those of rows in memory: one class per row; or several, as an array N × T of 0 and 1 or a list of sets.
        against: another split, such as the test set, given as `data` is: the audit reports examples found in both.
        predicted: class probabilities by another model, which has not learned from these labels: an array N × K, or
            the columns of a table. It is one more predictor, and the only one that sees errors that are always made the
            same way.
        decisions: the file that a report exported. Labels that it decides are not asked again, the others are ranked
            anew, and if the queue was reviewed, the share of wrong labels is told with its interval.
        budget: the number of labels in the queue for the review (`Audit.review`; 100). If it is given, the report opens
            with the queue.
        encoder: of texts and pictures: the best that is installed, "plain", the name or path of a model, or a function
            from a batch to rows of numbers. Of a list, the one under which the given labels are likeliest, left out.
        device: where the encoder runs; by default a GPU if there is one.
        cache: the folder where embeddings are kept.
        leave_out: judge each label by the posterior without its own example. By default it has seen all of them: a
            variational fit memorises little, and this finds the most (docs/audit-method.md).
        quiet: no progress.
        columns: the meaning of a table's columns, by the names of `bayesmooth.data.Columns`: `label`, `clean_label`,
            `text`, `image`, `id`, `features`, `class_names`, `encoding`. `annotator` names the annotators: one row
            per vote, and `id` names the example; the majority's label is audited, the consensus is suggested.
            `tags` names columns of 0 and 1, one per tag, and `separator` is the text between the tags in one column:
            tags to add and to remove are suggested.

    >>> y = torch.arange(40) // 20
    >>> x = 9 * y[:, None] + torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> y[3] = 1
    >>> audit(x, y, quiet=True).top(1)[0]["id"]
    '3'
    """
    start, named = time.perf_counter(), read_columns(columns, predicted)
    with silence(quiet):
        opened = open_source(data, named, labels)
        if isinstance(encoder, list | tuple):
            opened, encoder = choose_encoder(opened, named, encoder, cache, device)
        source = make_ready(opened, named, encoder=encoder, cache=cache, device=device)
        if source.predicted is not None and source.input_shape == (0,):
            raise InputError(
                f"{source.name}: has predicted probabilities and no embeddings; audit them with --probabilities, in "
                "Python with audit_probabilities(path)"
            )
        other = None if against is None else open_other_split(against, source, named, encoder, cache)
        foreign = None if predicted is None else read_predicted(predicted, named.predicted, opened, source)
        kind, consensus = source.labels.kind, None
        if kind != "class" and foreign is not None:
            raise InputError("predicted: one label per example only; leave it out")
        predictions: Predictions | TagPredictions
        if kind == "votes":
            predictions, consensus, source = predict_consensus(source, find_known(source, decisions))
        elif kind == "tags":
            predictions, source = predict_tags(source, leave_out), note_odd_tags(source)
        else:
            predictions = predict_embedded(source, leave_out, foreign)
        result = make_audit(
            source, predictions, start, decisions, budget,
            embedded=True, columns=named, against=other, consensus=consensus,
        )  # fmt: skip
    if (warning := result.summary["warning"]) and (encoder is None or warning != WEAK_WARNING):
        warnings.warn(warning, stacklevel=2)
    return result


def choose_encoder(
    source: Source, columns: Columns, encoders: Sequence[Encoder], cache: Any, device: str | None
) -> tuple[Source, Encoder]:
    """Of several encoders the one with which the given labels of a sample are likeliest, and a note on all of them."""
    if not encoders or source.labels.kind == "tags":
        raise InputError(f"encoder={encoders}: several are compared where each example has one label; name one encoder")
    some = settle(choose_inputs(source, columns), learned=True)
    if some.input_shape != (0,):
        return source, None
    order = torch.randperm(len(some), generator=torch.Generator().manual_seed(0), device="cpu")
    some = some.subset(order[:CHOOSING])
    some = some.keep_classes(some.labels.counts() > 0)
    scores = [measure_likelihood(embed(some, encoder, cache, device)) for encoder in encoders]
    shown = ", ".join(f"{getattr(e, '__name__', e)} {score:.3f}" for e, score in zip(encoders, scores, strict=True))
    text = f"of several encoders the one with which the given labels are likeliest, each left out: {shown}"
    return source.note(Kind.ENCODER, text), encoders[scores.index(max(scores))]


def audit_votes(data: Any, votes: Any, **options: Any) -> Audit:
    """Find the wrong labels among those of several people: `votes` (N × A) beside rows of numbers, with gaps (−1, NaN,
    None). The label of the majority is audited, the consensus is suggested, and `Audit.consensus` has the quality of
    every annotator. For a table with one row per vote call `audit` with `annotator=`. `options` are those of `audit`.
    """
    return audit(data, read_vote_array(votes, options.get("class_names")), **options)


def audit_probabilities(
    probabilities: Any,
    labels: Any = None,
    *,
    decisions: str | Path | None = None,
    budget: int | None = None,
    quiet: bool = False,
    **columns: Any,
) -> Audit:
    """Find the labels that look wrong by the predictions of another model, which should be out of sample.

    `probabilities` is an array N × K beside `labels` (or N × T beside tags), or a file with both. `columns` are those
    of `audit`.
    """
    start, named = time.perf_counter(), read_columns(columns)
    with silence(quiet):
        source = make_ready(open_source(probabilities, named, labels, predicted=True), named, predicted=True)
        embedded = source.predicted is not None and source.input_shape != (0,)
        rows, given = read_rows(source) if source.predicted is None else source.predicted, source.labels.numbers
        predictions: Predictions | TagPredictions
        if source.labels.kind == "tags":
            predictions = take_tag_probabilities(source, rows)
        else:
            values = check_probabilities(rows, len(source), source.num_classes)
            predictions = Predictions(given, values, method="probabilities as given")
        return make_audit(source, predictions, start, decisions, budget, embedded=embedded, columns=named)


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
    """Find the labels that look wrong by a network that was trained on them.

    `posterior` is its posterior, or the optimizer that learned it (IVON, BSAM). `data` is a `Source`, or batches
    (inputs, labels) in a fixed order. The prediction averages over `samples` draws of the weights; each draw computes
    its batch-norm statistics from the examples, as the network was trained on these. `leave_out` takes each example's
    pull on the network back.
    """
    start, statistics, source = time.perf_counter(), None, data
    if not isinstance(posterior, Posterior):
        if not callable(getattr(posterior, "posterior", None)):
            raise InputError(f"{type(posterior).__name__} has no posterior: give a Posterior, or an IVON or BSAM")
        posterior = posterior.posterior(model)
    with silence(quiet):
        if isinstance(data, Source):
            data = source = settle(data)
            if any(isinstance(part, _BatchNorm) for part in model.modules()):
                some = torch.arange(min(len(source), STATISTICS_FROM), device="cpu")
                device = next(model.parameters()).device
                statistics = [source.batch(part).to(device) for part in torch.split(some, batch_size)]
        elif decisions is not None:
            raise InputError("decisions: batches have no ids; give the data as a Source")
        else:
            check_batches(data)
        noise = label_noise(
            model, posterior, data, samples=samples, seed=seed, batch_size=batch_size, batchnorm=statistics
        )
        classes = noise.logits.shape[1]
        if not isinstance(source, Source):
            if noise.label is None:
                raise InputError("the data has no labels to audit; give batches (inputs, labels)")
            given = Labels(noise.label, tuple(class_names or map(str, range(classes))))
            empty = torch.empty(len(given), 0, dtype=torch.float32, device="cpu")
            source = settle(Source(empty, given, ids=tuple(map(str, noise.index.tolist())), name="batches"))
        if source.num_classes != classes:
            raise InputError(f"{source.num_classes} class names for a model of {classes} classes")
        labels = source.labels.numbers
        left_out = predict_left_out(noise.logits, noise.logit_variance, noise.averaged, labels)
        predictions = Predictions(
            labels,
            left_out if leave_out else noise.averaged,
            noise.expected,
            f"{type(model).__name__}, {samples} posterior samples, {'leave-one-out' if leave_out else 'in-sample'}",
            without_label=LeftOut.of(left_out, labels),
        )
        return make_audit(source, predictions, start, decisions, budget, embedded=False)


def check_batches(batches: Any) -> None:
    """Refuse a loader that does not keep the order of its data: no label could be told from another."""
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return
    order = batches.batch_sampler
    if order is None or type(order) is BatchSampler:
        order = getattr(order, "sampler", batches.sampler)
    if not isinstance(order, SequentialSampler):
        raise InputError(
            f"a DataLoader with a {type(order).__name__}: its batches come in another order than the data; "
            "give DataLoader(dataset, batch_size) without shuffle or sampler"
        )


def read_columns(given: dict[str, Any], predicted: Any = None) -> Columns:
    """The columns by name; an unknown one is an error. Nothing is learned from those of another model."""
    for name in given:
        one_of("option", name, [f.name for f in fields(Columns)])
    names = [predicted] if isinstance(predicted, str) else predicted
    are_names = isinstance(names, list) and len(names) > 0 and isinstance(names[0], str)
    return Columns(**given, predicted=names if are_names else None)


def read_predicted(predicted: Any, columns: Sequence[str] | None, opened: Source, source: Source) -> Tensor:
    """Another model's probabilities (N, K) of the examples that are left and their classes, from named columns or an
    array that may have the rows without a label."""
    names = list(opened.class_names)
    if columns:
        column_names = () if opened.table is None else opened.table.names
        if unknown := [name for name in columns if name not in column_names]:
            raise InputError(f"predicted={unknown[0]!r}: no such column; {did_you_mean(unknown[0], column_names)}")
        cells = [opened.column(name) for name in columns]
        predicted = cells[0] if len(columns) == 1 else list(zip(*cells, strict=True))
        if {*columns} == {*names}:
            names = list(columns)
    try:
        rows = np.array([*predicted], np.float64)
    except ValueError:
        raise InputError(f"predicted: {predicted[0]!r} …; must be numbers from 0 to 1") from None
    if opened.table is not None and opened.rows is not None and len(opened) < len(rows) == opened.table.count:
        rows = rows[opened.rows.numpy()]
    values = check_probabilities(torch.from_numpy(rows), len(opened), len(names))
    place = {name: i for i, name in enumerate(opened.ids)}
    some = (
        values[[place[name] for name in source.ids]][:, [names.index(name) for name in source.class_names]] + SMALLEST
    )
    return some / some.sum(1, keepdim=True)


def find_known(source: Source, decisions: str | Path | None) -> dict[int, int]:
    """The classes that a review found, by position."""
    decided = () if decisions is None else read_decisions(decisions)
    at, names = source.find([row.id for row in decided]), list(source.class_names)
    named = (row for row in decided if row.id in at and row.decision in ("keep", "relabel"))
    classes = {at[row.id]: row.new_label or row.given for row in named}
    return {i: names.index(name) for i, name in classes.items() if name in names}


def open_other_split(against: Any, source: Source, columns: Columns, encoder: Any, cache: Any) -> Source:
    """The split that is only compared with, scaled as these examples are; its labels are not judged, so any will do.

    A split whose rows mean something else is an error.
    """
    other = embed(choose_inputs(open_source(against, columns), columns), encoder, cache)
    names, others = (part.reading.names if part.mean and part.reading is not None else () for part in (source, other))
    if names and others and names != others:
        only = {"what is audited": sorted({*names} - {*others}), "the other": sorted({*others} - {*names})}
        parts = [f"only {side} has {', '.join(map(repr, some))}" for side, some in only.items() if some]
        raise InputError(
            f"against: {other.name}: its columns (column=category for a category) differ: "
            f"{'; '.join(parts) or 'they stand in another order'}; name those that are alike with features (--features)"
        )
    if other.input_shape != source.input_shape:
        raise InputError(
            f"against: {other.name} has rows of shape {[*other.input_shape]}, {source.name} of "
            f"{[*source.input_shape]}; use the same encoder or columns"
        )
    if other.texts is not None and other.reading is not None and other.reading.encoder == PLAIN:
        raise InputError("against: TF-IDF encodes each split its own way; name an encoder (--encoder)")
    return replace(other, mean=source.mean, std=source.std)


def make_audit(
    source: Source,
    predictions: Predictions | TagPredictions,
    start: float,
    decisions: str | Path | None,
    budget: int | None,
    *,
    embedded: bool,
    columns: Columns | None = None,
    against: Source | None = None,
    consensus: Consensus | None = None,
) -> Audit:
    """The ranked table: findings, figures, the queue, the effect of decisions, neighbours of examples to show."""
    judged = {"class_names": source.class_names, **predictions.judge()}
    judged = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in judged.items()}
    left_out, labels = predictions.left_out, predictions.labels
    contradicted = float((left_out.best_class != labels).double().mean())
    weak = source.reading is not None and source.reading.encoder == PLAIN
    rate = estimate_noise_rate(left_out, labels) if predictions.informative and not weak else (None, None)
    warning = NOTHING_TOLD if not predictions.informative else WEAK_WARNING if weak else None
    if predictions.informative and contradicted > WARN_ABOVE:
        warning = CONTRADICTED.format(contradicted)
    summary: dict[str, Any] = {
        "source": source.name,
        "method": predictions.method,
        "warning": warning,
        "informative": predictions.informative,
        "dropped_in_training": rate[0],
        "noise_rate_at_least": rate[1],
        "noise_rate_words": LEARNED_ERRORS,
        "contradicted_out_of_sample": contradicted,
        "notes": [note.text for note in source.notes if note.kind in REMARKS],
        "columns": {} if columns is None else columns.clean_options,
        **predictions.facts,
    }
    findings = find(source, torch.from_numpy(judged["given"]), embedded=embedded, against=against)
    if embedded and findings.duplicate_of is None:
        untold = (
            "near duplicates and leaks" if "outliers" in findings.masks() else "near duplicates, outliers and leaks"
        )
        summary["notes"].append(f"{untold} are not told: equal rows occur by chance here")
    summary["notes"] += [f"{against.name}: {note.text}" for note in against.problems] if against else []
    if consensus is not None:
        summary["annotators"] = consensus.annotators(source.class_names)
        source = replace(source, meta={**source.meta, "votes": consensus.votes.texts(source.class_names)})
    kind = TagAudit if isinstance(predictions, TagPredictions) else Audit
    result = kind(examples=source, summary=summary, findings=findings, consensus=consensus, **judged)
    rows = read_rows(source) if embedded and len(source) <= SAMPLE else None
    components = None if rows is None else Projection.of(rows, PLACES).features(rows)[:, :-1].numpy()
    result.review = design(describe(result, components), budget)
    if decisions is not None:
        result = learn(result, read_decisions(decisions))
    if rows is not None and result.review is not None:
        shown = np.unique(np.concatenate([result.order[:SIMILAR], result.review.queue]))
        result.similar = result.find_similar(rows, shown)
    result.summary = {**result.summary, "seconds": round(time.perf_counter() - start, 2)}
    return result
