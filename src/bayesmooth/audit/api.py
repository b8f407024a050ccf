"""The verb `audit`: whatever you have → predictions of its labels → scores → a ranked table."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesmooth.audit.annotators import Consensus, predict_consensus
from bayesmooth.audit.decisions import apply_decisions, read_decisions
from bayesmooth.audit.findings import Findings, check_other_split, find
from bayesmooth.audit.looks import inspect_pictures
from bayesmooth.audit.multilabel import (
    TagPredictions,
    predict_tags,
)
from bayesmooth.audit.predictions import (
    AMBIGUOUS_FROM,
    Predictions,
    assign_quadrants,
    estimate_noise_rate,
    warn_if_mostly_contradicted,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.similar import SHOWN
from bayesmooth.audit.subjects import Subject, open_other_split, open_subject
from bayesmooth.audit.table import Audit
from bayesmooth.data import Columns, Source
from bayesmooth.data.encoder_models import PLAIN
from bayesmooth.data.encoders import Encoder
from bayesmooth.data.opening import can_open
from bayesmooth.data.prepare import check_labels
from bayesmooth.errors import InputError

Array = NDArray[Any]
WEAK_WARNING = (
    "The encoder is weak: many of the contradicted labels are its own mistakes, and it cannot tell how many labels are "
    "wrong. pip install 'bayesmooth[audit]' brings a better one."
)
NOTHING_TOLD = (
    "Nothing can be told of these labels: what the examples look like predicts them no better than the sizes of the "
    "classes do. Are rows and labels in the same order, and do the embeddings fit the task?"
)
LEARNED_ERRORS = "Errors that are always made the same way are not counted."


def audit(
    source: Any = None,
    posterior: Any = None,
    data: Any = None,
    *,
    embeddings: Any = None,
    probabilities: Any = None,
    labels: Any = None,
    votes: Any = None,
    against: Any = None,
    decisions: str | Path | None = None,
    # what the columns of a table mean
    label: str | None = None,
    clean_label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    annotator: str | None = None,
    separator: str | None = None,
    features: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    # how texts and pictures are embedded
    encoding: str | None = None,
    encoder: Encoder = None,
    cache: str | Path | None = None,
    # how labels are judged
    out_of_sample: str = "none",
    folds: int = 5,
    samples: int = 16,
    seed: int = 0,
    batch_size: int = 256,
    cluster: str | None = None,
    quiet: bool = False,
) -> Audit:
    """Which labels are wrong, which examples ambiguous.

    Give one of three:

    - a network, its posterior (or the optimizer that learned it) and the data: a `Source`, or batches in fixed order
    - a data set: a folder of pictures, a .npz, .csv or .parquet, a data frame, a Hugging Face data set on disk, a
      `Source`, or `embeddings=` and `labels=`
    - `probabilities=` (out of sample) and `labels=`, or a file with both

    In a table `label`, `clean_label`, `text`, `image`, `id` and `features` name columns. Texts and pictures are
    embedded by `encoder`: the best that is installed, "plain", the name or path of a model, or a function from a
    batch to rows of numbers. `cache` is the folder where embeddings are kept.

    Several annotators: `annotator` names their column in a table with one row per vote, in which `id` names the
    example. Or `votes` is an array N × A beside `embeddings`, with gaps (−1, NaN, None). The label that most gave is
    audited, the consensus is suggested, and `Audit.consensus` says how good everybody is.

    Several labels per example: `labels` names the columns of 0 and 1 of a table, one per tag. Or `separator` is what
    stands between the tags in its column `label`. Or `labels` is an array N × T of 0 and 1, or a list of sets, beside
    `embeddings` (or `probabilities` N × T). Every tag is judged, and tags to add and to remove are suggested.

    `against` is another split, such as the test set, given as `source` is: the audit reports examples found in both.

    `decisions` is what a report exported: its corrections are learned from, what was decided is not asked again, and
    the rest is ranked anew.

    `out_of_sample` says how an example is kept from supporting its own label: `none` (a variational fit
    memorises little, and this finds the most; see docs/audit-method.md), `loo` (leave-one-out from the posterior, no
    refit), or `folds` (refits, embeddings only). `cluster="ray"` scores embeddings in
    tasks of a Ray cluster. Beyond 100,000 rows a sample of them is learned from, and all are scored piece by piece.

    >>> import torch
    >>> y = torch.arange(40) // 20
    >>> x = 9 * y[:, None] + torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> y[3] = 1
    >>> audit(embeddings=x, labels=y, quiet=True).top(1)[0]["id"]
    '3'
    """
    given = locals()
    settings = Settings(**{f.name: given[f.name] for f in fields(Settings)})
    columns = Columns(**{f.name: given[f.name] for f in fields(Columns) if f.name in given})
    if can_open(source) and labels is not None and not isinstance(labels, str | Path):
        columns, labels = replace(columns, tags=tuple(map(str, labels))), None
    start = time.perf_counter()
    subject = open_subject(
        source,
        posterior,
        data,
        embeddings=embeddings,
        probabilities=probabilities,
        labels=labels,
        votes=votes,
        columns=columns,
        settings=settings,
    )
    decided = None
    if decisions is not None:
        subject, decided = _use_decisions(subject, decisions)
    other = None
    if against is not None:
        other = open_other_split(against, columns, settings)
        other = check_other_split(other, subject.source)
    predictions, consensus = _predict(subject, settings)
    rows, examples = subject.rows(), subject.source
    if examples is not None:
        names, problems = examples.class_names, examples.problems
    else:
        assert isinstance(predictions, Predictions)
        classes = predictions.probabilities.shape[1]
        names, problems = tuple(class_names or map(str, range(classes))), ()
        check_labels(predictions.labels, names)
    colours, odd = inspect_pictures(examples, quiet)
    found = find(predictions.labels, len(names), rows, other, quiet, cluster, colours)
    if not predictions.are_classes:  # no set of tags is rare
        found = replace(found, rare_class=np.zeros(len(predictions.labels), bool))
    found = replace(found, problems=(*problems, *odd))
    seconds = time.perf_counter() - start
    made = _build(predictions, names, examples, seconds, found)
    if encoder is None and made.summary["warning"] == WEAK_WARNING:
        warnings.warn(WEAK_WARNING, stacklevel=2)
    made = replace(made, summary={**made.summary, "columns": columns.clean_options})
    if consensus is not None:
        made = _add_consensus(made, consensus)
    if decided is not None:
        made = _rank_last(made, decided)
    return _add_similar(made, rows) if isinstance(rows, Tensor) else made


def _predict(
    subject: Subject, settings: Settings
) -> tuple[Predictions | TagPredictions, Consensus | None]:
    """What is predicted of the labels, in the way of their kind."""
    kind = "class" if subject.source is None else subject.source.labels.kind
    if kind == "votes":
        return predict_consensus(subject, settings)
    if kind == "tags":
        return predict_tags(subject, settings), None
    return subject.predict(settings), None


def _use_decisions(subject: Subject, path: str | Path) -> tuple[Subject, Array]:
    """The subject with its corrected labels, and which of its examples were decided on; `skip` is no decision."""
    source = subject.source
    if source is None:
        raise InputError("decisions: batches have no ids; give the data as a Source")
    decisions = read_decisions(path)
    corrected = apply_decisions(source, decisions)
    found = source.find([row.id for row in decisions if row.decision != "skip"])
    decided = np.zeros(len(source), bool)
    decided[list(found.values())] = True
    return replace(subject, source=replace(source, labels=corrected.labels)), decided


def _build(
    predictions: Predictions | TagPredictions,
    names: tuple[str, ...],
    examples: Source | None,
    seconds: float,
    found: Findings,
) -> Audit:
    """The ranked table."""
    columns = predictions.judge(names)
    found = replace(found, problems=(*found.problems, *predictions.problems))
    against = columns["suggested"] != predictions.labels
    columns |= {
        "given": predictions.labels,
        "quadrant": assign_quadrants(against, columns["ambiguity"]),
        "clean": None if examples is None else examples.clean,
    }
    for name, column in columns.items():
        columns[name] = column.numpy() if isinstance(column, Tensor) else column
    ids = predictions.name_rows() if examples is None else examples.ids
    return Audit(
        ids=ids,
        ambiguity_threshold=AMBIGUOUS_FROM,
        summary=_summarise(predictions, examples, seconds),
        examples=examples,
        findings=found,
        **columns,
    )


def _summarise(
    predictions: Predictions | TagPredictions,
    examples: Source | None,
    seconds: float,
) -> dict[str, Any]:
    """The figures and notes of the whole audit."""
    left_out, labels = predictions.pool()
    contradicted = float((left_out.best_class != labels).double().mean())
    name, notes = "batches", list[str]()
    if examples is not None:
        name = examples.name
        notes = [note.text for note in examples.notes if not note.kind.is_problem]
    weak = (
        examples is not None and examples.reading is not None and examples.reading.encoder == PLAIN
    )
    told = predictions.informative and not weak
    rate = estimate_noise_rate(left_out, labels) if told else None
    warning = None if predictions.informative else NOTHING_TOLD
    warning = (
        warning or warn_if_mostly_contradicted(contradicted) or (WEAK_WARNING if weak else None)
    )
    return {
        "source": name,
        "method": predictions.method,
        "warning": warning,
        "informative": predictions.informative,
        "noise_rate": rate and rate.estimate,
        "noise_rate_at_least": rate and rate.at_least,
        "noise_rate_words": LEARNED_ERRORS,
        "contradicted_out_of_sample": contradicted,
        "seconds": round(seconds, 2),
        "notes": notes,
        **predictions.facts,
    }


def _add_consensus(made: Audit, consensus: Consensus) -> Audit:
    """The table with everybody's votes."""
    assert made.examples is not None  # what people voted on has ids
    names = made.class_names
    votes = {"votes": consensus.votes.texts(names)}
    shown = replace(made.examples, meta={**made.examples.meta, **votes})
    summary = {**made.summary, "annotators": consensus.describe(names)}
    return replace(made, consensus=consensus, examples=shown, summary=summary)


def _rank_last(made: Audit, decided: Array) -> Audit:
    """The table with the decided labels at the end: none of them is contradicted any more."""
    lowest = min(float(made.disagreement.min()), made.disagreement_threshold)
    unclear = (made.ambiguity >= made.ambiguity_threshold).astype(made.quadrant.dtype)
    own = made.given_probability
    note = f"{int(decided.sum()):,} labels are decided and not asked again"
    return replace(
        made,
        disagreement=np.where(decided, lowest, made.disagreement),
        suggested=np.where(decided, made.given, made.suggested),
        suggested_probability=np.where(decided, own, made.suggested_probability),
        quadrant=np.where(decided, unclear, made.quadrant),  # clear or ambiguous
        summary={**made.summary, "notes": [*made.summary["notes"], note]},
    )


def _add_similar(made: Audit, rows: Tensor) -> Audit:
    """The table with the nearest neighbours of the most suspicious examples."""
    return replace(made, similar=made.kind.find_similar(made, rows, made.order[:SHOWN]))
