"""The verb `audit`: a data set → predictions of its labels → scores and findings → a ranked table.

`audit` takes a data set. Ready probabilities and an array of votes have functions of their own beside it, and so has a
network with its posterior (`network`).
"""

import inspect
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.annotators import Consensus, predict_consensus
from bayesmooth.audit.decisions import read_decisions
from bayesmooth.audit.findings import find
from bayesmooth.audit.multilabel import (
    TagAudit,
    TagPredictions,
    note_odd_tags,
    predict_tags,
    take_tag_probabilities,
)
from bayesmooth.audit.predictions import (
    SMALLEST,
    Predictions,
    check_order,
    check_probabilities,
    estimate_noise_rate,
)
from bayesmooth.audit.predictors import SAMPLE, Projection, measure_likelihood, predict_embedded
from bayesmooth.audit.review import PLACES, describe, design, learn, place
from bayesmooth.audit.table import Audit
from bayesmooth.data import Columns, Source, open_source
from bayesmooth.data.arrays import read_vote_array
from bayesmooth.data.encoders import PLAIN, Encoder, compare_with_names
from bayesmooth.data.prepare import (
    choose_inputs,
    choose_to_embed,
    embed,
    prepare,
)
from bayesmooth.errors import InputError
from bayesmooth.executors import use_cluster
from bayesmooth.progress import silence
from bayesmooth.words import did_you_mean

Array = NDArray[Any]
SIMILAR = 1_000  # examples whose neighbours are shown: as many as a person will look at
WARN_ABOVE = 0.5  # share of contradicted labels from which the input is what is wrong
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


def name_columns(function: Callable[..., Audit]) -> Callable[..., Audit]:
    """The function with the fields of `Columns` in the signature that help and editors show."""
    signature = inspect.signature(function)
    *own, last = signature.parameters.values()
    named = [
        inspect.Parameter(f.name, last.KEYWORD_ONLY, default=f.default)
        for f in fields(Columns)
        if f.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    return function


@name_columns
def audit(
    data: Any,
    labels: Any = None,
    *,
    against: Any = None,
    predicted: Any = None,
    zero_shot: bool = False,
    decisions: str | Path | None = None,
    budget: int | None = None,
    confidence: Any = None,
    encoder: Encoder | Sequence[Encoder] = None,
    device: str | None = None,
    cache: str | Path | None = None,
    leave_out: bool = False,
    cluster: str | None = None,
    quiet: bool = False,
    **columns: Any,
) -> Audit:
    """Which labels are wrong, which examples ambiguous.

    Args:
        data: a folder of pictures, a table (.csv, .parquet, …), an .npz, a data frame, a Hugging Face data set on disk,
            a `Source`, or rows of numbers.
        labels: those of rows of numbers: one class per row; or several, as an array N × T of 0 and 1 or a list of sets.
        against: another split, such as the test set, given as `data` is: the audit reports examples found in both. Of a
            Hugging Face data set with several splits, these are the others.
        predicted: what another model says of the classes, which has not learned from these labels: an array N × K, or
            the columns of a table. It is one more predictor, and the only one that sees errors that are always made the
            same way.
        zero_shot: take what a CLIP `encoder` says of pictures and names of classes as `predicted`.
        decisions: what a report exported: the rest is ranked anew by what they teach, what was decided is not asked
            again, and if the queue was reviewed, the share of wrong labels is told with its interval.
        budget: how many labels the queue for the review holds (`Audit.review`; 100). If it is given, the report opens
            with the queue.
        confidence: what somebody has in each label, 0 to 1: an LLM's own probability, or a model's; an array, or the
            name of a column. A review learns what it is worth; before one it changes nothing.
        encoder: of texts and pictures: the best that is installed, "plain", the name or path of a model, or a function
            from a batch to rows of numbers. Of a list, the one under which the given labels are likeliest, left out.
        device: where the encoder runs; by default a GPU if there is one.
        cache: the folder where embeddings are kept.
        leave_out: judge each label by the posterior without its own example. By default it has seen all of them: a
            variational fit memorises little, and this finds the most (docs/audit-method.md).
        cluster: "ray" predicts and searches in tasks of a Ray cluster. Beyond 100,000 rows a sample of them is learned
            from, and all are scored piece by piece.
        quiet: no progress.
        columns: what the columns of a table mean, by the names of `bayesmooth.data.Columns`: `label`, `clean_label`,
            `text`, `image`, `id`, `features`, `class_names`, `encoding`. `annotator` says who gave the label: one row
            per vote, and `id` names the example; the label that most gave is audited, the consensus is suggested.
            `tags` names columns of 0 and 1, one per tag, and `separator` is what stands between the tags in one column:
            tags to add and to remove are suggested.

    >>> y = torch.arange(40) // 20
    >>> x = 9 * y[:, None] + torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> y[3] = 1
    >>> audit(x, y, quiet=True).top(1)[0]["id"]
    '3'
    """
    predicted = [predicted] if isinstance(predicted, str) else predicted
    if isinstance(predicted, list) and isinstance(predicted[0], str):
        columns["predicted"] = predicted
    start, named = time.perf_counter(), read_columns(columns)
    with silence(quiet), use_cluster(cluster):
        opened = open_source(data, named, labels)
        alone = predicted is None and isinstance(encoder, str) and opened.input_shape == (0,)
        if zero_shot and not alone:
            raise InputError("zero_shot: needs pictures, a CLIP as encoder, and no predicted")
        how: dict[str, Any] = {"cache": cache, "device": device, "judge": measure_likelihood}
        source = prepare(opened, named, encoder=encoder, **how)
        if source.predicted is not None and source.input_shape == (0,):
            raise InputError(
                f"{source.name}: has predicted probabilities and no embeddings; audit them with --probabilities, in "
                "Python with audit_probabilities(path)"
            )
        sure = read_confidence(confidence, source)
        if isinstance(encoder, list | tuple) and source.reading is not None:
            encoder = source.reading.encoder
        other = find_other_split(against, opened, source, named, encoder, cache)
        foreign = None if predicted is None else read_predicted(predicted, opened, source)
        if zero_shot and isinstance(encoder, str):
            rows = source.batch(torch.arange(len(source), device="cpu"))
            foreign = compare_with_names(rows, encoder, source.class_names)
        predictions, consensus = predict(source, leave_out, foreign)
        if isinstance(predictions, TagPredictions):
            source = note_odd_tags(source)
        made = make_table(source, predictions, embedded=True, against=other)
        made = add_review(made, decisions, budget, embedded=True, confidence=sure)
        made = add_facts(made, named, start, consensus)
    if encoder is None and made.summary["warning"] == WEAK_WARNING:
        warnings.warn(WEAK_WARNING, stacklevel=2)
    return made


@name_columns
def audit_votes(data: Any, votes: Any, *, quiet: bool = False, **columns: Any) -> Audit:
    """Which labels of several people are wrong: `votes` is an array N × A beside rows of numbers, with gaps (−1, NaN,
    None). The label that most gave is audited, the consensus is suggested, and `Audit.consensus` says how good
    everybody is. A table with one row per vote goes to `audit`, with `annotator=`."""
    labels = read_vote_array(votes, read_columns(columns).class_names)
    return audit(data, labels, quiet=quiet, **columns)


@name_columns
def audit_probabilities(
    probabilities: Any,
    labels: Any = None,
    *,
    decisions: str | Path | None = None,
    budget: int | None = None,
    quiet: bool = False,
    **columns: Any,
) -> Audit:
    """Which labels are wrong by predictions that somebody's model made, which should be out of sample.

    `probabilities` is an array N × K beside `labels` (or N × T beside tags), or a file with both.
    """
    start, named = time.perf_counter(), read_columns(columns)
    with silence(quiet):
        opened = open_source(probabilities, named, labels, predicted=True)
        source = prepare(opened, named, predicted=True)
        rows = source.predicted
        embedded = rows is not None and source.input_shape != (0,)
        if rows is None:
            rows = source.batch(torch.arange(len(source), device="cpu")).flatten(1)
        predictions: Predictions | TagPredictions
        if source.labels.kind == "tags":
            predictions = take_tag_probabilities(source, rows)
        else:
            values = check_probabilities(rows, len(source), source.num_classes)
            check_order(values, source.labels.numbers, source.class_names)
            given = source.labels.numbers
            predictions = Predictions(given, values, method="probabilities as given")
        made = make_table(source, predictions, embedded=embedded)
        made = add_review(made, decisions, budget, embedded=embedded)
        return add_facts(made, named, start)


def read_columns(given: dict[str, Any]) -> Columns:
    """The columns by name; an unknown one is an error."""
    known = [f.name for f in fields(Columns)]
    for name in given:
        if name not in known:
            raise InputError(f"{name}=: no option of this audit; {did_you_mean(name, known)}")
    return Columns(**given)


def read_confidence(confidence: Any, source: Source) -> Array | None:
    """The confidence in each label, from an array or a column of the data."""
    if confidence is None:
        return None
    if isinstance(confidence, str) and confidence not in source.meta:
        raise InputError(
            f"confidence={confidence!r}: no column of the data; {did_you_mean(confidence, [*source.meta])}"
        )
    values = source.meta[confidence] if isinstance(confidence, str) else confidence
    try:
        sure = np.array([float(value) for value in values])
    except ValueError:
        raise InputError(f"confidence: {values[0]!r} …; must be numbers from 0 to 1") from None
    if len(sure) != len(source) or not ((sure >= 0) & (sure <= 1)).all():
        raise InputError(f"confidence: must be {len(source)} numbers from 0 to 1, one per label")
    return sure


def find_other_split(
    against: Any,
    opened: Source,
    source: Source,
    columns: Columns,
    encoder: Any,
    cache: str | Path | None,
) -> Source | None:
    """What the user names, or the other splits of the same data set; those need not be comparable."""
    own = opened.other_splits() if against is None else None
    try:
        named = own if against is None else against
        return None if named is None else open_other_split(named, source, columns, encoder, cache)
    except InputError as error:
        if own is None:
            raise
        warnings.warn(f"leaks into the other splits are not looked for: {error}", stacklevel=3)
        return None


def open_other_split(
    against: Any, source: Source, columns: Columns, encoder: Any, cache: str | Path | None
) -> Source:
    """The split that is only compared with, scaled as these examples are: its labels are not judged, so any will do."""
    opened = choose_inputs(open_source(against, columns), columns, False, cache)
    other = embed(opened, choose_to_embed(opened, columns), encoder, cache)
    own, theirs = (
        each.reading.names if each.mean and each.reading is not None else ()
        for each in (source, other)
    )
    if own and theirs and own != theirs:
        sides = (("what is audited", own, theirs), ("the other", theirs, own))
        only = [(side, [c for c in these if c not in rest]) for side, these, rest in sides]
        parts = [f"only {side} has {', '.join(map(repr, some))}" for side, some in only if some]
        raise InputError(
            f"against: {other.name}: its columns (column=category for a category) differ: "
            f"{'; '.join(parts) or 'they stand in another order'}; name those that are alike with features (--features)"
        )
    if other.input_shape != source.input_shape:
        raise InputError(
            f"against: {other.name} has rows of shape {list(other.input_shape)}, {source.name} of "
            f"{list(source.input_shape)}; both must come from the same encoder or have the same columns"
        )
    if other.texts is not None and other.reading is not None and other.reading.encoder == PLAIN:
        raise InputError(
            f"against: {other.name} and {source.name} are texts encoded by TF-IDF, each its own way; name an encoder "
            "(--encoder), or pip install 'bayesmooth[audit]'"
        )
    return replace(other, mean=source.mean, std=source.std)


def read_predicted(predicted: Any, opened: Source, source: Source) -> Tensor:
    """Another model's probabilities (N, K) of the examples that are left and their classes."""
    names = list(opened.class_names)
    if isinstance(predicted, list) and isinstance(predicted[0], str):
        values = np.array([opened.column(name) for name in predicted], object).T
        if len(predicted) == 1:  # a column of lists
            values = np.array([list(row) for row in opened.column(predicted[0])])
        elif {*predicted} == {*names}:
            values = values[:, [predicted.index(name) for name in names]]
        predicted = values.astype(np.float32)
    elif opened.rows is not None and len(predicted) == len(opened.table or ()):
        predicted = np.asarray(predicted)[opened.rows.numpy()]  # some rows had no label
    rows = check_probabilities(torch.as_tensor(np.asarray(predicted)), len(opened), len(names))
    place = {name: i for i, name in enumerate(opened.ids)}
    some = rows[[place[name] for name in source.ids]]
    some = some[:, [names.index(name) for name in source.class_names]] + SMALLEST
    return some / some.sum(1, keepdim=True)


def predict(
    source: Source, leave_out: bool, predicted: Tensor | None = None
) -> tuple[Predictions | TagPredictions, Consensus | None]:
    """What is predicted of the labels, in the way of their kind."""
    if predicted is not None and source.labels.kind != "class":
        raise InputError("predicted: one label per example only; leave it out")
    if source.labels.kind == "votes":
        return predict_consensus(source)
    if source.labels.kind == "tags":
        return predict_tags(source, leave_out), None
    return predict_embedded(source, leave_out, predicted), None


def make_table(
    source: Source,
    predictions: Predictions | TagPredictions,
    *,
    embedded: bool,
    against: Source | None = None,
) -> Audit:
    """The ranked table, with all findings and figures."""
    columns = {"class_names": source.class_names, **predictions.judge()}
    columns = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in columns.items()}
    left_out, labels = predictions.pool()
    contradicted = float((left_out.best_class != labels).double().mean())
    weak = source.reading is not None and source.reading.encoder == PLAIN
    rate = estimate_noise_rate(left_out, labels) if predictions.informative and not weak else None
    warning = NOTHING_TOLD if not predictions.informative else WEAK_WARNING if weak else None
    if predictions.informative and contradicted > WARN_ABOVE:
        warning = CONTRADICTED.format(contradicted)
    summary: dict[str, Any] = {
        "source": source.name,
        "method": predictions.method,
        "warning": warning,
        "informative": predictions.informative,
        "dropped_in_training": rate and rate.estimate,
        "noise_rate_at_least": rate and rate.at_least,
        "noise_rate_words": LEARNED_ERRORS,
        "contradicted_out_of_sample": contradicted,
        "notes": [note.text for note in source.notes if not note.kind.is_problem],
        **predictions.facts,
    }
    found = find(source, torch.from_numpy(columns["given"]), embedded=embedded, against=against)
    kind = TagAudit if isinstance(predictions, TagPredictions) else Audit
    return kind(examples=source, summary=summary, findings=found, **columns)


def add_review(
    made: Audit,
    decisions: str | Path | None,
    budget: int | None,
    *,
    embedded: bool,
    confidence: Array | None = None,
) -> Audit:
    """The table with its queue, what decisions teach, and the neighbours of what will be looked at."""
    source, rows = made.examples, None
    if embedded and len(source) <= SAMPLE:
        rows = source.batch(torch.arange(len(source), device="cpu")).flatten(1)
    places = None if rows is None else place(Projection.of(rows, PLACES).features(rows).numpy())
    traits = describe(made, places, confidence)
    made = replace(made, review=design(traits, budget))
    if decisions is not None:
        made = learn(made, read_decisions(decisions))
    if rows is None or made.review is None:
        return made
    assert made.review is not None  # as it was designed above
    shown = np.concatenate([made.order[:SIMILAR], made.review.queue])
    return replace(made, similar=made.find_similar(rows, np.unique(shown)))


def add_facts(
    made: Audit, columns: Columns, start: float, consensus: Consensus | None = None
) -> Audit:
    """The table with everybody's votes, its columns and its seconds."""
    seconds = round(time.perf_counter() - start, 2)
    summary = dict(made.summary, columns=columns.clean_options, seconds=seconds)
    if consensus is not None:
        votes = {"votes": consensus.votes.texts(made.class_names)}
        shown = replace(made.examples, meta={**made.examples.meta, **votes})
        made = replace(made, consensus=consensus, examples=shown)
        summary["annotators"] = consensus.describe(made.class_names)
    return replace(made, summary=summary)
