"""Linear classifier and multi-layer perceptron; pictures are flattened."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from bayesmooth.models.initial import weights_from


def linear(
    num_classes: int = 10, *, input_shape: Sequence[int] = (1, 28, 28), seed: int = 0
) -> nn.Module:
    """z = Wx + b."""
    return mlp(num_classes, input_shape=input_shape, hidden=(), seed=seed)


def mlp(
    num_classes: int = 10,
    *,
    input_shape: Sequence[int] = (1, 28, 28),
    hidden: Sequence[int] = (128, 128),
    batchnorm: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Linear layers with ReLU between them, after a batch norm if `batchnorm`; `hidden` are the widths.

    >>> mlp(2, input_shape=(3,), hidden=(4,))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=3, out_features=4, bias=True)
      (2): ReLU()
      (3): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    layers: list[nn.Module] = [nn.Flatten()]
    with weights_from(seed):
        for n_in, n_out in pairwise((prod(input_shape), *hidden, num_classes)):
            layers += [nn.Linear(n_in, n_out), *([nn.BatchNorm1d(n_out)] * batchnorm), nn.ReLU()]
    return nn.Sequential(*layers[: -2 if batchnorm else -1])
