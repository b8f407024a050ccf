"""Residual networks (He et al., 2016), with the parameter names that public weights use.

Stages are `layer1`, `layer2`, …; the head is `fc`. Networks for CIFAR open with a 3 × 3 convolution
and no pooling, so that pictures of 32 × 32 keep their size in the first stage.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.models.initial import weights_from


def conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution before a batch norm: no bias, the size kept up to the stride."""
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    """x + f(x), with a projection of x where the shape changes; a subclass gives f as `body`."""

    expansion = 1

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))
        self.relu = nn.ReLU(inplace=True)

    def body(self, x: Tensor) -> Tensor:
        """f."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """relu(x + f(x))."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.body(x) + shortcut)  # type: ignore[no-any-return]


class Basic(Residual):
    """Two 3 × 3 convolutions."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__(n_in, width, stride)
        self.conv1, self.bn1 = conv(n_in, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3), nn.BatchNorm2d(width)

    def body(self, x: Tensor) -> Tensor:
        """f."""
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))  # type: ignore[no-any-return]


class Bottleneck(Residual):
    """1 × 1, 3 × 3 (with the stride), 1 × 1 to four times the width."""

    expansion = 4

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__(n_in, 4 * width, stride)
        self.conv1, self.bn1 = conv(n_in, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)

    def body(self, x: Tensor) -> Tensor:
        """f."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the picture from the second on, a linear head."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        blocks: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        channels: int,
        large: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, widths[0], 7, 2) if large else conv(channels, widths[0], 3)
        self.bn1, self.relu = nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages = [f"layer{i}" for i in range(1, len(widths) + 1)]
        n_in = widths[0]
        for i, (stage, count, width) in enumerate(zip(self.stages, blocks, widths, strict=True)):
            n_out = width * block.expansion
            first = block(n_in, width, 2 if i else 1)
            rest = [block(n_out, width, 1) for _ in range(count - 1)]
            self.add_module(stage, nn.Sequential(first, *rest))
            n_in = n_out
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
        raise InputError(
            f"widths={list(widths)}, blocks={list(blocks)}: give one of each per stage, all ≥ 1"
        )
    with weights_from(seed):
        return ResNet(Basic, blocks, widths, num_classes, input_shape[0])


def resnet18(
    num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), seed: int = 0
) -> nn.Module:
    """ResNet-18 for CIFAR."""
    with weights_from(seed):
        return ResNet(Basic, (2, 2, 2, 2), (64, 128, 256, 512), num_classes, input_shape[0])


def resnet34(
    num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), seed: int = 0
) -> nn.Module:
    """ResNet-34 for CIFAR: 21.28M parameters with 10 classes."""
    with weights_from(seed):
        return ResNet(Basic, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, input_shape[0])


def resnet50(
    num_classes: int = 1000, *, input_shape: Sequence[int] = (3, 224, 224), seed: int = 0
) -> nn.Module:
    """ResNet-50 for pictures of 224 × 224."""
    widths = (64, 128, 256, 512)
    with weights_from(seed):
        return ResNet(Bottleneck, (3, 4, 6, 3), widths, num_classes, input_shape[0], large=True)
