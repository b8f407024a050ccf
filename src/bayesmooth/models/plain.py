"""Plain networks: a linear classifier, multi-layer perceptrons, and small convolutional networks."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.models.initial import weights_from


def linear(num_classes: int = 10, *, input_shape: Sequence[int] = (1, 28, 28), seed: int = 0) -> nn.Module:
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
    """Linear layers of the widths `hidden` with ReLU between them, after a batch norm if `batchnorm`.

    Pictures are flattened.

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


def cnn(
    num_classes: int = 10,
    *,
    input_shape: Sequence[int] = (1, 28, 28),
    widths: Sequence[int] = (16, 32, 64),
    seed: int = 0,
) -> nn.Module:
    """3 × 3 convolutions of `widths` with ReLU, halved by max-pooling between them, a linear head.

    The paper says "3-layers convolutional neural networks" and no more; the widths are ours.
    """
    channels, height, width = input_shape
    shrunk = 2 ** (len(widths) - 1)
    _check_size(input_shape, widths, shrunk)
    layers: list[nn.Module] = []
    with weights_from(seed):
        for n_in, n_out in pairwise((channels, *widths)):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        features = widths[-1] * (height // shrunk) * (width // shrunk)
        head = nn.Linear(features, num_classes)
    return nn.Sequential(*layers[:-1], nn.Flatten(), head)


def cnn_batchnorm(
    num_classes: int = 10,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    widths: Sequence[int] = (32, 64, 128),
    stride: int = 2,
    seed: int = 0,
) -> nn.Module:
    """3 × 3 convolutions of `widths`, each with batch norm, 2 × 2 max-pooling and ReLU, and a linear head.

    The first convolution has the stride. ReLU after the pooling gives the same as before it, at a quarter of the cost.
    """
    channels, height, width = input_shape
    _check_size(input_shape, widths, stride * 2 ** len(widths))
    layers: list[nn.Module] = []
    with weights_from(seed):
        for n_in, n_out in pairwise((channels, *widths)):
            step = 1 if layers else stride
            height, width = (-(-side // step) // 2 for side in (height, width))
            layers += [
                nn.Conv2d(n_in, n_out, 3, step, padding=1, bias=False),
                nn.BatchNorm2d(n_out),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ]
        head = nn.Linear(widths[-1] * height * width, num_classes)
    return nn.Sequential(*layers, nn.Flatten(), head)


def _check_size(input_shape: Sequence[int], widths: Sequence[int], shrunk: int) -> None:
    """A picture whose sides are divided by `shrunk` must keep at least one pixel."""
    _, height, width = input_shape
    if not widths or min(height, width) < shrunk:
        raise InputError(
            f"widths={list(widths)}: give at least one, and so few that pictures of {height} × {width} "
            f"still have a pixel when their sides are divided by {shrunk}"
        )
