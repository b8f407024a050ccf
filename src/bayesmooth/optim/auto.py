"""What IVON can set by itself before the first step: h₀ from the weights and the length of training, β₂ from its steps.

All weights start with the same noise σ₀ = 1/√(λ(h₀ + δ)), and what counts is its size relative to the weights: L layers
whose weights have root mean square s add noise of about

    C = √L σ₀/s

times the signal. A wrong label is memorised visit by visit, so the noise that prevents it grows with the way that
the weights can go: C = K √(α · epochs), up to a limit beyond which nothing is learned. A network without normalisation
layers bears less of it; one that has them needs more for two classes, whose wrong labels all point the same way. A
network that sees few numbers can hardly tell single examples apart, so it needs little. The constants were chosen on
half of the cells of `python -m benchmarks regret`, on those of `results/choices/tuning.txt`, and on `tables`;
docs/settings.md has the figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import Any

from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optim.sharding import whole

STRENGTH = 0.95  # K
LIMIT = 2.0  # of C
WITHOUT_NORMALISATION = 0.7  # times that much noise
TWO_CLASSES = 1.4  # times as much, with normalisation
MANY_INPUTS = 16  # d inputs of a fully connected network get (d/16)² times as much, at most once
# h₀ must be positive, also where weight decay alone gives more precision than is wanted.
SMALLEST = 1e-6


def auto_beta2(steps: int | None) -> float:
    """β₂ = 1 − 2/steps: by the end h has forgotten all but e⁻² of its start, as in the paper's 200,000 steps.

    >>> auto_beta2(200_000)
    0.99999
    """
    if steps is None or steps < 1:
        raise InputError(
            f"beta2='auto' with steps={steps}: needs the number of optimizer steps of the run, ≥ 1; "
            "give steps=, or a number for beta2"
        )
    return 1 - 2 / max(steps, 2)


def auto_hess_init(
    params: Iterable[Any],
    *,
    lr: float,
    ess: float,
    weight_decay: float,
    epochs: float | None,
    noise: float | None = None,
) -> float:
    """h₀ = 1/(λσ₀²) − δ for `params` in any form that an optimizer takes; `noise` multiplies σ₀, None is 1."""
    if epochs is None or not epochs > 0:
        raise InputError(
            f"hess_init='auto' with epochs={epochs}: needs how often the run visits each example, > 0; "
            "give epochs=, or a number for hess_init"
        )
    weights = [p.detach() for p in tensors(params) if p.requires_grad]
    size, layers = size_of_matrices(weights)
    factor = 1.0 if noise is None else noise
    std = factor * relative_noise(weights, lr, epochs) * size / sqrt(max(layers, 1))
    if not std > 0:
        raise InputError(
            f"hess_init='auto' with lr={lr}, noise={factor} and {layers} matrices that are not zero: there is "
            "nothing to measure the noise by; give hess_init a number, 0.1 to 1 is usual"
        )
    return max(1 / (ess * std**2) - weight_decay, SMALLEST)


def relative_noise(weights: Iterable[Tensor], lr: float, epochs: float) -> float:
    """C."""
    weights = list(weights)
    matrices = [weight for weight in weights if weight.ndim > 1]
    factor = 1.0
    if not any(map(is_gain, weights)):
        factor = WITHOUT_NORMALISATION
    elif matrices and matrices[-1].shape[0] <= 2:
        factor = TWO_CLASSES
    if matrices and matrices[0].ndim == 2:
        factor *= min(matrices[0].shape[1] / MANY_INPUTS, 1) ** 2
    return factor * min(STRENGTH * sqrt(lr * epochs), LIMIT)


def is_gain(weight: Tensor) -> bool:
    """Whether it can be the gain of a normalisation: a vector of ones, or of many positive numbers.

    Biases have both signs or are 0; but those of a few classes may all be positive by chance.
    """
    if weight.ndim != 1 or weight.numel() < 2:
        return False
    low, high = (float(whole(bound)) for bound in (weight.min(), weight.max()))
    return low == high == 1 or (low > 0 and weight.numel() >= 16)


def size_of_matrices(weights: Iterable[Tensor]) -> tuple[float, int]:
    """Root mean square of all weights in matrices and kernels, and how many of these there are.

    Matrices of zeros do not count: they pass no signal on.
    """
    matrices = [weight for weight in weights if weight.ndim > 1]
    squares = [(float(whole(m.double().square().sum())), m.numel()) for m in matrices]
    passing = [(square, size) for square, size in squares if square > 0]
    total = sum(size for _, size in passing)
    return sqrt(sum(square for square, _ in passing) / max(total, 1)), len(passing)


def tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in what an optimizer takes: tensors, named tensors, or groups of those."""
    for entry in params:
        if isinstance(entry, Mapping):
            inside = entry["params"]
            yield from tensors([inside] if isinstance(inside, Tensor) else inside)
        else:
            yield entry[1] if isinstance(entry, tuple) else entry
