"""ALASCA: smoothing by example, on auxiliary heads inside the network, so that its features learn from soft labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.calling import evaluating
from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, Reduction, check_index, pick, within
from bayesmooth.losses.label_smoothing import smoothed_cross_entropy

Shape = tuple[int, int]  # channels, and the shorter side of the image


class ALASCA(Loss):
    """L = −log p_y + λ Σ_h CE(head h, t) with t = a on the label and (1−a)/(K−1) on each other class.

    The main output is not smoothed (its ε is 0). The kept confidence a is softmax(e/T)_y of e ← μe + (1−μ)z, the moving
    average of the example's own logits; while epoch < warmup it is mixed with 1. In evaluation mode the loss is
    cross-entropy: the heads are there to train the features.

    `attach(model, inputs)` builds a head behind each of the model's named stages, before the optimizer is built: the
    heads are parameters of the loss. Forward needs `index` (B,), the examples' positions in the training set, and
    `epoch`. The averages take 4·N·K bytes, and each rank of torch.distributed keeps its own. Without them
    (Clothing1M): momentum=0, temperature=1, warmup=3.

    References: Ko et al., A Gift from Label Smoothing: Robust Training with Adaptive Label Smoothing via Auxiliary
    Classifier under Label Noise, AAAI 2023.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index", "epoch"})
    ema: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        weight: float = 2.0,
        momentum: float = 0.7,
        temperature: float = 0.333,
        warmup: float = 30.0,
        stages: Sequence[str] = ("layer1", "layer2", "layer3"),
        seed: int = 0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        infinity = float("inf")
        within("num_examples", num_examples, 1, infinity, "give the size of the training set")
        within("num_classes", num_classes, 2, infinity, "count the classes of the labels")
        self.weight = within("weight", weight, 0, infinity, "0 is plain cross-entropy")
        self.momentum = within("momentum", momentum, 0, 1, "0 keeps no average")
        self.temperature = within("temperature", temperature, 1e-6, infinity, "1 is plain softmax")
        self.warmup = within("warmup", warmup, 0, infinity, "0 smooths from the start")
        self.stages = tuple(stages)
        self.seed = seed
        self.heads = nn.ModuleList()
        self.register_buffer("ema", torch.zeros(num_examples, num_classes, dtype=torch.float32))
        self._features: dict[str, Tensor] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def attach(self, model: nn.Module, example_input: Tensor | None = None) -> None:
        """Listen to the stages of the model, and build their heads where there are none yet.

        Their shapes come from a dry run of the first example of `example_input`, a batch.
        """
        stages = {name: find_stage(model, name) for name in self.stages}
        if not self.heads:
            if example_input is None:
                raise InputError("ALASCA has no heads yet; call attach(model, example_input) with a batch")
            self._build(observed_shapes(model, stages, example_input), next(model.parameters()))
        while self._hooks:
            self._hooks.pop().remove()
        for name, stage in stages.items():
            self._hooks.append(stage.register_forward_hook(Tap(name, self._features)))

    def _build(self, shapes: list[Shape], like: Tensor) -> None:
        """Heads of the paper's ResNet: strides 8, 4, 2, and twice the last stage's width."""
        generator = torch.Generator().manual_seed(self.seed)
        width = 2 * shapes[-1][0]
        for place, (channels, size) in enumerate(shapes):
            stride = min(2 ** (len(shapes) - place), size)
            head = AuxiliaryHead(channels, width, stride, self.ema.shape[1], generator)
            self.heads.append(head.to(like.device))

    def per_example(
        self, logits: Tensor, labels: Tensor, *, index: Tensor | None = None, epoch: float | None = None, **extra: Any
    ) -> Tensor:
        """Cross-entropy of the main output, and of the heads with smoothed labels in training mode."""
        self.check_classes(logits, self.ema.shape[1])
        main = F.cross_entropy(logits, labels, reduction="none")
        features = [self._features.pop(name, None) for name in self.stages]
        if not self.training:
            return main
        index = check_index(index, labels, len(self.ema), "ALASCA")
        if epoch is None:
            raise InputError("epoch=None: ALASCA needs it; pass epoch=the epochs so far")
        outputs = self._head_outputs(features, len(labels))
        rate = 1 - self._kept_confidence(logits.detach(), labels, index, epoch)
        auxiliary = [smoothed_cross_entropy(z.log_softmax(1), labels, rate, "others") for z in outputs]
        return main + self.weight * torch.stack(auxiliary).sum(0)

    def _head_outputs(self, features: list[Tensor | None], batch: int) -> list[Tensor]:
        seen = [f for f in features if f is not None and len(f) == batch]
        if not self.heads or len(seen) < len(self.stages):
            raise InputError(
                f"ALASCA has the features of {len(seen)} of the stages {', '.join(self.stages)} for this batch: must "
                "have all; call attach(model, inputs), then the model with gradients, then the loss"
            )
        return [
            head(check_features(name, head, feature)).float()
            for name, head, feature in zip(self.stages, self.heads, seen, strict=True)
        ]

    @torch.no_grad()
    def _kept_confidence(self, logits: Tensor, labels: Tensor, index: Tensor, epoch: float) -> Tensor:
        """a = softmax(e/T)_y after e ← μe + (1−μ)z, mixed with 1 during the warm-up."""
        average = self.ema.index_select(0, index).lerp_(logits.to(self.ema.dtype), 1 - self.momentum)
        self.ema.index_copy_(0, index, average)
        confidence = pick(average.div_(self.temperature).log_softmax(1), labels).exp_()
        ready = 1.0 if epoch >= self.warmup else epoch / self.warmup
        return ready * confidence + (1 - ready)

    def __copy__(self) -> "ALASCA":
        """A shallow copy may read the same features once; the original keeps them."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, _features=dict(self._features), _hooks=[])
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """A copy is attached to no model; `attach` it to one, and it keeps its heads."""
        return {**self.__dict__, "_features": {}, "_hooks": []}


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

    def __init__(self, channels: int, width: int, stride: int, num_classes: int, generator: torch.Generator) -> None:
        middle = max(width // 4, 1)
        empty: Callable[..., nn.Module] = nn.utils.skip_init  # the global generator stays untouched
        layers: list[nn.Module] = []
        for before, after, size in ((channels, middle, 1), (middle, middle, stride), (middle, width, 1)):
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


@torch.no_grad()
def observed_shapes(model: nn.Module, stages: Mapping[str, nn.Module], example_input: Tensor) -> list[Shape]:
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
            f"channels of side ≥ {head.stride}; attach a new loss with an input of this size"
        )
    return features


def _image_shape(name: str, output: Any) -> Shape:
    if not isinstance(output, Tensor) or output.ndim != 4:
        raise InputError(
            f"stage {name!r} gives {getattr(output, 'shape', type(output))}: must be images (batch, channels, "
            "height, width); name convolutional stages"
        )
    return output.shape[1], min(output.shape[2:])
