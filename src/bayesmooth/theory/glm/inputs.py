"""Check what a user gives `fit_glm`, and make a `Problem` of it."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesmooth.errors import InputError
from bayesmooth.theory.glm.covariance import COVARIANCES, FULL_LIMIT, Block, Covariance
from bayesmooth.theory.glm.steps import Problem
from bayesmooth.theory.links import Bernoulli, Categorical, Gaussian, Link, Poisson

T = TypeVar("T")
COUNTED = ("bernoulli", "categorical")
FAMILIES: dict[str, Link] = {
    "bernoulli": Bernoulli(),
    "categorical": Categorical(),
    "poisson": Poisson(),
    "gaussian": Gaussian(),
}


def as_problem(
    features: Any,
    labels: Any,
    family: str,
    classes: int | None,
    prior: float,
    bias: bool,
    weights: Any | None,
    dtype: torch.dtype,
) -> Problem:
    """Tensors of one dtype and device, with a column of ones if there is a bias."""
    link = choose("family", family, FAMILIES)
    matrix = design_matrix(features, bias, dtype)
    if not bool(matrix.any()):
        raise InputError("all features are zero, and there is no bias: nothing to learn from")
    y = torch.as_tensor(labels).to(matrix.device)
    if y.ndim != 1 or len(y) != len(matrix):
        raise InputError(
            f"labels of shape {tuple(y.shape)}: must be ({len(matrix)},), one an example"
        )
    targets = _class_targets(y, family, classes) if family in COUNTED else _real_targets(y, family)
    return Problem(matrix, targets.to(dtype), link, prior, _weights(weights, matrix))


def design_matrix(features: Any, bias: bool, dtype: torch.dtype) -> Tensor:
    """The features (N, D) as a tensor, with a last column of ones if there is a bias."""
    matrix = torch.as_tensor(features)
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise InputError(f"features of shape {tuple(matrix.shape)}: must be (examples, features)")
    matrix = matrix.detach().to(dtype)
    if not bool(matrix.isfinite().all()):
        row, column = (~matrix.isfinite()).nonzero()[0].tolist()
        value = float(matrix[row, column])
        raise InputError(
            f"features[{row}, {column}] is {value}: must be finite; drop or fill such examples"
        )
    return F.pad(matrix, (0, 1), value=1.0) if bias else matrix


def covariance_structure(name: str, problem: Problem) -> type[Covariance]:
    """The class of a named covariance; for scalar links, blocks hold everything."""
    structure = choose("covariance", name, COVARIANCES)
    outputs = problem.labels.shape[1]
    parameters = problem.features.shape[1] * outputs
    if name == "full" and parameters > FULL_LIMIT:
        raise InputError(
            f"covariance='full' with {parameters:,} parameters: at most {FULL_LIMIT:,}; "
            "use covariance='block' (one block a class) or 'diagonal'"
        )
    return Block if name == "full" and outputs == 1 else structure


def choose(argument: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or an error that lists its names."""
    if name not in table:
        raise InputError(f"{argument}={name!r}: must be one of {', '.join(map(repr, table))}")
    return table[name]


def positive(argument: str, value: float) -> float:
    """The value, if it is a positive number."""
    if not 0 < value < float("inf"):
        raise InputError(f"{argument}={value}: must be positive and finite")
    return value


def _class_targets(y: Tensor, family: str, classes: int | None) -> Tensor:
    """One column of 0 and 1, or one-hot rows."""
    if y.is_floating_point() or y.is_complex():
        raise InputError(f"labels of dtype {y.dtype}: must be integers, the classes' numbers")
    if family == "bernoulli":
        classes = 2
    top, bottom = int(y.max()), int(y.min())
    count = top + 1 if classes is None else classes
    if bottom < 0 or top >= count:
        raise InputError(
            f"labels from {bottom} to {top}: must lie in 0 … {count - 1}; number the classes from 0"
        )
    if top == bottom:
        raise InputError(f"all labels are {top}: at least two classes must occur")
    return y.unsqueeze(1) if family == "bernoulli" else F.one_hot(y.long(), count)


def _real_targets(y: Tensor, family: str) -> Tensor:
    y = y.double()
    bad = ~y.isfinite() | ((y < 0) if family == "poisson" else torch.zeros_like(y).bool())
    if bool(bad.any()):
        rule = "a count ≥ 0" if family == "poisson" else "finite"
        i = int(bad.nonzero()[0])
        raise InputError(f"labels[{i}] is {float(y[i])}: must be {rule}")
    return y.unsqueeze(1)


def _weights(weights: Any | None, matrix: Tensor) -> Tensor | None:
    if weights is None:
        return None
    w = torch.as_tensor(weights).to(matrix)
    if w.shape != matrix.shape[:1]:
        raise InputError(f"weights of shape {tuple(w.shape)}: must be ({len(matrix)},)")
    if not bool((w.isfinite() & (w >= 0)).all()) or not bool(w.any()):
        raise InputError("weights: must be finite, ≥ 0 and not all zero")
    return w
