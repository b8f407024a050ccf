"""What the audit says of the labels that are learned, from features of the examples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.audit.predictions import learn_transitions, predict_true_classes
from bayesmooth.audit.predictors import (
    ROWS_AT_ONCE,
    SAMPLE,
    Predictors,
    RowPredictions,
    beats_class_shares,
    predict_embedded,
)
from bayesmooth.calling import read_logits, take_inputs, take_labels
from bayesmooth.data import Labels, Source
from bayesmooth.errors import InputError
from bayesmooth.fitting.predicted import SMALLEST, Audited
from bayesmooth.progress import silence

LARGEST = 1 << 30  # numbers in the features of all examples: 4 GiB


def audit_labels(model: nn.Module, train: Any, held: Any, learn_held: bool) -> Audited | None:
    """Predictions of training and of held-out examples, each label left out.

    With `learn_held` the other held-out labels are learned too. None where the examples have no features, where these
    tell nothing of the labels, or where they are more than fit in a few GB.
    """
    (rows, labels, classes), (others, unseen, _) = (read_features(model, batches) for batches in (train, held))
    if rows is None or others is None:
        return None
    count, given = len(rows), labels
    if learn_held:
        rows, given = torch.cat([rows, others]), torch.cat([labels, unseen])
    draw = torch.Generator("cpu").manual_seed(0)
    some = torch.randperm(len(rows), generator=draw, device="cpu")[:SAMPLE].sort().values
    try:
        predictors = Predictors.of(rows[some], given[some], classes)
    except InputError:  # all rows are equal, or not finite
        return None

    def predict(rows: Tensor, labels: Tensor) -> RowPredictions:
        pieces = zip(torch.split(rows, ROWS_AT_ONCE), torch.split(labels, ROWS_AT_ONCE), strict=True)
        return RowPredictions(*map(torch.cat, zip(*(predictors.predict(*piece) for piece in pieces), strict=True)))

    learned = predict(rows, given)
    left_out = learned.left_out
    of_held = left_out[count:] if learn_held else predict(others, unseen).seen
    own = of_held.gather(1, unseen[:, None]).squeeze(1)
    if not (beats_class_shares(learned.voted, given) or beats_class_shares(own, unseen)):
        return None
    transitions = learn_transitions(left_out, given)
    parts = left_out[:count], of_held
    of_train, of_held = (predict_true_classes(each, transitions).clamp_min(SMALLEST) for each in parts)
    return Audited(of_train, of_held, transitions)


def find_contradicted(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Which labels (N,) the audit contradicts, each left out."""
    given = Labels(labels, tuple(map(str, range(classes))))
    source = Source(rows, given, ids=tuple(map(str, range(len(labels)))), name="rows")
    with silence():
        suggested: Tensor = predict_embedded(source, leave_out=True).judge()["suggested"]
    return suggested != labels


def read_features(model: nn.Module, batches: Any) -> tuple[Tensor | None, Tensor, int]:
    """Rows (N, D) that stand for the examples, their labels, and the number of classes.

    Rows of numbers stand for themselves. Of other examples it is what the last linear layer sees; None where the model
    has no such layer that makes its logits.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[:] = [(inputs[0], output)]

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    found: list[Tensor | None] = []
    labels, classes, size = [], 0, 0
    try:
        for logits, batch in read_logits(model, batches):
            rows: Any = take_inputs(batch)
            classes = logits.shape[1]
            if isinstance(rows, Mapping) and len(rows) == 1:
                (rows,) = rows.values()
            if not isinstance(rows, Tensor) or rows.ndim != 2 or not rows.is_floating_point():
                rows = calls[0][0] if calls and calls[0][1].shape == logits.shape else None
            size += 0 if rows is None else rows.numel()
            found.append(rows if size <= LARGEST else None)
            labels.append(take_labels(batch))
    finally:
        for hook in hooks:
            hook.remove()
    known = [rows.float().cpu() for rows in found if rows is not None]
    return torch.cat(known) if len(known) == len(found) else None, torch.cat(labels).cpu(), classes
