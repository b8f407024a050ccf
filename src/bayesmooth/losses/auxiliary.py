"""What ALASCA puts inside a network: taps on its stages, and a small classifier behind each of them."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.calling import evaluating
from bayesmooth.errors import InputError

Shape = tuple[int, int]  # channels, and the shorter side of the image
UNKNOWN = sys.maxsize


class Tap:
    """A forward hook that puts the stage's output into `features`; in a copy of the model it does nothing."""

    def __init__(self, name: str, features: dict[str, Tensor] | None = None) -> None:
        self.name = name
        self.features = features

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Forget the output of the pass before; keep this one if it has gradients."""
        if self.features is not None:
            self.features.pop(self.name, None)
            if torch.is_grad_enabled():  # an evaluation pass must not hold on to its features
                self.features[self.name] = output

    def __reduce__(self) -> tuple[type["Tap"], tuple[str]]:
        return Tap, (self.name,)


class AuxiliaryHead(nn.Sequential):
    """1×1 → k×k with stride k → 1×1, each with BatchNorm and ReLU, then the mean over the image and a linear layer."""

    def __init__(
        self, channels: int, width: int, stride: int, num_classes: int, generator: torch.Generator
    ) -> None:
        middle = max(width // 4, 1)
        empty: Callable[..., nn.Module] = nn.utils.skip_init  # the global generator stays untouched
        layers: list[nn.Module] = []
        for before, after, size in (
            (channels, middle, 1),
            (middle, middle, stride),
            (middle, width, 1),
        ):
            layers.append(empty(nn.Conv2d, before, after, size, stride=size))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), empty(nn.Linear, width, num_classes)]
        super().__init__(*layers)
        self.channels, self.stride = channels, stride
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, generator=generator)
                nn.init.zeros_(layer.get_parameter("bias"))


def find_stage(model: nn.Module, name: str) -> nn.Module:
    """The submodule of that name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = ", ".join(child for child, _ in model.named_children())
        raise InputError(
            f"stage {name!r}: the model has no such module, only {names}; pass stages=(…) by their dotted names"
        ) from None


def declared_shape(name: str, stage: nn.Module) -> Shape:
    """The channels of the stage's last convolution, for an image of unknown size."""
    convolutions = [m for m in stage.modules() if isinstance(m, nn.Conv2d)]
    if not convolutions:
        raise InputError(
            f"stage {name!r} holds no Conv2d: its channels are unknown; pass attach(model, example_input)"
        )
    return convolutions[-1].out_channels, UNKNOWN


@torch.no_grad()
def observed_shapes(
    model: nn.Module, stages: Mapping[str, nn.Module], example_input: Tensor
) -> list[Shape]:
    """The shapes that the stages give for the first example."""
    shapes: dict[str, Shape] = {}

    def remember(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: shapes.update({name: _image_shape(name, output)})

    hooks = [stage.register_forward_hook(remember(name)) for name, stage in stages.items()]
    try:
        with evaluating(model):
            model(example_input[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return [shapes[name] for name in stages]


def check_features(name: str, head: nn.Module, features: Tensor) -> Tensor:
    """The features, if the head can read them."""
    assert isinstance(head, AuxiliaryHead)
    channels, side = _image_shape(name, features)
    if channels != head.channels or side < head.stride:
        raise InputError(
            f"stage {name!r} gives {channels} channels of side {side}: its head was built for {head.channels} "
            f"channels of side ≥ {head.stride}; pass attach(model, example_input) to a new loss"
        )
    return features


def _image_shape(name: str, output: Any) -> Shape:
    if not isinstance(output, Tensor) or output.ndim != 4:
        raise InputError(
            f"stage {name!r} gives {getattr(output, 'shape', type(output))}: must be images (batch, channels, "
            "height, width); name convolutional stages"
        )
    return output.shape[1], min(output.shape[2:])
