"""Predictions from embeddings: learned from a sample of the rows, then made of all rows piece by piece.

The predictors predict the given label. How true classes turn into given ones is learned too and taken back
(`transitions`). Rows beyond the sample need not fit in memory, and a cluster may work on the pieces.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.predictors import (
    ROWS_AT_ONCE,
    VOTERS,
    Predictors,
    RowPredictions,
    cross_fit,
)
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes, rank_in_class
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.progress import track

SAMPLE = 100_000  # rows that are learned from: more hardly change what is learned
ROWS_PER_CLASS = 100  # that are in the sample at least, if the class has so many
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def predict_embedded(examples: Examples, settings: Settings) -> Predictions:
    """From one fit (`none` or `loo`), or with probabilities from `folds` more."""
    labels, quiet, way = examples.labels, settings.quiet, settings.out_of_sample
    chosen, every = choose_rows(labels, settings.seed), torch.arange(len(labels), device="cpu")
    whole = len(chosen) == len(labels)
    if way == "folds" and not whole:
        raise InputError(f"folds: at most {SAMPLE:,} examples; use 'loo', which needs no refit")
    rows = torch.cat([rows for _, rows in read_pieces(examples, chosen, "reading", quiet)])
    predictors = Predictors.of(rows, labels[chosen], examples, quiet)
    held = None
    if way == "folds":
        features = predictors.projection.features(rows)
        held = cross_fit(features, labels, examples.num_classes, settings)
    own = torch.full_like(labels, -1)
    own[chosen] = every[: len(chosen)]
    pieces = (
        (rows, labels[at], own[at], None if held is None else held[at])
        for at, rows in read_pieces(examples, every, "scoring", quiet)
    )
    work = partial(predictors.predict, leave_out=way == "loo", with_neighbours=whole)
    parts = map_pieces(work, pieces, settings.cluster)
    made = RowPredictions(*map(torch.cat, zip(*parts, strict=True)))
    transitions = learn_transitions(made.left_out, labels)
    without = shown = predict_true_classes(made.left_out, transitions)
    if way != "loo":
        shown = predict_true_classes(made.seen, transitions)
    voters = min(VOTERS, len(chosen) - 1)
    return Predictions(
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
        neighbours=(made.nearest, made.similarity) if whole else None,
    )


def choose_rows(labels: Tensor, seed: int = 0) -> Tensor:
    """Positions of all examples, or of `SAMPLE` at random and at least `ROWS_PER_CLASS` of every class, in order."""
    if len(labels) <= SAMPLE:
        return torch.arange(len(labels), device="cpu")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed), device="cpu")
    chosen = rank_in_class(order, labels) < ROWS_PER_CLASS
    chosen[order[:SAMPLE]] = True
    return chosen.nonzero().flatten()


def read_pieces(
    examples: Examples, index: Tensor, description: str, quiet: bool, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and rows, piece by piece, checked."""
    parts = torch.split(index, size or ROWS_AT_ONCE)
    for at in track(parts, description=description, quiet=quiet or len(parts) < 2):
        rows = examples.batch(at).flatten(1)
        broken = ~(rows.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{examples.name}: row {row} has entries that are NaN, infinite or beyond ±{LARGEST:.0e}; "
                "must be ordinary numbers: drop such rows, or scale the embeddings"
            )
        yield at, rows


def map_pieces(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], cluster: str | None = None
) -> Iterator[Result]:
    """`work` on every piece, in order; with "ray" as tasks of a Ray cluster, some at a time."""
    if cluster is None:
        yield from map(work, pieces)
        return
    ray = require("ray", extra="cluster")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error")
    task, shared = ray.remote(_apply), ray.put(work)
    limit = 2 * int(ray.cluster_resources().get("CPU", 1))
    waiting: deque[Any] = deque()
    for piece in pieces:
        if len(waiting) >= limit:
            yield ray.get(waiting.popleft())
        waiting.append(task.remote(shared, piece))
    yield from map(ray.get, waiting)


def _apply(work: Callable[[Piece], Result], piece: Piece) -> Result:
    return work(piece)
