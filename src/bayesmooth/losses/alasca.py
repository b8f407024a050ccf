"""ALASCA: smoothing by example, on auxiliary heads inside the network, so that its features learn from soft labels."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.calling import evaluating
from bayesmooth.errors import InputError
from bayesmooth.losses.base import Loss, Reduction, pick, smoothed_cross_entropy, within


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
        super().__init__(reduction, num_classes, num_examples)
        self.weight = within("weight", weight, "0 is plain cross-entropy")
        self.momentum = within("momentum", momentum, "0 keeps no average", high=1)
        self.temperature = within("temperature", temperature, "1 is plain softmax", low=1e-6)
        self.warmup = within("warmup", warmup, "0 smooths from the start")
        self.seed = seed
        self.heads = nn.ModuleList()
        self.taps = {name: Tap() for name in stages}
        self.register_buffer("ema", torch.zeros(num_examples, num_classes, dtype=torch.float32))

    def attach(self, model: nn.Module, example_input: Tensor | None = None) -> None:
        """Listen to the stages of the model, and build their heads where there are none yet.

        Their shapes come from a dry run of the first example of `example_input`, a batch.
        """
        for name, tap in self.taps.items():
            try:
                tap.listen(model.get_submodule(name))
            except AttributeError:
                names = ", ".join(child for child, _ in model.named_children())
                raise InputError(
                    f"stage {name!r}: the model has no such module, only {names}; pass stages=(…) by their dotted names"
                ) from None
        if not self.heads:
            if example_input is None:
                raise InputError("ALASCA has no heads yet; call attach(model, example_input) with a batch")
            with evaluating(model), torch.enable_grad():
                model(example_input[:1])
            self._build_heads({name: tap.output for name, tap in self.taps.items()})

    def _build_heads(self, features: dict[str, Tensor | None]) -> None:
        """Heads of the paper's ResNet: strides 8, 4, 2, and twice the last stage's width."""
        images = [output for output in features.values() if isinstance(output, Tensor) and output.ndim == 4]
        if len(images) < len(features):
            given = {name: getattr(output, "shape", None) for name, output in features.items()}
            raise InputError(f"stages give {given}: must be images (batch, channels, height, width); name such stages")
        generator = torch.Generator().manual_seed(self.seed)
        for place, output in enumerate(images):
            stride = min(2 ** (len(images) - place), *output.shape[2:])
            head = make_head(output.shape[1], 2 * images[-1].shape[1], stride, self.ema.shape[1], generator)
            self.heads.append(head.to(output.device))

    def per_example(self, logits: Tensor, labels: Tensor, *, epoch: float | None = None, **extra: Any) -> Tensor:
        """Cross-entropy of the main output, and of the heads with smoothed labels in training mode."""
        main = F.cross_entropy(logits, labels, reduction="none")
        if not self.training:
            return main
        if epoch is None:
            raise InputError("epoch=None: ALASCA needs it; pass epoch=the epochs so far")
        features = [tap.output for tap in self.taps.values()]
        seen = [feature for feature in features if feature is not None and len(feature) == len(labels)]
        if not self.heads or len(seen) < len(features):
            raise InputError(
                f"ALASCA has the features of {len(seen)} of the stages {', '.join(self.taps)} for this batch: must "
                "have all; call attach(model, inputs), then the model with gradients, then the loss"
            )
        outputs = [head(feature).float() for head, feature in zip(self.heads, seen, strict=True)]
        rate = 1 - self._keep_confidence(logits.detach(), labels, extra["index"], epoch)
        auxiliary = [smoothed_cross_entropy(z.log_softmax(1), labels, rate, "others") for z in outputs]
        return main + self.weight * torch.stack(auxiliary).sum(0)

    @torch.no_grad()
    def _keep_confidence(self, logits: Tensor, labels: Tensor, index: Tensor, epoch: float) -> Tensor:
        """a = softmax(e/T)_y after e ← μe + (1−μ)z, mixed with 1 during the warm-up."""
        average = self.ema.index_select(0, index).lerp_(logits.to(self.ema.dtype), 1 - self.momentum)
        self.ema.index_copy_(0, index, average)
        confidence = pick(average.div_(self.temperature).log_softmax(1), labels).exp_()
        ready = 1.0 if epoch >= self.warmup else epoch / self.warmup
        return ready * confidence + (1 - ready)


class Tap:
    """A forward hook that keeps the last output of the stage it listens to; a copy listens to none."""

    def __init__(self) -> None:
        self.output: Tensor | None = None
        self.handle: torch.utils.hooks.RemovableHandle | None = None

    def listen(self, stage: nn.Module) -> None:
        """Leave the stage before, if any, and listen to this one."""
        if self.handle is not None:
            self.handle.remove()
        self.handle = stage.register_forward_hook(self)

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Keep the output if it has gradients: an evaluation pass must not hold on to its features."""
        self.output = output if self.handle is not None and torch.is_grad_enabled() else None

    def __reduce__(self) -> tuple[type["Tap"], tuple[()]]:
        return Tap, ()


def make_head(channels: int, width: int, stride: int, num_classes: int, generator: torch.Generator) -> nn.Sequential:
    """1×1 → k×k with stride k → 1×1, each with BatchNorm and ReLU, then the mean over the image and a linear layer."""
    middle = max(width // 4, 1)
    empty: Callable[..., nn.Module] = nn.utils.skip_init  # the global generator stays untouched
    layers: list[nn.Module] = []
    for before, after, size in ((channels, middle, 1), (middle, middle, stride), (middle, width, 1)):
        layers += [empty(nn.Conv2d, before, after, size, stride=size), nn.BatchNorm2d(after), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), empty(nn.Linear, width, num_classes)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.get_parameter("bias"))
    return nn.Sequential(*layers)
