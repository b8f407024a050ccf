"""The three-layer convolutional network for MNIST."""

from collections.abc import Sequence

from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.models.initial import weights_from


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
    if not widths or min(height, width) < shrunk:
        raise InputError(
            f"widths={list(widths)}: one at least, and pictures of {height} × {width} must stay"
            f" one pixel when halved {len(widths) - 1} times"
        )
    layers: list[nn.Module] = []
    with weights_from(seed):
        for n_in, n_out in zip((channels, *widths), widths, strict=False):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        features = widths[-1] * (height // shrunk) * (width // shrunk)
        head = nn.Linear(features, num_classes)
    return nn.Sequential(*layers[:-1], nn.Flatten(), head)
