"""Predictions from embeddings: learned from a sample of the rows, then made of all rows piece by piece.

The predictors predict the given label. How true classes turn into given ones is learned too and taken back
(`transitions`). Rows beyond the sample need not fit in memory.
"""

from functools import partial

import torch
from torch import Tensor

from bayesmooth.audit.pieces import SAMPLE, choose_rows, map_pieces, read_pieces
from bayesmooth.audit.predictions import LeftOut, Predictions
from bayesmooth.audit.predictors import VOTERS, Predictors, RowPredictions, cross_fit
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes
from bayesmooth.data import Examples
from bayesmooth.errors import InputError

Piece = tuple[Tensor, Tensor, Tensor, Tensor | None]


def predict_embedded(examples: Examples, settings: Settings) -> Predictions:
    """From one fit (`none` or `loo`), or with probabilities from `folds` more."""
    labels, quiet, way = examples.labels, settings.quiet, settings.out_of_sample
    chosen = choose_rows(labels, settings.seed)
    whole = len(chosen) == len(labels)
    if way == "folds" and not whole:
        raise InputError(f"folds: at most {SAMPLE:,} examples; use 'loo', which needs no refit")
    rows = torch.cat([rows for _, rows in read_pieces(examples, chosen, "reading", quiet)])
    predictors = Predictors.of(rows, labels[chosen], examples, quiet)
    held = _cross_fit(predictors, rows, examples, settings) if way == "folds" else None
    own = torch.full_like(labels, -1)
    own[chosen] = torch.arange(len(chosen), device="cpu")
    pieces = (
        (rows, labels[at], own[at], None if held is None else held[at])
        for at, rows in read_pieces(
            examples, torch.arange(len(labels), device="cpu"), "scoring", quiet
        )
    )
    work = partial(_predict_piece, predictors, way == "loo", whole)
    probabilities, noise, left_out, neighbours = zip(
        *map_pieces(work, pieces, settings.cluster), strict=True
    )
    unseen = torch.cat(left_out)
    transitions = learn_transitions(unseen, labels)
    without = shown = predict_true_classes(unseen, transitions)
    if way != "loo":
        shown = predict_true_classes(torch.cat(probabilities), transitions)
    return Predictions(
        labels,
        shown,
        torch.cat(noise),
        _describe(settings, len(chosen)),
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
        neighbours=_join(neighbours) if whole else None,
    )


def _cross_fit(
    predictors: Predictors, rows: Tensor, examples: Examples, settings: Settings
) -> Tensor:
    features, classes = predictors.projection.features(rows), examples.num_classes
    folds, seed, quiet = settings.folds, settings.seed, settings.quiet
    return cross_fit(features, examples.labels, classes, folds, seed=seed, quiet=quiet)


def _predict_piece(
    predictors: Predictors, leave_out: bool, with_neighbours: bool, piece: Piece
) -> RowPredictions:
    made = predictors.predict(*piece, leave_out=leave_out)
    index, similarity = made.neighbours
    return made if with_neighbours else made._replace(neighbours=(index[:0], similarity[:0]))


def _join(parts: tuple[tuple[Tensor, Tensor], ...]) -> tuple[Tensor, Tensor]:
    index, similarity = zip(*parts, strict=True)
    return torch.cat(index), torch.cat(similarity)


def _describe(settings: Settings, learned_from: int) -> str:
    folds = f"{settings.folds}-fold cross-fit"
    way = {"loo": "leave-one-out", "folds": folds, "none": "in-sample"}[settings.out_of_sample]
    voters = min(VOTERS, learned_from - 1)
    return f"variational softmax regression and {voters} neighbours, {way}"
