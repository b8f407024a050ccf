"""Small, standard networks: `MODELS[name](num_classes=K, input_shape=…, seed=…)`."""

from collections.abc import Callable

from torch import nn

from bayesmooth.models.initial import load_weights, name_head, weights_from
from bayesmooth.models.networks import cnn, cnn_batchnorm, linear, mlp, resnet18, resnet34, resnet50, resnet_small

MODELS: dict[str, Callable[..., nn.Module]] = {
    make.__name__: make for make in (linear, mlp, cnn, cnn_batchnorm, resnet_small, resnet18, resnet34, resnet50)
}

__all__ = [
    "MODELS",
    "cnn",
    "cnn_batchnorm",
    "linear",
    "load_weights",
    "mlp",
    "name_head",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet_small",
    "weights_from",
]
