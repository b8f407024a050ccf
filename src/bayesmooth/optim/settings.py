"""IVON's measurements: the size of each tensor, to which noise and step are relative, and the state of σ and h.

With `noise=c`, alg:ivon has one h₀ and one rate per tensor. L matrices whose weights have root mean square s_l get

    σ_l = c s_l/√L,   so that h_l has the mean L/(λ (c s_l)²), and
    α_l = lr s_l · mean(h_l)/rms(ĝ_l),

where rms(ĝ_l) is a running root mean square of the tensor's own gradients: a step along the momentum moves a tensor by
about lr of its size. Both follow the tensor as it grows, h keeps the relative shape inside it, and it does not matter
in which units a layer is written, nor which layers stand beside it. Vectors (biases, gains) need little noise, and
their own size says little: a bias may start at zero. A matrix of zeros (adapters, some heads) passes no signal on, and
counts as a share of a usual first draw.

lr and c are dimensionless; `fitting/choose.py` lets held-out labels choose them.
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from bayesmooth.calling import take_labels
from bayesmooth.errors import InputError
from bayesmooth.optim.params import find_param_name, measure_norms, whole
from bayesmooth.optim.samples import Weight

# The least size of a vector, and its share of a matrix's noise. Set by hand; the tests of networks that are written in
# other ways (filled biases, PReLU, LayerScale, weight_norm) hold it.
VECTOR = 0.1
# Size of a matrix of zeros, as a share of Glorot's √(2/(inputs + outputs)). It hardly matters: adapters reach 50.2 %
# with it, and 50.0 % with 1/√(3 inputs) (results/choices/fit.txt).
ZEROS = 0.3
NORM_BETA = 0.99  # of the running mean of ‖ĝ‖²: a hundred steps, as in Adam's second moment at β₂ = 0.99
CLOSE = 0.01  # h is set anew where a tensor's size is off by 1 %: less than anyone can tell in σ


def choose_beta2(steps: int | None) -> float:
    """β₂ = 1 − 2/steps: by the end h has forgotten all but e⁻² of its start, as in the paper's 200,000 steps.

    >>> choose_beta2(200_000) == choose_beta2(None) == 0.99999
    True
    """
    if steps is None:
        return 0.99999
    if steps < 1:
        raise InputError(f"steps={steps}: must be ≥ 1, the optimizer steps of the run; leave it out")
    return 1 - 2 / max(steps, 2)


def count_examples(batches: Any) -> int:
    """The number of examples that a loader, or a list of batches, gives in an epoch."""
    try:
        length = 0 if isinstance(batches, Iterator) else len(batches)
    except TypeError:  # a stream, or a loader of one
        length = 0
    if not length:
        raise InputError(f"batches: a {type(batches).__name__} without a length, or empty; give a loader or a list")
    for counted in (getattr(batches, "sampler", None), getattr(batches, "dataset", None)):  # a sampler may take a part
        if counted is not None and hasattr(counted, "__len__"):
            return len(counted) * getattr(counted, "num_replicas", 1)  # a DistributedSampler counts those of its rank
    return sum(len(take_labels(batch)) for batch in batches)


def count_steps(batches: Any, epochs: float) -> int:
    """The number of batches in so many epochs."""
    if not 0 < epochs < math.inf:
        raise InputError(f"epochs={epochs}: must be > 0, and finite; 20 is a start")
    return max(round(epochs * len(batches)), 1)


# ---- sizes ----


def is_matrix(weight: Tensor) -> bool:
    """Whether each output has several inputs; `weight_norm` writes its vector of lengths as a matrix of one column."""
    return weight.ndim > 1 and weight[:1].numel() > 1


def follow_sizes(weights: list[Weight]) -> None:
    """h of each tensor to the mean that its size and `noise` ask for; it keeps its shape, once it has one."""
    layers = sum(is_matrix(w.param) for w in weights)
    norms = measure_norms([w.state.get("mean", w.param).detach() for w in weights]).tolist()
    for w, norm in zip(weights, norms, strict=True):
        fresh = "size" not in w.state
        if fresh:
            w.state["zeros"] = norm == 0
        size = max(norm / math.sqrt(max(w.param.numel(), 1)), _least_size(w))
        share = 1.0 if is_matrix(w.param) else VECTOR
        std = share * w.group["noise"] * size / math.sqrt(max(layers, 1))
        wanted = max(1 / (float(w.group["ess"]) * std**2), 1e-30)  # a run may diverge
        mean = 0.0 if fresh else float(whole(w.state["hess"].mean()))
        if mean <= 0:
            w.state["hess"].fill_(wanted)
        elif abs(wanted / mean - 1) > CLOSE:
            w.state["hess"].mul_(wanted / mean)
        w.state["size"], w.state["level"] = size, wanted


def _least_size(w: Weight) -> float:
    """The least size of a tensor, for one whose root mean square says little."""
    if not is_matrix(w.param):
        return VECTOR
    if not w.state["zeros"]:
        return 1e-30
    outputs, inputs = w.param.shape[:2]
    return ZEROS * math.sqrt(2 / ((inputs + outputs) * w.param[:1, :1].numel()))


def find_rates(weights: list[Weight], samples: int, scale: float) -> dict[Weight, float]:
    """size · mean(h)/rms(ĝ) of each tensor, with this step's gradient; `scale` multiplies gradients."""
    if any(w.sums and w.sharded for w in weights):
        raise InputError("noise= with several samples per step of sharded weights: their sums are local; take one")
    grads = [w.sums[0] / samples if w.sums else w.pending if w.sharded else w.gradient() for w in weights]
    rates = {}
    for w, norm in zip(weights, measure_norms([grad for grad in grads if grad is not None]).tolist(), strict=True):
        square, mass = w.state.get("square", 0.0), w.state.get("mass", 0.0)
        w.state["square"] = NORM_BETA * square + (1 - NORM_BETA) * (scale * norm) ** 2
        w.state["mass"] = NORM_BETA * mass + 1 - NORM_BETA
        rms = math.sqrt(w.state["square"] / w.state["mass"] / max(w.param.numel(), 1))
        rates[w] = w.state["size"] * w.state["level"] / rms if rms > 0 else 0.0
    return rates


# ---- diagnostics ----


def describe_weights(stds: dict[Weight, Tensor]) -> dict[str, Any]:
    """The figures that `IVON.diagnostics` documents, from σ of every weight."""
    size, moved, left, layers = 0, 0, 0.0, {}
    for w, std in stds.items():
        h0, β2 = w.state.get("level", w.group["hess_init"]), w.group["beta2"]
        size += w.local.numel()
        moved += int(((w.hess - h0).abs() > 0.01 * h0).sum())
        # Line 4 with ĥ = 0: the part of h₀ that decay leaves, with any data.
        left += w.local.numel() * h0 * (β2 + (1 - β2) ** 2 / 2) ** w.state["step"]
        if is_matrix(w.local) and bool(w.local.any()):
            layers[find_param_name(w.param, w.group, w.stream)] = _rms(std) / _rms(w.mean)
    return {
        "noise_to_weight": _rms(*stds.values()) / max(_rms(*(w.mean for w in stds)), 1e-30),
        "layers": layers,
        "hess_moved": moved / max(size, 1),
        "hess_from_data": 1 - left / max(sum(float(w.hess.sum()) for w in stds), 1e-30),
        "std": _rms(*stds.values()),
        "steps": max((w.state["step"] for w in stds), default=0),
    }


def _rms(*tensors: Tensor) -> float:
    """Root mean square of all entries together."""
    squares = sum(float(t.detach().float().square().sum()) for t in tensors)
    return math.sqrt(squares / (sum(t.numel() for t in tensors) or 1))
