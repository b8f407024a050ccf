"""Is the posterior's noise in proportion to the weights, and has its variance been learned?"""

import warnings

import torch
from torch import Tensor

from bayesmooth.optim.weights import Weight

DROWNING = (
    2.0  # σ over the weights' own size, in the median matrix, from which nothing was ever learned
)


def diagnose(weights: list[Weight]) -> dict[str, float]:
    """The figures that `IVON.diagnostics` documents."""
    size = sum(w.local.numel() for w in weights) or 1
    moved = sum(
        int(((w.hess - h0).abs() > 0.01 * h0).sum())
        for w in weights
        for h0 in [w.group["hess_init"]]
    )
    std = _rms([w.std() for w in weights])
    return {
        "noise_to_weight": std / max(_rms([w.local for w in weights]), 1e-30),
        "hess_moved": moved / size,
        "std": std,
        "steps": max((w.state["step"] for w in weights), default=0),
    }


def warn_of_drowning(weights: list[Weight]) -> None:
    """Before the first step: with more noise than weight in most matrices, no signal passes."""
    if any(w.state["step"] for w in weights):
        return
    matrices = [
        w for w in weights if w.local.ndim > 1 and bool(w.local.any())
    ]  # zeros pass none anyway
    if not matrices:
        return
    ratios = torch.tensor([_rms([w.std()]) / _rms([w.local]) for w in matrices])
    if (ratio := float(ratios.median())) > DROWNING:
        group = matrices[0].group
        precision = group["ess"] * (group["hess_init"] + group["weight_decay"])
        warnings.warn(
            f"the posterior's noise is {ratio:.1f} times the weights (σ = {precision**-0.5:.2g} in the median matrix, "
            f"from ess={group['ess']:g}, hess_init={group['hess_init']:g}): the signal drowns and nothing is learned; "
            f"raise hess_init to about {group['hess_init'] * ratio**2:.2g}, or ess",
            stacklevel=2,
        )


def _rms(tensors: list[Tensor]) -> float:
    squares = sum(float(t.detach().float().square().sum()) for t in tensors)
    return float((squares / (sum(t.numel() for t in tensors) or 1)) ** 0.5)
