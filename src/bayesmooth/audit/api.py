"""The verb `audit`: whatever you have → predictions of its labels → scores → a ranked table."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesmooth.audit.annotators import Consensus, predict_consensus
from bayesmooth.audit.checks import check_labels
from bayesmooth.audit.encoders import WEAK
from bayesmooth.audit.findings import Findings, check_other_split, find
from bayesmooth.audit.multilabel import (
    TagPredictions,
    find_similar_pairs,
    predict_tags,
    suggest_sets,
)
from bayesmooth.audit.predictions import Predictions
from bayesmooth.audit.rates import NoiseRate, estimate_noise_rate
from bayesmooth.audit.rounds import rank_last, use_decisions
from bayesmooth.audit.scores import (
    AMBIGUOUS_FROM,
    SCORES,
    ambiguity,
    assign_quadrants,
    find_threshold,
    suggest,
    warn_if_mostly_contradicted,
)
from bayesmooth.audit.settings import Encoder, Settings
from bayesmooth.audit.similar import SHOWN, find_similar
from bayesmooth.audit.sources import Subject, open_other_split, open_source
from bayesmooth.audit.table import Audit
from bayesmooth.audit.tags import read_tag_labels
from bayesmooth.audit.votes import Ballots, from_columns, read_ballots
from bayesmooth.data import Examples
from bayesmooth.errors import InputError

WEAK_WARNING = (
    "The encoder is weak: many of the contradicted labels are its own mistakes, and it cannot tell how many labels are "
    "wrong. pip install 'bayesmooth[audit]' brings a better one."
)


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
    score: str = "root_margin",
    samples: int = 16,
    seed: int = 0,
    batch_size: int = 256,
    cluster: str | None = None,
    quiet: bool = False,
) -> Audit:
    """Which labels are wrong, which examples ambiguous.

    Give one of: a network, its posterior (or the optimizer that learned it) and the data (an `Examples` or a
    loader in a fixed order); a data set (a folder of pictures, a .npz, .csv or .parquet, a data frame, a Hugging Face
    data set on disk, an `Examples`, or `embeddings=` and `labels=`); `probabilities=` (out of sample) and `labels=`, or
    a file with both.

    In a table `label`, `clean_label`, `text`, `image`, `id` and `features` name columns. Texts and pictures are
    embedded by `encoder`: the best that is installed, "plain", the name or path of a model, or a function from a
    batch to rows of numbers; `cache` is the folder where embeddings are kept.

    Several annotators: `annotator` names their column in a table with one row per vote, in which `id` names the
    example; or `votes` is an array N × A beside `embeddings`, with gaps (−1, NaN, None). What most said is audited, the
    consensus is suggested, and `Audit.consensus` says how good everybody is.

    Several labels per example: `labels` names the columns of 0 and 1 of a table, one per tag; or `separator` is what
    stands between the tags in its column `label`; or `labels` is an array N × T of 0 and 1, or a list of sets, beside
    `embeddings` (or `probabilities` N × T). Every tag is judged, and tags to add and to remove are suggested.

    `against` is another split, such as the test set, given as `source` is: the audit reports examples found in both.

    `decisions` is what a report exported: its corrections are learned from, what was decided is not asked again, and
    the rest is ranked anew.

    `out_of_sample` says how an example is kept from supporting its own label: `none` (a variational fit
    memorises little, and this finds the most; see docs/audit.md), `loo` (leave-one-out from the posterior, no
    refit), or `folds` (refits, embeddings only). `score` is one of `SCORES`. `cluster="ray"` scores embeddings in
    tasks of a Ray cluster. Beyond 100,000 rows a sample of them is learned from, and all are scored piece by piece.

    >>> x = torch.cat([torch.randn(20, 2), torch.randn(20, 2) + 9])
    >>> y = torch.arange(40) // 20
    >>> y[3] = 1
    >>> audit(embeddings=x, labels=y, quiet=True).top(1)[0]["id"]
    '3'
    """
    given = locals()
    settings = Settings(**{f.name: given[f.name] for f in fields(Settings) if f.name in given})
    labels, settings = read_tag_labels(source, labels, settings)
    if votes is not None and settings.tagged:
        raise InputError("votes with several labels per example: audit one tag at a time")
    start = time.perf_counter()
    ballots = None
    if annotator is not None:
        source, ballots = read_ballots(source, settings)
    elif votes is not None:
        labels, ballots = from_columns(votes, class_names)
    subject = open_source(
        source,
        posterior,
        data,
        embeddings=embeddings,
        probabilities=probabilities,
        labels=labels,
        settings=settings,
    )
    decided = None
    if decisions is not None:
        subject, decided = use_decisions(subject, decisions, settings)
    other = None
    if against is not None:
        other = check_other_split(open_other_split(against, settings), subject.examples)
    predictions, consensus = _predict(subject, ballots, settings)
    if subject.examples is not None:
        names = subject.examples.class_names
    else:
        assert isinstance(predictions, Predictions)
        names = tuple(class_names or map(str, range(predictions.probabilities.shape[1])))
        check_labels(predictions.labels, names)
    rows, neighbours = subject.rows(), predictions.neighbours
    found = find(predictions.labels, len(names), rows, other, neighbours, quiet, cluster)
    if subject.examples is not None:
        found = replace(found, problems=subject.examples.problems)
    seconds = time.perf_counter() - start
    made = _build(predictions, names, subject.examples, score, seconds, found)
    if encoder is None and made.summary["warning"] == WEAK_WARNING:
        warnings.warn(WEAK_WARNING, stacklevel=2)
    if consensus is not None:
        made = _add_consensus(made, consensus)
    if decided is not None:
        made = rank_last(made, decided)
    return _add_similar(made, rows) if isinstance(rows, torch.Tensor) else made


def _predict(
    subject: Subject, ballots: Ballots | None, settings: Settings
) -> tuple[Predictions | TagPredictions, Consensus | None]:
    """What the data say of each label: one class, the consensus of several people, or tags."""
    if ballots is not None:
        return predict_consensus(subject, ballots, settings)
    if settings.tagged:
        return predict_tags(subject, settings), None
    return subject.predict(settings), None


def _build(
    predictions: Predictions | TagPredictions,
    names: tuple[str, ...],
    examples: Examples | None,
    score: str,
    seconds: float,
    found: Findings,
) -> Audit:
    """The ranked table of classes or of tags; sets of tags are no classes, so none of them is rare."""
    if isinstance(predictions, Predictions):
        return build_table(predictions, names, examples, score, seconds, found)
    problems = (*found.problems, *predictions.problems)
    found = replace(found, problems=problems, rare_class=np.zeros_like(found.rare_class))
    return build_tag_table(predictions, names, examples, score, seconds, found)


def _add_consensus(made: Audit, consensus: Consensus) -> Audit:
    """The table with everybody's votes."""
    if made.examples is None:
        return made
    names = made.class_names
    votes = {"votes": consensus.votes.texts(names)}
    shown = replace(made.examples, meta={**made.examples.meta, **votes})
    summary = {**made.summary, "annotators": consensus.describe(names)}
    return replace(made, consensus=consensus, examples=shown, summary=summary)


def _add_similar(made: Audit, rows: torch.Tensor) -> Audit:
    """The table with the nearest neighbours of the most suspicious examples."""
    worst = made.order[:SHOWN]
    if made.tags is not None:
        return replace(made, similar=find_similar_pairs(rows, made.tags, worst))
    return replace(made, similar=find_similar(rows, made.given, made.suggested, worst))


def build_table(
    predictions: Predictions,
    class_names: tuple[str, ...],
    examples: Examples | None,
    score: str,
    seconds: float,
    findings: Findings | None = None,
) -> Audit:
    """The predictions as a ranked table."""
    if predictions.probabilities.shape[1] != len(class_names):
        raise InputError(
            f"{len(class_names)} class names for a model of {predictions.probabilities.shape[1]} classes"
        )
    disagreement, unclear = SCORES[score](predictions), ambiguity(predictions)
    cut = find_threshold(score, disagreement, predictions)
    suggested = suggest(disagreement, cut, predictions)
    best = predictions.probabilities.gather(1, suggested[:, None]).squeeze(1)
    own = predictions.probabilities.gather(1, predictions.labels[:, None]).squeeze(1)
    rate = estimate_noise_rate(predictions.left_out, predictions.labels)
    contradicted = float((predictions.left_out.best_class != predictions.labels).double().mean())
    clean = examples.clean_labels if examples is not None else None
    summary = _summarise(predictions, examples, score, seconds, rate, contradicted)
    return Audit(
        class_names=class_names,
        ids=_name_examples(predictions, examples),
        given=predictions.labels.numpy(),
        suggested=suggested.numpy(),
        given_probability=own.numpy(),
        suggested_probability=best.numpy(),
        disagreement=disagreement.numpy(),
        ambiguity=unclear.numpy(),
        noise=None if predictions.noise is None else (predictions.noise.abs().sum(1) / 2).numpy(),
        quadrant=assign_quadrants(disagreement, unclear, cut).numpy(),
        disagreement_threshold=cut,
        ambiguity_threshold=AMBIGUOUS_FROM,
        clean=None if clean is None else clean.numpy(),
        summary=summary,
        probabilities=predictions.probabilities.numpy(),
        examples=examples,
        findings=findings,
    )


def build_tag_table(
    predictions: TagPredictions,
    class_names: tuple[str, ...],
    examples: Examples | None,
    score: str,
    seconds: float,
    findings: Findings,
) -> Audit:
    """The same where an example has several labels: its row is that of the pair most likely wrong."""
    tags, cut, unclear = predictions.score(score)
    names, suggested = suggest_sets(tags, cut, class_names, predictions.labels)
    every = np.arange(len(suggested))
    own = np.where(tags.given == 1, tags.probabilities, 1 - tags.probabilities)[every, tags.worst]
    disagreement = torch.from_numpy(tags.scores[every, tags.worst])
    left_out, pairs = predictions.pool()
    rate = estimate_noise_rate(left_out, pairs)._replace(of="tags")
    contradicted = float((left_out.best_class != pairs).double().mean())
    clean = examples.clean_labels if examples is not None else None
    return Audit(
        class_names=names,
        ids=_name_examples(predictions, examples),
        given=predictions.labels.numpy(),
        suggested=suggested,
        given_probability=own,
        suggested_probability=np.where(disagreement > cut, 1 - own, own),
        disagreement=disagreement.numpy(),
        ambiguity=unclear.numpy(),
        quadrant=assign_quadrants(disagreement, unclear, cut).numpy(),
        disagreement_threshold=cut,
        ambiguity_threshold=AMBIGUOUS_FROM,
        clean=None if clean is None else clean.numpy(),
        summary=_summarise(predictions, examples, score, seconds, rate, contradicted),
        examples=examples,
        findings=findings,
        tags=tags,
    )


def _summarise(
    predictions: Predictions | TagPredictions,
    examples: Examples | None,
    score: str,
    seconds: float,
    rate: NoiseRate,
    contradicted: float,
) -> dict[str, Any]:
    """What an audit says of itself."""
    weak = any(WEAK in note for note in (() if examples is None else examples.notes))
    return {
        "source": examples.name if examples is not None else "batches",
        "method": predictions.method,
        "score": score,
        "warning": warn_if_mostly_contradicted(contradicted) or (WEAK_WARNING if weak else None),
        "noise_rate": None if weak else rate.estimate,
        "noise_rate_at_least": None if weak else rate.at_least,
        "noise_rate_words": None if weak else str(rate),
        "contradicted_out_of_sample": contradicted,
        "seconds": round(seconds, 2),
        "notes": [*(examples.notes if examples is not None else ())],
        **predictions.facts,
    }


def _name_examples(
    predictions: Predictions | TagPredictions, examples: Examples | None
) -> tuple[str, ...]:
    if examples is not None and examples.ids is not None:
        return examples.ids
    index = getattr(predictions, "index", None)
    places = range(len(predictions.labels)) if index is None else index.tolist()
    return tuple(map(str, places))
