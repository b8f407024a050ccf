"""ALASCA: smoothing by example, on auxiliary heads inside the network, so that its features learn from soft labels."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.losses.auxiliary import (
    AuxiliaryHead,
    Tap,
    check_features,
    declared_shape,
    find_stage,
    observed_shapes,
)
from bayesmooth.losses.base import Loss, Reduction, check_index, pick, within
from bayesmooth.losses.label_smoothing import smoothed_cross_entropy


class ALASCA(Loss):
    """L = −log p_y + λ Σ_h CE(head h, t) with t = a on the label and (1−a)/(K−1) on each other class.

    The main output is not smoothed (its ε is 0). The kept confidence a is softmax(e/T)_y of e ← μe + (1−μ)z, the moving
    average of the example's own logits; while epoch < warmup it is mixed with 1. In evaluation mode the loss is
    cross-entropy: the heads are there to train the features.

    `attach(model)` builds a head behind each of the model's named stages, before the optimizer is built: the heads are
    parameters of the loss. Forward needs `index` (B,), the examples' positions in the training set, and `epoch`.
    The averages take 4·N·K bytes, and each rank of torch.distributed keeps its own. Without them (Clothing1M):
    momentum=0, temperature=1, warmup=3.

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

        With an `example_input` (a batch) the shapes come from a dry run, and kernels fit small images; without one the
        channels are those of each stage's last convolution.
        """
        stages = {name: find_stage(model, name) for name in self.stages}
        if not self.heads:
            if example_input is None:
                shapes = [declared_shape(name, stage) for name, stage in stages.items()]
            else:
                shapes = observed_shapes(model, stages, example_input)
            self._build(shapes, next(model.parameters()))
        while self._hooks:
            self._hooks.pop().remove()
        for name, stage in stages.items():
            self._hooks.append(stage.register_forward_hook(Tap(name, self._features)))

    def _build(self, shapes: list[tuple[int, int]], like: Tensor) -> None:
        """Heads of the paper's ResNet: strides 8, 4, 2, and twice the last stage's width."""
        generator = torch.Generator().manual_seed(self.seed)
        width = 2 * shapes[-1][0]
        for place, (channels, size) in enumerate(shapes):
            stride = min(2 ** (len(shapes) - place), size)
            head = AuxiliaryHead(channels, width, stride, self.ema.shape[1], generator)
            self.heads.append(head.to(like.device))

    def per_example(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        index: Tensor | None = None,
        epoch: float | None = None,
        **extra: Any,
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
        auxiliary = [
            smoothed_cross_entropy(z.log_softmax(1), labels, rate, "others") for z in outputs
        ]
        return main + self.weight * torch.stack(auxiliary).sum(0)

    def _head_outputs(self, features: list[Tensor | None], batch: int) -> list[Tensor]:
        seen = [f for f in features if f is not None and len(f) == batch]
        if not self.heads or len(seen) < len(self.stages):
            raise InputError(
                f"ALASCA has the features of {len(seen)} of the stages {', '.join(self.stages)} for this batch: must "
                "have all; call attach(model), then the model with gradients, then the loss"
            )
        return [
            head(check_features(name, head, feature)).float()
            for name, head, feature in zip(self.stages, self.heads, seen, strict=True)
        ]

    @torch.no_grad()
    def _kept_confidence(
        self, logits: Tensor, labels: Tensor, index: Tensor, epoch: float
    ) -> Tensor:
        """a = softmax(e/T)_y after e ← μe + (1−μ)z, mixed with 1 during the warm-up."""
        average = self.ema.index_select(0, index).lerp_(
            logits.to(self.ema.dtype), 1 - self.momentum
        )
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
