"""What would make the result of an audit wrong, refused before any work is done."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmooth.errors import InputError


def check_labels(labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse labels from which nothing can be learned about themselves."""
    if len(class_names) < 2:
        raise InputError(f"{len(class_names)} class: an audit needs at least two classes")
    counts = torch.bincount(labels, minlength=len(class_names))
    if int((counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(labels)} labels are {class_names[int(counts.argmax())]!r}: an audit needs "
            "at least two classes"
        )


def check_probabilities(probabilities: Tensor, count: int, classes: int) -> Tensor:
    """Rows of probabilities as float32 that sum to one."""
    if probabilities.shape != (count, classes):
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)}: must be {count} × {classes}, "
            "one row per example and one column per class"
        )
    values = probabilities.float()
    sums = values.sum(1)
    broken = (~values.isfinite() | (values < 0)).any(1) | ((sums - 1).abs() > 0.01)
    if broken.any():
        row = int(broken.nonzero()[0])
        shown = [round(float(p), 4) for p in values[row, :5]]
        raise InputError(
            f"probabilities[{row}] = {shown}…: must be ≥ 0 and sum to one; pass logits.softmax(-1)"
        )
    return values / sums[:, None]


def check_order(probabilities: Tensor, labels: Tensor, class_names: Sequence[str]) -> None:
    """Refuse columns that fit the labels only in another order than that of the classes."""
    suggested, classes = probabilities.argmax(1), len(class_names)
    pairs = torch.bincount(labels * classes + suggested, minlength=classes**2)
    pairs = pairs.view(classes, classes)
    column = pairs.argmax(1)  # the one that most examples of each class are given
    as_given = int(pairs.diagonal().sum())
    reordered = int(pairs.gather(1, column[:, None]).sum())
    if len({*column.tolist()}) == classes and 2 * as_given < len(labels) < 2 * reordered:
        order = ", ".join(class_names[int(k)] for k in column.argsort())[:200]
        raise InputError(
            f"probabilities: their columns agree with {as_given} of {len(labels)} labels as they stand, and with "
            f"{reordered} in the order {order}; give class_names in the order of the columns"
        )
