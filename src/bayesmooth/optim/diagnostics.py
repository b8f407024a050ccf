"""Is IVON's noise in proportion to the weights, and do its settings let it learn?

The limits come from a sweep of one setting at a time, `results/choices/ivon_settings.txt`: a multilayer perceptron on
digits with 40 % wrong labels, with and without batch normalisation. docs/optimizers.md has its table.
"""

import warnings
from statistics import median
from typing import Any

from torch import Tensor

from bayesmooth import randomness
from bayesmooth.optim.auto import is_gain
from bayesmooth.optim.weights import Weight

BEARABLE = 2.0  # σ over the weights, in the median matrix, at the start
WITH_NORMALISATION = 4.0  # the same for networks that have normalisation layers
DROWNED = 8.0  # the same later on, when the weights have grown around the noise
FIRST_STEP = 0.3  # share of the weights' size by which the first step may move them
EARLY_STEP = 0.025  # and a later one
RESTLESS = 0.05  # share of itself by which the Hessian may change in a step
STILL = 0.3  # σ by which the weights must move in 2/(1 − β₂) steps
EARLY = 100  # the first step at which training is looked at; then 200, 400, …
LARGE = 1_000_000  # weights from which a missing compiler is worth a word
SLICE = 4096  # elements of a matrix that are compared before and after a step

_said_slow = False


def layers(weights: list[Weight]) -> dict[str, float]:
    """σ over the weights, root mean squares, for every matrix that is not zero."""
    matrices = [w for w in weights if w.local.ndim > 1 and bool(w.local.any())]
    return {w.name: rms(w.std()) / rms(w.mean) for w in matrices}


def diagnose(weights: list[Weight]) -> dict[str, Any]:
    """The figures that `IVON.diagnostics` documents."""
    size = sum(w.local.numel() for w in weights) or 1
    moved = sum(
        int(((w.hess - h0).abs() > 0.01 * h0).sum())
        for w in weights
        for h0 in [w.group["hess_init"]]
    )
    std = rms(*(w.std() for w in weights))
    return {
        "noise_to_weight": std / max(rms(*(w.mean for w in weights)), 1e-30),
        "layers": layers(weights),
        "hess_moved": moved / size,
        "std": std,
        "steps": steps_of(weights),
    }


def check_start(weights: list[Weight]) -> None:
    """Before the first step: is there more noise than this network bears, and is this the slow installation?"""
    if steps_of(weights):
        return
    _say_if_slow(weights)
    ratios = layers(weights)
    ratio = median(ratios.values()) if ratios else 0.0
    if ratio > (WITH_NORMALISATION if any(is_gain(w.local) for w in weights) else BEARABLE):
        group = weights[0].group
        worst = max(ratios, key=lambda name: ratios[name])
        warnings.warn(
            f"the posterior's noise is {ratio:.1f} times the weights (median of {len(ratios)} matrices; in {worst} "
            f"{ratios[worst]:.1f} times), from ess={group['ess']:g} and hess_init={group['hess_init']:.3g}: little is "
            f"learned; raise hess_init to about {group['hess_init'] * ratio**2:.2g}, or ess",
            stacklevel=2,
        )


class Look:
    """A look at some weights before a step and after it, at steps 1, 100, 200, 400, …: what it costs does not count."""

    def __init__(self, weights: list[Weight]) -> None:
        self.weights = [w for w in weights if w.local.ndim > 1 and bool(w.mean.any())]
        self.before = [(_slice(w.mean), _slice(w.hess)) for w in self.weights]

    def problems(self, step: int) -> dict[str, str]:
        """What is wrong after it, and which number to change to what; by the name of the setting."""
        if not self.weights:
            return {}
        group = self.weights[0].group
        pairs = list(zip(self.weights, self.before, strict=True))
        moved = [rms(_slice(w.mean) - m) for w, (m, _) in pairs]
        size = [rms(w.mean) for w in self.weights]
        std = [rms(w.std()) for w in self.weights]
        share = median(d / s for d, s in zip(moved, size, strict=True))
        if step == 1:
            return _too_fast(group, share, FIRST_STEP)
        decay = group["weight_decay"]
        restless = median(rms((_slice(w.hess) - h) / (h + decay)) for w, (_, h) in pairs)
        found = _hessian(group, restless)
        if step == EARLY and float(group["lr"]) > 0 and not found:
            found |= _too_slow(group, median(d / s for d, s in zip(moved, std, strict=True)))
            found |= _too_fast(group, share, EARLY_STEP)
        found |= _noise(group, median(s / m for s, m in zip(std, size, strict=True)), median(std))
        return found


def is_due(step: int) -> bool:
    """Whether the step is one to look at."""
    times = step // EARLY
    return step == 1 or (step == times * EARLY and times & (times - 1) == 0 and times > 0)


def _too_fast(group: dict[str, Any], share: float, limit: float) -> dict[str, str]:
    if share <= limit:
        return {}
    lr = float(group.get("initial_lr", group["lr"]))
    return {
        "lr": f"a step moved the weights by {share:.0%} of their size: lower lr from {lr:g} to about "
        f"{lr * 0.1 * limit / share:.1g}, or begin with a warm-up"
    }


def _hessian(group: dict[str, Any], share: float) -> dict[str, str]:
    if share <= RESTLESS:
        return {}
    beta2 = 1 - max((1 - group["beta2"]) * 0.1 * RESTLESS / share, 1e-3)
    return {
        "beta2": f"the Hessian's estimate changes by {share:.0%} in a step, too fast to be trusted: raise beta2 from "
        f"{group['beta2']:g} to about {beta2:.3f}; 1 − 2/steps is best"
    }


def _too_slow(group: dict[str, Any], moved: float) -> dict[str, str]:
    """`moved` is the step in units of σ; a schedule may have lowered the rate of this very step."""
    if group["beta2"] >= 1:
        return {}
    lr, horizon = float(group.get("initial_lr", group["lr"])), 2 / (1 - group["beta2"])
    way = moved * horizon * lr / float(group["lr"])
    if way >= STILL:
        return {}
    return {
        "lr": f"the weights move by {way:.2g} σ in 2/(1 − beta2) = {horizon:.0f} steps, less than their noise: "
        f"raise lr from {lr:g} to about {min(10 * STILL * lr / max(way, 1e-9), 0.5):.1g}"
    }


def _noise(group: dict[str, Any], ratio: float, std: float) -> dict[str, str]:
    if ratio <= DROWNED:
        return {}
    decay, h0 = group["weight_decay"], group["hess_init"]
    start = (group["ess"] * (h0 + decay)) ** -0.5
    if std > 3 * start:
        change = f"raise beta2 from {group['beta2']:g} to 1 − 2/steps, because h has fallen since the start"
    elif decay > 1e-3:
        change = f"lower weight_decay from {decay:g} to about {decay / ratio:.1g}, because the weights have shrunk"
    else:
        change = f"raise hess_init from {h0:.3g} to about {h0 * ratio**2:.2g}"
    return {"noise": f"the posterior's noise is {ratio:.1f} times the weights by now: {change}"}


def _say_if_slow(weights: list[Weight]) -> None:
    """Once: without the C kernels a step on the CPU takes several times as long."""
    global _said_slow
    slow = [w for w in weights if w.local.device.type == "cpu" and w.group["fused"] is None]
    if randomness.KERNELS or _said_slow or sum(w.local.numel() for w in slow) < LARGE:
        return
    _said_slow = True
    warnings.warn(
        "bayesmooth was installed without a C compiler, so that IVON's steps on the CPU take about five times as long; "
        "install one (gcc or clang) and run `pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        "bayesmooth bayesmooth`; fused=False silences this",
        stacklevel=2,
    )


def steps_of(weights: list[Weight]) -> int:
    """Updates so far."""
    return max((w.state["step"] for w in weights), default=0)


def rms(*tensors: Tensor) -> float:
    """Root mean square of all entries together."""
    squares = sum(float(t.detach().float().square().sum()) for t in tensors)
    return float((squares / (sum(t.numel() for t in tensors) or 1)) ** 0.5)


def _slice(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)[:SLICE].float().clone()
