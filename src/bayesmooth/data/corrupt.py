"""Synthetic label noise: ỹ ~ P[y, :], rows of P are true classes.

The draws are those of `numpy.random.RandomState(seed)`, one multinomial an example in the order of
the set, as in the public code of Yu et al., 2019 (co-teaching+), which the paper follows: the same
seed gives the same noisy labels.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bayesmooth.data.examples import Examples
from bayesmooth.data.noisefile import Corruption, Labels, Matrix, label_hash
from bayesmooth.errors import InputError


def symmetric(num_classes: int, rate: float) -> Matrix:
    """P_ii = 1 − n, P_ij = n / (K − 1): `rate` is the true flip rate.

    >>> symmetric(3, 0.5)
    array([[0.5 , 0.25, 0.25], [0.25, 0.5 , 0.25], [0.25, 0.25, 0.5 ]])
    """
    return _uniform(np.full(num_classes, _rate(rate)))


def pairflip(num_classes: int, rate: float) -> Matrix:
    """P_ii = 1 − n, P_i,(i+1) mod K = n, in the order of the class numbers."""
    identity = np.eye(num_classes)
    return (1 - _rate(rate)) * identity + rate * np.roll(identity, 1, axis=1)


def data_dependent(num_classes: int, kappa: float, beta: float = 0.05, offset: int = 1) -> Matrix:
    """P_ii = 1 − n_i, P_ij = n_i / (K − 1), n_i = κ + βi from i = `offset` (sec: data dependent noise)."""
    rates = kappa + beta * (offset + np.arange(num_classes))
    if not (rates.min() >= 0 and rates.max() <= 1 + 1e-9):
        raise InputError(
            f"kappa={kappa}, beta={beta}: class noise from {rates.min():.3g} to {rates.max():.3g}: "
            f"must stay within 0 … 1; lower beta for {num_classes} classes"
        )
    return _uniform(rates.clip(0, 1))


def given(num_classes: int, matrix: Any) -> Matrix:
    """Any K × K matrix with rows that sum to 1."""
    P = np.array(matrix, dtype=np.float64)
    if P.shape != (num_classes, num_classes):
        raise InputError(f"matrix of shape {P.shape}: must be {num_classes} × {num_classes}")
    broken = np.flatnonzero(~((P >= 0).all(1) & (np.abs(P.sum(1) - 1) < 1e-6)))
    if len(broken):
        raise InputError(f"matrix, row {broken[0]}: {P[broken[0]]}: must be ≥ 0 and sum to 1")
    normal: Matrix = P / P.sum(1, keepdims=True)
    return normal


KINDS: dict[str, Callable[..., Matrix]] = {
    "symmetric": symmetric,
    "pairflip": pairflip,
    "data_dependent": data_dependent,
    "matrix": given,
}


def corrupt(
    examples: Examples, kind: str, *, seed: int = 0, **settings: Any
) -> tuple[Examples, Corruption]:
    """Draw noisy labels; the old ones become the clean labels unless those are known already.

    `settings` are those of the kind: rate (symmetric, pairflip); kappa, beta and offset
    (data_dependent); matrix (matrix).

    >>> import torch
    >>> clean = Examples(torch.zeros(40, 1), torch.arange(40) % 10, tuple("0123456789"))
    >>> noisy, corruption = corrupt(clean, "symmetric", rate=0.2, seed=0)
    >>> corruption
    Corruption(symmetric, seed 0: 8 of 40 labels, 20.00%)
    >>> noisy
    Examples(examples: 40 × float32[1], 10 classes, 20.00% of the labels wrong)
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: must be one of {', '.join(KINDS)}")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: must be from 0 to 2³²−1")
    try:
        matrix = KINDS[kind](examples.num_classes, **settings)
    except TypeError:
        known = ", ".join(KINDS[kind].__code__.co_varnames[1 : KINDS[kind].__code__.co_argcount])
        raise InputError(f"{kind} noise with {settings}: its settings are {known}") from None
    old = examples.labels.numpy()
    new = draw(old, matrix, seed)
    index = np.flatnonzero(old != new)
    corruption = Corruption(
        kind, matrix, seed, index, old[index], new[index], len(old), label_hash(examples)
    )
    return corruption.apply(examples), corruption


def draw(labels: Labels, matrix: Matrix, seed: int) -> Labels:
    """ỹ_i ~ P[y_i, :], one call an example: each takes more or less of the stream."""
    stream = np.random.RandomState(seed)
    return np.fromiter(
        (stream.multinomial(1, matrix[label]).argmax() for label in labels), np.int64, len(labels)
    )


def _uniform(rates: np.ndarray[Any, np.dtype[np.float64]]) -> Matrix:
    """Class i is wrong at rates[i], in any of the other classes alike."""
    K = len(rates)
    if K < 2:
        raise InputError(f"{K} classes: label noise needs two at least")
    P = np.repeat(rates[:, None] / (K - 1), K, axis=1)
    np.fill_diagonal(P, 1 - rates)
    return P


def _rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise InputError(f"rate={rate}: must be from 0 to 1")
    return rate
