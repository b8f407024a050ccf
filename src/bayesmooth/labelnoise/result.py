"""The noun: the noise of N examples, exact where the logits are Gaussian, and smoothed labels by class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from bayesmooth.errors import InputError
from bayesmooth.theory.links import Categorical
from bayesmooth.theory.noise import effective_labels, expected_noise, linearised_std


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The noise of N examples and what it came from; tensors on the CPU, N rows each."""

    index: Tensor
    """Positions in the data."""
    label: Tensor | None
    """Given labels, where the data has any."""
    logits: Tensor
    """f(m), at the mean of the posterior."""
    averaged: Tensor
    """E_q softmax(f(θ)), the posterior-averaged probabilities."""
    expected: Tensor
    """ε = softmax(f(m)) − E_q softmax(f(θ))  (eq:labelnoiseGLMGD)."""
    logit_variance: Tensor
    """Var_q f_k(θ): how much the posterior moves each logit."""
    sampled: Tensor | None = None
    """softmax(f(m)) − softmax(f(θ)), one draw θ: its mean over draws is ε."""
    linearised: Tensor | None = None
    """−A″(f) ∇f Σ^½e, the same draw to first order  (eq:taylor_noise_nn; the paper drops the minus)."""
    linearised_std: Tensor | None = None
    """The standard deviation of the linearised noise over draws; its mean is zero."""

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        shape = f"{len(self):,} examples × {self.logits.shape[1]} classes"
        return f"LabelNoise({shape}, mean magnitude {float(self.magnitude.mean()):.3g})"

    @property
    def probabilities(self) -> Tensor:
        """softmax(f(m)), the prediction at the mean."""
        return self.logits.softmax(-1)

    @property
    def magnitude(self) -> Tensor:
        """½‖ε‖₁: the probability mass that averaging moves, from 0 to 1. Knows nothing of the label."""
        return self.expected.abs().sum(-1) / 2

    @property
    def smoothed(self) -> Tensor:
        """y − ε, the smoothed labels: below 1 for a confident, correctly labelled example."""
        return nn.functional.one_hot(self._labels(), self.logits.shape[1]) - self.expected

    @property
    def true_class(self) -> Tensor:
        """ε_y, the entry of the given label."""
        return self.expected.gather(1, self._labels()[:, None]).squeeze(1)

    def _labels(self) -> Tensor:
        if self.label is None:
            raise InputError("the data had no labels; give an Examples or batches (inputs, labels)")
        return self.label


def exact_label_noise(logits: Tensor, cov: Tensor, labels: Tensor | None = None) -> LabelNoise:
    """The noise of logits that are Gaussian, N(logits, cov), as those of a linear model are: no sampling error.

    `cov` is (N, K), or (N, K, K) where the logits of an example are correlated.
    """
    noise = expected_noise(logits, cov, Categorical())
    correlated = cov.ndim > logits.ndim
    return LabelNoise(
        index=torch.arange(len(logits), device="cpu"),
        label=labels,
        logits=logits,
        averaged=logits.softmax(-1) - noise,
        expected=noise,
        logit_variance=cov.diagonal(dim1=-2, dim2=-1) if correlated else cov,
        linearised_std=linearised_std(logits, cov, Categorical()),
    )


def smoothed_labels_by_class(
    methods: Mapping[str, Callable[..., Tensor] | LabelNoise],
    logits: Tensor,
    labels: Tensor,
    **extra: Any,
) -> dict[str, Tensor]:
    """For each method, (K, K): row c is the mean smoothed label of the examples labelled c.

    A method is a loss (its effective labels t = p − ∂L/∂z at these logits; `extra` goes to the losses) or a
    `LabelNoise` (its smoothed labels y − ε). A class without examples has a row of NaN.
    """
    return {
        name: _class_means(method.smoothed, method._labels())
        if isinstance(method, LabelNoise)
        else _class_means(effective_labels(method, logits, labels, **extra), labels)
        for name, method in methods.items()
    }


def join(parts: list[LabelNoise]) -> LabelNoise:
    """Pieces as one."""
    if not parts:
        raise InputError("the data is empty; give at least one example")
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(LabelNoise)}
    return LabelNoise(
        **{k: None if v[0] is None else torch.cat(v) for k, v in columns.items()}  # type: ignore[arg-type]
    )


def _class_means(values: Tensor, labels: Tensor) -> Tensor:
    classes = values.shape[1]
    sums = values.new_zeros(classes, classes).index_add_(0, labels, values)
    return sums / torch.bincount(labels, minlength=classes)[:, None]
