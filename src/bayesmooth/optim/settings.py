"""What IVON measures: the size of each tensor, to which noise and step are relative, and whether a run can learn.

With `noise=c`, alg:ivon has one h₀ and one rate per tensor. L matrices whose weights have root mean square s_l get

    σ_l = c s_l/√L,   so that h_l has the mean L/(λ (c s_l)²), and
    α_l = lr s_l · mean(h_l)/rms(ĝ_l),

where rms(ĝ_l) is a running root mean square of the tensor's own gradients: a step along the momentum moves a tensor by
about lr of its size. Both follow the tensor as it grows, h keeps the relative shape inside it, and it does not matter
in which units a layer is written, nor which layers stand beside it. Vectors (biases, gains) need little noise, and
their own size says little: a bias may start at zero. A matrix of zeros (adapters, some heads) passes no signal on, and
counts as a share of a usual first draw.

lr and c are dimensionless; `choose.py` lets held-out labels choose them.
"""

import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesmooth import randomness
from bayesmooth.calling import take_labels
from bayesmooth.errors import InputError
from bayesmooth.optim.samples import Weight
from bayesmooth.optim.sharding import read_norms, whole

VECTOR = 0.1  # the least size of a vector, and its share of a matrix's noise
ZEROS = 0.3  # size of a matrix of zeros, as a share of Glorot's √(2/(inputs + outputs))
NORM_BETA = 0.99  # of the running mean of ‖ĝ‖²
CLOSE = 0.01  # h follows a tensor's size to within 1 %
LONG = 100  # steps; shorter runs are trials
ENOUGH = 100  # labels that tell an accuracy from that of the most frequent one
LARGE = 1_000_000  # weights from which a missing compiler is worth a warning

_warned_slow = False


def choose_beta2(steps: int | None) -> float:
    """β₂ = 1 − 2/steps: by the end h has forgotten all but e⁻² of its start, as in the paper's 200,000 steps.

    >>> choose_beta2(200_000)
    0.99999
    """
    if steps is None or steps < 1:
        raise InputError(
            f"beta2='auto' with steps={steps}: needs the number of optimizer steps of the run, ≥ 1; "
            "give steps=, or a number for beta2"
        )
    return 1 - 2 / max(steps, 2)


def count_examples(batches: Any) -> int:
    """How many examples a loader, or a list of batches, gives in an epoch."""
    if isinstance(batches, Iterator) or not hasattr(batches, "__len__") or not len(batches):
        raise InputError(
            f"batches: a {type(batches).__name__} without a length, or empty; give a loader or a list of batches"
        )
    sampler = getattr(batches, "sampler", None)
    for counted in (sampler, getattr(batches, "dataset", None)):  # a sampler may take a part
        if counted is not None and hasattr(counted, "__len__"):
            return len(counted)
    return sum(len(take_labels(batch)) for batch in batches)


# ---- sizes ----


def is_matrix(weight: Tensor) -> bool:
    """Whether each output has several inputs; `weight_norm` writes its vector of lengths as a matrix of one column."""
    return weight.ndim > 1 and weight[:1].numel() > 1


def measure_sizes(weights: list[Weight]) -> list[float]:
    """Root mean square of each tensor, and what stands for it where that says little."""
    tensors = [w.state.get("mean", w.param) for w in weights]
    norms = read_norms([t.detach() for t in tensors])
    sizes = [norm / math.sqrt(max(t.numel(), 1)) for norm, t in zip(norms, tensors, strict=True)]
    return [max(s, _least_size(w)) for s, w in zip(sizes, weights, strict=True)]


def _least_size(w: Weight) -> float:
    if not is_matrix(w.param):
        return VECTOR
    if not w.state.get("zeros", False):
        return 1e-30
    outputs, inputs = w.param.shape[:2]
    return ZEROS * math.sqrt(2 / ((inputs + outputs) * w.param[:1, :1].numel()))


def follow_sizes(weights: list[Weight]) -> None:
    """h of each tensor to the mean that its size and `noise` ask for; it keeps its shape, once it has one."""
    layers = sum(is_matrix(w.param) for w in weights)
    fresh = [w for w in weights if "size" not in w.state]
    for w, norm in zip(fresh, read_norms([w.state.get("mean", w.param).detach() for w in fresh]), strict=True):
        w.state["zeros"] = norm == 0
    for w, size in zip(weights, measure_sizes(weights), strict=True):
        share = 1.0 if is_matrix(w.param) else VECTOR
        std = share * w.group["noise"] * size / math.sqrt(max(layers, 1))
        wanted = max(1 / (float(w.group["ess"]) * std**2), 1e-30)  # a run may diverge
        mean = float(whole(w.state["hess"].mean())) if "size" in w.state else 0.0
        if mean > 0:
            if abs(wanted / mean - 1) > CLOSE:
                w.state["hess"].mul_(wanted / mean)
        else:
            w.state["hess"].fill_(wanted)
        w.state["size"], w.state["level"] = size, wanted


def find_rates(weights: list[Weight], samples: int, scale: float) -> dict[Weight, float]:
    """size · mean(h)/rms(ĝ) of each tensor, with this step's gradient; `scale` multiplies gradients."""
    if any(w.sums and hasattr(w.param, "to_local") for w in weights):
        raise InputError(
            "noise= with several samples per step of sharded weights: their sums are local; take one sample"
        )
    grads = {w: w.pending for w in weights if w.pending is not None}
    grads |= {w: w.sums[0] / samples for w in weights if w.sums}
    rates = {}
    for w, norm in zip(grads, read_norms(list(grads.values())), strict=True):
        square, mass = w.state.get("square", 0.0), w.state.get("mass", 0.0)
        w.state["square"] = NORM_BETA * square + (1 - NORM_BETA) * (scale * norm) ** 2
        w.state["mass"] = NORM_BETA * mass + 1 - NORM_BETA
        rms = math.sqrt(w.state["square"] / w.state["mass"] / w.param.numel())
        rates[w] = w.state["size"] * w.state["level"] / rms if rms > 0 else 0.0
    return rates


# ---- diagnostics and warnings ----


def steps_done(weights: list[Weight]) -> int:
    """Updates so far."""
    return max((w.state["step"] for w in weights), default=0)


def compare_layers(weights: list[Weight]) -> dict[str, float]:
    """σ over the weights, root mean squares, for every matrix that is not zero."""
    matrices = [w for w in weights if is_matrix(w.local) and bool(w.local.any())]
    return {w.name: rms(w.std()) / rms(w.mean) for w in matrices}


def describe(weights: list[Weight]) -> dict[str, Any]:
    """The figures that `IVON.diagnostics` documents."""
    size = sum(w.local.numel() for w in weights) or 1
    starts = {w: w.state.get("level", w.group["hess_init"]) for w in weights}
    moved = sum(int(((w.hess - h0).abs() > 0.01 * h0).sum()) for w, h0 in starts.items())
    # Line 4 with ĥ = 0: what decay leaves of h₀, whatever the data.
    left = sum(
        w.local.numel() * h0 * (b + (1 - b) ** 2 / 2) ** w.state["step"]
        for w, h0 in starts.items()
        for b in [w.group["beta2"]]
    )
    std = rms(*(w.std() for w in weights))
    return {
        "noise_to_weight": std / max(rms(*(w.mean for w in weights)), 1e-30),
        "layers": compare_layers(weights),
        "hess_moved": moved / size,
        "hess_from_data": 1 - left / max(sum(float(w.hess.sum()) for w in weights), 1e-30),
        "std": std,
        "steps": steps_done(weights),
    }


def warn_if_slow(weights: list[Weight]) -> None:
    """Once: without the C kernels a step on the CPU takes several times as long."""
    global _warned_slow
    if randomness.KERNELS or _warned_slow:
        return
    slow = [w for w in weights if w.local.device.type == "cpu" and w.group["fused"] is None]
    if sum(w.local.numel() for w in slow) < LARGE:
        return
    _warned_slow = True
    warnings.warn(
        "bayesmooth was installed without a C compiler, so that IVON's steps on the CPU take about five times as long; "
        "install one (gcc or clang) and run `pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        "bayesmooth bayesmooth`; fused=False silences this",
        stacklevel=2,
    )


def warn_if_nothing_is_learned(accuracy: float, labels: Tensor, advice: str = "") -> bool:
    """Whether a network says nothing more than the most frequent of the labels that it was asked for."""
    most = float(torch.bincount(labels.flatten()).max()) / len(labels)
    if len(labels) < ENOUGH or accuracy > most:
        return False
    warnings.warn(
        f"nothing is learned: accuracy {accuracy:.1%}, and {most:.1%} of the labels are the most frequent one; "
        + (advice or "try a third of lr, or of noise"),
        stacklevel=_find_caller(),
    )
    return True


def warn_if_rate_stays(optimizer: Any, weights: list[Weight]) -> None:
    """At the last step: a rate that never fell leaves the mean where the noise of the last steps put it."""
    group, steps = optimizer.param_groups[0], optimizer.steps
    if steps is None or steps < LONG or steps_done(weights) != steps:
        return
    if 0 < float(group.get("initial_lr", optimizer.defaults["lr"])) == float(group["lr"]):
        warnings.warn(
            f"the last of the steps has lr={float(group['lr']):g}, as the first: let it fall to zero; make schedule = "
            "optimizer.schedule(model, loader), and call schedule.step() after every step; in a recipe, write "
            "name = 'cosine' under [schedule]",
            stacklevel=_find_caller(),
        )


def _find_caller() -> int:
    """The stacklevel of the first line that is neither ours nor torch's, whose schedulers and hooks wrap `step`."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in ("bayesmooth", "torch"):
        level, frame = level + 1, frame.f_back
    return level + 1


def rms(*tensors: Tensor) -> float:
    """Root mean square of all entries together."""
    squares = sum(float(t.detach().float().square().sum()) for t in tensors)
    return float((squares / (sum(t.numel() for t in tensors) or 1)) ** 0.5)
