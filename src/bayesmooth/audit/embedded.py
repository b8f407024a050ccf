"""Predictions from embeddings: learned from a sample of the rows, then made of all rows piece by piece.

The predictors predict the given label. How true classes turn into given ones is learned too and taken back
(`transitions`). Rows beyond the sample need not fit in memory, and a cluster may work on the pieces.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bayesmooth.audit.neighbours import Distinct, hash_rows
from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.predictors import (
    ROWS_AT_ONCE,
    VOTERS,
    Predictors,
    RowPredictions,
    beats_class_shares,
    cross_fit,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes, rank_in_class
from bayesmooth.data import Source
from bayesmooth.errors import InputError
from bayesmooth.executors import map_pieces
from bayesmooth.progress import track

SAMPLE = 100_000  # rows that are learned from: more hardly change what is learned
ROWS_PER_CLASS = 100  # that are in the sample at least, if the class has so many
DIGITS = 1e9  # to which distances are rounded before rows are sorted by them
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow


def predict_embedded(source: Source, settings: Settings) -> Predictions:
    """From one fit (`none` or `loo`), or with probabilities from `folds` more.

    The rows are sorted by their content first, so that another order of the rows changes nothing.
    """
    quiet, way = settings.quiet, settings.out_of_sample
    chosen = choose_rows(source, quiet)
    whole = len(chosen) == len(source)
    if way == "folds" and not whole:
        raise InputError(f"folds: at most {SAMPLE:,} examples; use 'loo', which needs no refit")
    rows = torch.cat([rows for _, rows in read_pieces(source, chosen, "reading", quiet)])
    order = sort_by_content(rows, source.labels[chosen])
    rows, chosen = rows[order], chosen[order]
    learned = source.labels[chosen]
    predictors = Predictors.of(rows, learned, source, quiet)

    def fit_folds() -> Tensor:
        features = predictors.projection.features(rows)
        return cross_fit(features, learned, source.num_classes, settings)

    held = fit_folds() if way == "folds" else None
    every = chosen if whole else torch.arange(len(source), device="cpu")
    labels = source.labels[every]
    pieces = (
        (rows, source.labels[at], None if held is None else part)
        for (at, rows), part in zip(
            read_pieces(source, every, "scoring", quiet),
            torch.split(every if held is None else held, ROWS_AT_ONCE),
            strict=True,
        )
    )
    work = partial(predictors.predict, leave_out=way == "loo")
    parts = map_pieces(work, pieces, settings.cluster)
    made = RowPredictions(*map(torch.cat, zip(*parts, strict=True)))
    informative = beats_class_shares(made.voted, labels)
    if not informative:
        held = fit_folds() if held is None else held
        informative = beats_class_shares(held.gather(1, learned[:, None]).squeeze(1), learned)
    transitions = learn_transitions(made.left_out, labels)
    without = shown = predict_true_classes(made.left_out, transitions)
    if way != "loo":
        shown = predict_true_classes(made.seen, transitions)
    voters = min(VOTERS, len(predictors.voters.hashes) - 1)
    mixed = Distinct.of(made.hashes).mean(labels.double()) != labels
    predictions = Predictions(
        labels,
        shown,
        made.noise,
        f"variational softmax regression and {voters} neighbours, {settings.describe_way()}",
        {
            "components": predictors.projection.axes.shape[1],
            "fitted_to": len(chosen),
            "prior_precision": predictors.fit.prior_precision,
            "fit": predictors.fit.message,
            "weight_of_posterior": round(predictors.weight, 3),
            "weight_of_neighbours": round(1 - predictors.weight, 3),
        },
        without_label=LeftOut.of(without, labels, transitions),
        transitions=transitions,
        informative=informative,
        mixed=mixed if predictors.voters.copies else None,
    )
    return predictions.take(every.argsort())


def sort_by_content(rows: Tensor, labels: Tensor) -> Tensor:
    """Positions by distance from the mean, which no turn of the rows changes; then by hash, equal rows by label."""
    distance = torch.linalg.vector_norm(rows.double() - rows.double().mean(0), dim=1)
    rounded = (distance / distance.max().clamp_min(LARGEST**-1) * DIGITS).round()
    return torch.from_numpy(np.lexsort((labels, hash_rows(rows), rounded)))


def choose_rows(source: Source, quiet: bool = True) -> Tensor:
    """Positions of all source, or of `SAMPLE` and at least `ROWS_PER_CLASS` of every class, by the rows' hashes."""
    every = torch.arange(len(source), device="cpu")
    if len(source) <= SAMPLE:
        return every
    hashes = [hash_rows(rows) for _, rows in read_pieces(source, every, "reading", quiet)]
    order = torch.from_numpy(np.lexsort((source.labels.numbers, torch.cat(hashes))))
    chosen = rank_in_class(order, source.labels.numbers) < ROWS_PER_CLASS
    chosen[order[:SAMPLE]] = True
    return chosen.nonzero().flatten()


def read_pieces(
    source: Source, index: Tensor, description: str, quiet: bool, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and rows, piece by piece, checked."""
    parts = torch.split(index, size or ROWS_AT_ONCE)
    for at in track(parts, description=description, quiet=quiet or len(parts) < 2):
        rows = source.batch(at).flatten(1)
        broken = ~(rows.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{source.name}: row {row} has entries that are NaN, infinite or beyond ±{LARGEST:.0e}; "
                "must be ordinary numbers: drop such rows, or scale the embeddings"
            )
        yield at, rows
