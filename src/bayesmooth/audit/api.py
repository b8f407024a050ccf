"""The verb `audit`: whatever you have, as evidence; the evidence, as a ranked table."""

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from bayesmooth.audit.evidence import Evidence, check_labels
from bayesmooth.audit.findings import MOST, Findings, check_other_split, find
from bayesmooth.audit.scores import (
    EVEN,
    SCORES,
    ambiguity,
    noise_rate,
    quadrants,
    threshold,
    warning,
)
from bayesmooth.audit.settings import Encoder, Settings
from bayesmooth.audit.sources import open_other_split, open_source
from bayesmooth.audit.table import Audit
from bayesmooth.data import Examples
from bayesmooth.errors import InputError

TOO_MANY = "no near duplicates, no outliers, no leaks between splits"


def audit(
    source: Any = None,
    posterior: Any = None,
    data: Any = None,
    *,
    embeddings: Any = None,
    probabilities: Any = None,
    labels: Any = None,
    against: Any = None,
    # what the columns of a table mean
    label: str | None = None,
    clean_label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    features: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    # how texts and pictures are embedded
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

    `against` is another split, such as the test set, given as `source` is: the audit reports examples found in both.

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
    _check_choice("score", score, tuple(SCORES))
    start = time.perf_counter()
    subject = open_source(
        source,
        posterior,
        data,
        embeddings=embeddings,
        probabilities=probabilities,
        labels=labels,
        settings=settings,
    )
    other = None
    if against is not None:
        other = check_other_split(open_other_split(against, settings), subject.examples)
    evidence = subject.evidence(settings)
    if subject.examples is not None:
        names = subject.examples.class_names
    else:
        names = tuple(class_names or map(str, range(evidence.probabilities.shape[1])))
        check_labels(evidence.labels, names)
    few = len(evidence.labels) <= MOST  # more may not fit
    rows = subject.rows() if few else None
    found = find(evidence.labels, len(names), rows, other, evidence.neighbours, quiet=quiet)
    seconds = time.perf_counter() - start
    notes = (
        () if few else (f"beyond {MOST:,} examples only rare classes are looked for: {TOO_MANY}",)
    )
    return tabulate(evidence, names, subject.examples, score, seconds, found, notes)


def tabulate(
    evidence: Evidence,
    class_names: tuple[str, ...],
    examples: Examples | None,
    score: str,
    seconds: float,
    findings: Findings | None = None,
    notes: tuple[str, ...] = (),
) -> Audit:
    """The evidence as a ranked table; `notes` are said beside those of the examples."""
    if evidence.probabilities.shape[1] != len(class_names):
        raise InputError(
            f"{len(class_names)} class names for a model of {evidence.probabilities.shape[1]} classes"
        )
    disagreement, unclear = SCORES[score](evidence), ambiguity(evidence)
    cut = threshold(score, disagreement, evidence)
    top = evidence.probabilities.max(1)
    own = evidence.probabilities.gather(1, evidence.labels[:, None]).squeeze(1)
    rate = noise_rate(evidence.blind, evidence.labels)
    contradicted = float((evidence.blind.best_class != evidence.labels).double().mean())
    clean = examples.clean_labels if examples is not None else None
    summary = {
        "source": examples.name if examples is not None else "batches",
        "method": evidence.method,
        "score": score,
        "warning": warning(contradicted),
        "noise_rate": rate.estimate,
        "noise_rate_interval": [rate.low, rate.high],
        "contradicted_out_of_sample": contradicted,
        "seconds": round(seconds, 2),
        "notes": [*(examples.notes if examples is not None else ()), *notes],
        **evidence.facts,
    }
    return Audit(
        class_names=class_names,
        ids=_ids(evidence, examples),
        given=evidence.labels.numpy(),
        suggested=top.indices.numpy(),
        given_probability=own.numpy(),
        suggested_probability=top.values.numpy(),
        disagreement=disagreement.numpy(),
        ambiguity=unclear.numpy(),
        noise=None if evidence.noise is None else (evidence.noise.abs().sum(1) / 2).numpy(),
        quadrant=quadrants(disagreement, unclear, cut).numpy(),
        disagreement_threshold=cut,
        ambiguity_threshold=EVEN,
        clean=None if clean is None else clean.numpy(),
        summary=summary,
        probabilities=evidence.probabilities.numpy(),
        examples=examples,
        findings=findings,
    )


def _ids(evidence: Evidence, examples: Examples | None) -> tuple[str, ...]:
    if examples is not None and examples.ids is not None:
        return examples.ids
    index = torch.arange(len(evidence.labels)) if evidence.index is None else evidence.index
    return tuple(map(str, index.tolist()))


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{what}={value!r}: must be one of {', '.join(choices)}")
