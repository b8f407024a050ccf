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
from bayesmooth.audit.decisions import Decision, read_decisions
from bayesmooth.audit.findings import find
from bayesmooth.audit.multilabel import TagAudit, TagPredictions, note_odd_tags, predict_tags, take_tag_probabilities
from bayesmooth.audit.predictions import SMALLEST, Predictions, check_order, check_probabilities, estimate_noise_rate
from bayesmooth.audit.predictors import SAMPLE, Projection, measure_likelihood, predict_embedded
from bayesmooth.audit.review import FROM_TOP, PLACES, describe, design, learn
from bayesmooth.audit.table import Audit
from bayesmooth.data import Columns, Source, open_source
from bayesmooth.data.arrays import read_vote_array
from bayesmooth.data.encoders import PLAIN, Encoder, compare_with_names
from bayesmooth.data.features import choose_inputs
from bayesmooth.data.prepare import choose_to_embed, embed, prepare
from bayesmooth.data.source import Kind
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
    from_top: float = FROM_TOP,
    confidence: Any = None,
    machines: Sequence[str] = (),
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
        from_top: the share of the queue that are the most suspicious labels; the others are drawn from everywhere. With
            1 nothing is drawn, and no share of wrong labels follows.
        confidence: what somebody has in each label, 0 to 1: an LLM's own probability, or a model's; an array, or the
            name of a column. A review learns what it is worth; before one it changes nothing.
        machines: the annotators that are models: the report lists where their majority and people's differ.
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
    start, named = time.perf_counter(), read_columns(columns, predicted, confidence)
    with silence(quiet), use_cluster(cluster):
        opened = open_source(data, named, labels)
        how: dict[str, Any] = {"cache": cache, "device": device, "judge": measure_likelihood}
        source = prepare(opened, named, encoder=encoder, **how)
        if source.predicted is not None and source.input_shape == (0,):
            raise InputError(
                f"{source.name}: has predicted probabilities and no embeddings; audit them with --probabilities, in "
                "Python with audit_probabilities(path)"
            )
        if isinstance(encoder, list | tuple) and source.reading is not None:
            encoder = source.reading.encoder
        other = find_other_split(against, opened, source, named, encoder, cache)
        sure = None if confidence is None else read_confidence(confidence, opened, source)
        decided = () if decisions is None else read_decisions(decisions)
        foreign = None if predicted is None else read_predicted(predicted, opened, source)
        if zero_shot:
            if foreign is not None or not isinstance(encoder, str) or opened.input_shape != (0,):
                raise InputError("zero_shot: needs pictures, a CLIP as encoder, and no predicted")
            rows = source.batch(torch.arange(len(source), device="cpu"))
            foreign = compare_with_names(rows, encoder, source.class_names)
        kind, consensus = source.labels.kind, None
        if kind != "class" and foreign is not None:
            raise InputError("predicted: one label per example only; leave it out")
        if kind != "votes" and machines:
            raise InputError("machines: names of annotators; say with annotator who gave each label")
        predictions: Predictions | TagPredictions
        if kind == "votes":
            known = find_known(source, decided)
            predictions, consensus, said = predict_consensus(source, known, machines)
            for text in said:
                source = source.note(Kind.LEARNED, text)
        elif kind == "tags":
            predictions, source = predict_tags(source, leave_out), note_odd_tags(source)
        else:
            predictions = predict_embedded(source, leave_out, foreign)
        made = make_table(source, predictions, named, embedded=True, against=other)
        if consensus is not None:
            made = add_consensus(made, consensus)
        made = add_review(made, start, decided, budget, from_top, embedded=True, confidence=sure)
    if encoder is None and made.summary["warning"] == WEAK_WARNING:
        warnings.warn(WEAK_WARNING, stacklevel=2)
    return made


@name_columns
def audit_votes(data: Any, votes: Any, *, machines: Sequence[str] = (), quiet: bool = False, **columns: Any) -> Audit:
    """Which labels of several people are wrong: `votes` is an array N × A beside rows of numbers, with gaps (−1, NaN,
    None). The label that most gave is audited, the consensus is suggested, and `Audit.consensus` says how good
    everybody is; `machines` names those who are models. A table with one row per vote goes to `audit`, `annotator=`."""
    labels = read_vote_array(votes, read_columns(columns).class_names)
    return audit(data, labels, machines=machines, quiet=quiet, **columns)


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
        made = make_table(source, predictions, named, embedded=embedded)
        decided = () if decisions is None else read_decisions(decisions)
        return add_review(made, start, decided, budget, embedded=embedded)


def read_columns(given: dict[str, Any], predicted: Any = None, confidence: Any = None) -> Columns:
    """The columns by name; an unknown one is an error. Nothing is learned from those of another model."""
    known = [f.name for f in fields(Columns)]
    for name in given:
        if name not in known:
            raise InputError(f"{name}=: no option of this audit; {did_you_mean(name, known)}")
    names = [*(list_names(predicted) or ()), *(list_names(confidence) or ())]
    return Columns(**given, predicted=names or None)


def list_names(values: Any) -> list[str] | None:
    """The names of columns, where these are names."""
    names = [values] if isinstance(values, str) else values
    return names if isinstance(names, list) and names and isinstance(names[0], str) else None


def read_beside(what: str, values: Any, opened: Source) -> Array:
    """What stands beside the labels: the named columns (N, …), or an array that may have the rows without a label."""
    if (names := list_names(values)) is not None:
        for name in names:
            if opened.table is None or name not in opened.table.names:
                known = () if opened.table is None else opened.table.names
                raise InputError(f"{what}={name!r}: no such column; {did_you_mean(name, known)}")
        cells = [opened.column(name) for name in names]
        if len(names) == 1 and not np.isscalar(cells[0][0]):  # a column of lists
            return np.array([list(row) for row in cells[0]])
        return np.array(cells, object).T
    found = np.asarray(values)
    if opened.rows is not None and len(found) == len(opened.table or ()):
        found = found[opened.rows.numpy()]
    return found


def find_places(opened: Source, source: Source) -> list[int]:
    """Where the examples that are left stood."""
    place = {name: i for i, name in enumerate(opened.ids)}
    return [place[name] for name in source.ids]


def read_confidence(confidence: Any, opened: Source, source: Source) -> Array:
    """The confidence in each label that is left."""
    values = read_beside("confidence", confidence, opened).ravel()
    try:
        sure = values.astype(np.float64)
    except ValueError:
        raise InputError(f"confidence: {values[0]!r} …; must be numbers from 0 to 1") from None
    if len(sure) != len(opened) or not ((sure >= 0) & (sure <= 1)).all():
        raise InputError(f"confidence: must be {len(opened)} numbers from 0 to 1, one per label")
    return sure[find_places(opened, source)]


def read_predicted(predicted: Any, opened: Source, source: Source) -> Tensor:
    """Another model's probabilities (N, K) of the examples that are left and their classes."""
    names, values = list(opened.class_names), read_beside("predicted", predicted, opened)
    columns = list_names(predicted) or []
    if {*columns} == {*names}:
        values = values[:, [columns.index(name) for name in names]]
    rows = torch.from_numpy(np.asarray(values, np.float32))
    rows = check_probabilities(rows, len(opened), len(names))[find_places(opened, source)]
    some = rows[:, [names.index(name) for name in source.class_names]] + SMALLEST
    return some / some.sum(1, keepdim=True)


def find_known(source: Source, decided: Sequence[Decision]) -> dict[int, int]:
    """The classes that a review found, by position."""
    at, names = source.find([row.id for row in decided]), list(source.class_names)
    found = {at[row.id]: row.new_label or row.given for row in decided if row.id in at and row.names_label}
    return {i: names.index(name) for i, name in found.items() if name in names}


def find_other_split(
    against: Any, opened: Source, source: Source, columns: Columns, encoder: Any, cache: Any
) -> Source | None:
    """The split that is only compared with: what the user names, or the other splits of the same data set, which need
    not be comparable. It is scaled as these examples are; its labels are not judged, so any will do."""
    named = opened.other_splits() if against is None else against
    if named is None:
        return None
    try:
        other = choose_inputs(open_source(named, columns), columns)
        other = embed(other, choose_to_embed(other, columns), encoder, cache)
        check_comparable(source, other)
    except InputError as error:
        if against is not None:
            raise
        warnings.warn(f"leaks into the other splits are not looked for: {error}", stacklevel=3)
        return None
    return replace(other, mean=source.mean, std=source.std)


def check_comparable(source: Source, other: Source) -> None:
    """Refuse a split whose rows mean something else."""
    own, theirs = (each.reading.names if each.mean and each.reading is not None else () for each in (source, other))
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


def make_table(
    source: Source,
    predictions: Predictions | TagPredictions,
    columns: Columns,
    *,
    embedded: bool,
    against: Source | None = None,
) -> Audit:
    """The ranked table, with all findings and figures."""
    judged = {"class_names": source.class_names, **predictions.judge()}
    judged = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in judged.items()}
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
        "columns": columns.clean_options,
        **predictions.facts,
    }
    found = find(source, torch.from_numpy(judged["given"]), embedded=embedded, against=against)
    kind = TagAudit if isinstance(predictions, TagPredictions) else Audit
    return kind(examples=source, summary=summary, findings=found, **judged)


def add_consensus(made: Audit, consensus: Consensus) -> Audit:
    """The table with everybody's votes beside each example."""
    votes = {"votes": consensus.votes.texts(made.class_names)}
    shown = replace(made.examples, meta={**made.examples.meta, **votes})
    summary = {**made.summary, **consensus.summarise(made.class_names)}
    return replace(made, consensus=consensus, examples=shown, summary=summary)


def add_review(
    made: Audit,
    start: float,
    decided: Sequence[Decision] = (),
    budget: int | None = None,
    from_top: float = FROM_TOP,
    *,
    embedded: bool,
    confidence: Array | None = None,
) -> Audit:
    """The table with its queue, what decisions teach, and the neighbours of what will be looked at."""
    source, rows, components = made.examples, None, None
    if embedded and len(source) <= SAMPLE:
        rows = source.batch(torch.arange(len(source), device="cpu")).flatten(1)
        components = Projection.of(rows, PLACES).features(rows)[:, :-1].numpy()
    review = design(describe(made, components, confidence), budget, from_top=from_top)
    made = learn(replace(made, review=review), decided) if decided else replace(made, review=review)
    if rows is not None:
        shown = np.unique(np.concatenate([made.order[:SIMILAR], review.queue]))
        made = replace(made, similar=made.find_similar(rows, shown))
    seconds = round(time.perf_counter() - start, 2)
    return replace(made, summary={**made.summary, "seconds": seconds})
