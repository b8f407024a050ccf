"""The base of all losses, and the two plainest: cross-entropy, the measure of the others, and label smoothing."""

from math import inf
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesmooth.errors import InputError, one_of

Reduction = Literal["mean", "sum", "none"]


class Loss(nn.Module):
    """`loss(logits, labels, **extra)` for logits (B, K) and labels (B,) in 0…K−1.

    A method implements `per_example`. It takes its keys of `extra` and ignores the rest; `needs` names those that the
    training loop must pass: "index" (B,) positions in the training set, "past" (B, K) probabilities of the past self,
    "epoch" as a float. A constructor that depends on the data takes `num_classes` and `num_examples`. A loss that needs
    the index learns something about every example; in evaluation mode it is cross-entropy and does without.
    With `partner` and `share` the inputs were mixed (mixup): the loss is that of the row's label and of its partner's.
    State that must survive a restart is a buffer or a parameter; parameters are trained beside the model's.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, reduction: Reduction = "mean", num_classes: int | None = None, num_examples: int = 0) -> None:
        super().__init__()
        self.reduction = one_of("reduction", reduction, ("mean", "sum", "none"))
        self.num_classes, self.num_examples = num_classes, num_examples
        if num_classes is not None:
            within("num_classes", num_classes, "count the classes of the labels", low=2)

    def forward(
        self, logits: Tensor, labels: Tensor, *, partner: Tensor | None = None, share: float = 1.0, **extra: Any
    ) -> Tensor:
        """The loss of a batch: a scalar, or (B,) with reduction="none".

        Of inputs share·x + (1 − share)·x[partner] it is share·L(z, y) + (1 − share)·L(z, y[partner]).
        """
        check_batch(logits, labels)
        if self.num_classes not in (None, logits.shape[1]):
            raise InputError(
                f"logits of {logits.shape[1]} classes: {type(self).__name__} was built for {self.num_classes}; "
                f"build it for the width of the model's last layer"
            )
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        if "index" in self.needs and self.training:
            self.check_index(extra.get("index"), labels)
            extra["index"] = extra["index"].long()
        labels = labels.long()
        values = self.per_example(logits, labels, **extra)
        if partner is not None:
            extra |= {key: extra[key][partner] for key in ("index", "alpha") if isinstance(extra.get(key), Tensor)}
            values = share * values + (1 - share) * self.per_example(logits, labels[partner], **extra)
        return values if self.reduction == "none" else getattr(values, self.reduction)()

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """(B,) losses of checked logits, at least float32, and int64 labels."""
        raise NotImplementedError

    def attach(self, model: nn.Module, example_input: Tensor | None = None) -> None:
        """Called once, before the optimizer is built, for methods that look inside the model."""

    def end_epoch(self) -> None:
        """Called after the last batch of every epoch."""

    def check_index(self, index: Tensor | None, labels: Tensor) -> None:
        """(B,) integer positions in the training set."""
        if index is None or index.shape != labels.shape or index.is_floating_point():
            given = None if index is None else f"shape {tuple(index.shape)} and {index.dtype}"
            raise InputError(
                f"index of {given} for {len(labels)} examples: {type(self).__name__} needs one per example; "
                "pass index=(batch,) integer positions in the training set"
            )
        check_range("index", index, self.num_examples, "build the loss with num_examples=len(examples)")


class CrossEntropy(Loss):
    """L = −log p_y, and ε = 0.

    >>> CrossEntropy()(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """

    def per_example(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:
        """−log p_y."""
        return F.cross_entropy(logits, labels, reduction="none")


class LabelSmoothing(Loss):
    """L = −Σ_j t_j log p_j with the label t = (1−α)y + αu  (equ: label smoothing def), so ε = α(u − y).

    With form="uniform" u is 1/K on every class, including the true one, as in `torch.nn.functional.cross_entropy`. With
    form="others" it is 1/(K−1) on the others and 0 on the true class; α there is α(K−1)/K here.

    One rate per example (as structural smoothing has) is passed as `alpha=`, of shape (B,).

    References: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
    """

    def __init__(
        self, alpha: float = 0.1, *, form: Literal["uniform", "others"] = "uniform", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.alpha = within("alpha", alpha, "0 is plain cross-entropy", high=1)
        self.form = one_of("form", form, ("uniform", "others"))

    def per_example(self, logits: Tensor, labels: Tensor, *, alpha: Tensor | None = None, **extra: Any) -> Tensor:
        """−Σ_j t_j log p_j."""
        if alpha is not None and alpha.shape != labels.shape:
            raise InputError(
                f"alpha of shape {tuple(alpha.shape)} for {len(labels)} examples: must be one rate per example; "
                "pass a tensor of shape (batch,), or a float to the constructor"
            )
        rate = self.alpha if alpha is None else alpha
        return smoothed_cross_entropy(logits.log_softmax(1), labels, rate, self.form)


def smoothed_cross_entropy(log_probs: Tensor, labels: Tensor, rate: float | Tensor, form: str) -> Tensor:
    """−Σ_j t_j log p_j where t has o on each class and 1 − Ko more on the true one; `rate` may be (B,)."""
    K = log_probs.shape[1]
    off_class = rate / (K if form == "uniform" else K - 1)
    true_class = F.nll_loss(log_probs, labels, reduction="none")
    return (1 - K * off_class) * true_class - off_class * log_probs.sum(1)


# ---- small things that losses are made of ----


def pick(values: Tensor, labels: Tensor) -> Tensor:
    """values[n, labels[n]], (B,)."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Σ_j a_nj b_nj, (B,)."""
    return (a * b).sum(1)


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """(B, K) floating logits and (B,) integer labels in 0…K−1, B ≥ 1, K ≥ 2."""
    if logits.ndim != 2 or not logits.is_floating_point() or len(logits) == 0 or logits.shape[1] < 2:
        raise InputError(
            f"logits of shape {tuple(logits.shape)} and {logits.dtype}: must be (batch, classes), floating, with at "
            "least 1 row and 2 classes; flatten other dimensions into the batch, for one logit f pass the pair (0, f)"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(
            f"labels of {labels.dtype}: must be integer class numbers; "
            "use labels.long(), or labels.argmax(1) for one-hot rows"
        )
    if labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels of shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}: "
            "must be one label per row; pass labels of shape (batch,)"
        )
    check_range("label", labels, logits.shape[1], "drop ignored examples, count classes from 0")


def check_range(name: str, values: Tensor, size: int, way_out: str) -> None:
    """Integers in 0…size−1.

    Only on the CPU and outside of compiled graphs: reading values from an accelerator would make every step wait, and
    its indexing kernel checks them.
    """
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in torch.aminmax(values))
        if low < 0 or high >= size:
            raise InputError(f"{name} {low if low < 0 else high}: must be in 0…{size - 1}; {way_out}")


def within(name: str, value: float, way_out: str, low: float = 0.0, high: float = inf) -> float:
    """The value of an option, which must lie in [low, high]."""
    if not low <= value <= high:
        raise InputError(f"{name}={value}: must be in [{low:g}, {high:g}]; {way_out}")
    return value
