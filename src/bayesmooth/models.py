"""Small, standard networks: `MODELS[name](num_classes=K, input_shape=…, seed=…)`.

Residual networks (He et al., 2016) have the parameter names that public weights use: stages `layer1`, `layer2`, …, the
head `fc`. Those for CIFAR open with a 3 × 3 convolution and no pooling, so that pictures of 32 × 32 keep their size in
the first stage.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError, require
from bayesmooth.files import name_errors
from bayesmooth.randomness import check_seed

WIDTHS = (64, 128, 256, 512)


@contextmanager
def weights_from(seed: int) -> Iterator[None]:
    """Layers built inside are float32, on the CPU, with weights from `seed`, under any defaults of torch.

    The global generator is left as it was.

    >>> with weights_from(0):
    ...     first = nn.Linear(2, 2)
    >>> with weights_from(0):
    ...     torch.equal(first.weight, nn.Linear(2, 2).weight)
    True
    """
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(check_seed(seed))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


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
    layers: list[nn.Module] = []
    with weights_from(seed):
        for n_in, n_out in pairwise((input_shape[0], *widths)):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        pixels = prod(side // 2 ** (len(widths) - 1) for side in input_shape[1:])
        head = nn.Linear(count_features(pixels, input_shape, widths), num_classes)
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
    layers: list[nn.Module] = []
    with weights_from(seed):
        for n_in, n_out in pairwise((input_shape[0], *widths)):
            convolution = nn.Conv2d(n_in, n_out, 3, 1 if layers else stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(n_out), nn.MaxPool2d(2), nn.ReLU()]
        pixels = prod(-(-side // stride) // 2 ** len(widths) for side in input_shape[1:])
        head = nn.Linear(count_features(pixels, input_shape, widths), num_classes)
    return nn.Sequential(*layers, nn.Flatten(), head)


def count_features(pixels: float, input_shape: Sequence[int], widths: Sequence[int]) -> int:
    """The number of features that the convolutions leave; they must leave a pixel at least."""
    if not widths or not pixels:
        raise InputError(
            f"widths={list(widths)}: pictures of {' × '.join(map(str, input_shape[1:]))} have no pixel left, as each "
            "layer halves them; give fewer widths, at least one, or larger pictures"
        )
    return int(pixels) * widths[-1]


# ---- residual networks ----


def make_conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution before a batch norm: no bias, the size kept up to the stride."""
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """relu(x + f(x)): f is `layers` of (width, size, stride), x is projected where the shape changes."""

    def __init__(self, n_in: int, *layers: tuple[int, int, int]) -> None:
        super().__init__()
        self.n_out, stride = layers[-1][0], prod(stride for _, _, stride in layers)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != self.n_out:
            projection = make_conv(n_in, self.n_out, 1, stride)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(self.n_out))
        self.relu, self.depth = nn.ReLU(inplace=True), len(layers)
        for k, (width, size, stride) in enumerate(layers, 1):
            self.add_module(f"conv{k}", make_conv(n_in, width, size, stride))
            self.add_module(f"bn{k}", nn.BatchNorm2d(width))
            n_in = width

    def forward(self, x: Tensor) -> Tensor:
        """relu(x + f(x))."""
        out = x
        for k in range(1, self.depth + 1):
            out = self.get_submodule(f"bn{k}")(self.get_submodule(f"conv{k}")(out))
            out = self.relu(out) if k < self.depth else out
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the picture from the second on, a linear head.

    A block is two 3 × 3 convolutions; a `large` network, for pictures of 224 × 224, has blocks of 1 × 1, 3 × 3 and
    1 × 1 to four times the width, and a stem that halves the picture twice.
    """

    def __init__(
        self, blocks: Sequence[int], widths: Sequence[int], num_classes: int, channels: int, large: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = make_conv(channels, widths[0], 7, 2) if large else make_conv(channels, widths[0], 3)
        self.bn1, self.relu = nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages = [f"layer{i}" for i in range(1, len(widths) + 1)]
        n_in = widths[0]
        for i, (stage, count, width) in enumerate(zip(self.stages, blocks, widths, strict=True)):
            layers: list[nn.Module] = []
            for stride in (2 if i else 1, *[1] * (count - 1)):
                small = ((width, 3, stride), (width, 3, 1))
                block = Block(n_in, *(((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)) if large else small))
                layers.append(block)
                n_in = block.n_out
            self.add_module(stage, nn.Sequential(*layers))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(n_in, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, K)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def resnet_small(
    num_classes: int = 10,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    widths: Sequence[int] = (16, 32, 64),
    blocks: Sequence[int] = (1, 1, 1),
    seed: int = 0,
) -> nn.Module:
    """For a laptop: `blocks[i]` basic blocks of `widths[i]` channels in stage i."""
    if len(widths) != len(blocks) or not widths or min(*widths, *blocks) < 1:
        raise InputError(f"widths={list(widths)}, blocks={list(blocks)}: give one of each per stage, all ≥ 1")
    with weights_from(seed):
        return ResNet(blocks, widths, num_classes, input_shape[0])


def resnet18(num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), seed: int = 0) -> nn.Module:
    """ResNet-18 for CIFAR."""
    return resnet_small(num_classes, input_shape=input_shape, widths=WIDTHS, blocks=(2, 2, 2, 2), seed=seed)


def resnet34(num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), seed: int = 0) -> nn.Module:
    """ResNet-34 for CIFAR: 21.28M parameters with 10 classes."""
    return resnet_small(num_classes, input_shape=input_shape, widths=WIDTHS, blocks=(3, 4, 6, 3), seed=seed)


def resnet50(num_classes: int = 1000, *, input_shape: Sequence[int] = (3, 224, 224), seed: int = 0) -> nn.Module:
    """ResNet-50 for pictures of 224 × 224."""
    with weights_from(seed):
        return ResNet((3, 4, 6, 3), WIDTHS, num_classes, input_shape[0], large=True)


# ---- weights from a file ----


def load_weights(model: nn.Module, path: str | Path, new_head: bool = False) -> None:
    """Read a state dict (.pt, .pth, .safetensors) into `model`; with `new_head` all but the last linear layer."""
    safe = require("safetensors.torch", extra="train") if Path(path).suffix == ".safetensors" else None
    with name_errors(path, "state dict"):
        state = safe.load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
            raise InputError("does not hold a state dict; save model.state_dict()")
    own, linear = model.state_dict(), [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if new_head and linear:
        state |= {name: own[name] for name in own if name.startswith(f"{linear[-1]}.")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        why = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise InputError(
            f"{path}: the weights are those of another network, or of other classes: {why[:400]}; "
            "new_head=True starts the last layer afresh and reads the rest"
        ) from None


MODELS: dict[str, Callable[..., nn.Module]] = {
    make.__name__: make for make in (linear, mlp, cnn, cnn_batchnorm, resnet_small, resnet18, resnet34, resnet50)
}
