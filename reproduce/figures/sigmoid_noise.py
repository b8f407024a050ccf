"""fig: guassian after sigmoid: the label noise of logistic regression over the mean of f, at variance 1."""

from pathlib import Path

import torch

from bayesmooth.theory.links import Bernoulli
from bayesmooth.theory.noise import expected_noise
from reproduce.rows import Table, make_table
from reproduce.study import Finished, Study
from reproduce.style import COLOURS, figure
from reproduce.verdict import Claim, holds

PEAK = 1.5  # where the paper's curve is highest, to a tenth


def compute_curve(finished: Finished) -> Table:
    """ε = σ(f) − E[σ(f + e)], by quadrature (eq:labelnoiseGD_sim)."""
    means = torch.linspace(-6, 6, 241, dtype=torch.float64, device="cpu")
    noise = expected_noise(means, torch.ones_like(means), Bernoulli(), nodes=80)
    pairs = zip(means.tolist(), noise.tolist(), strict=True)
    return make_table({"mean": round(mean, 3), "epsilon": epsilon} for mean, epsilon in pairs)


def draw(table: Table, out: Path) -> None:
    """The magnitude, as in the paper, and the signed noise thinly."""
    means, noise = table["mean"], table["epsilon"]
    with figure(out, height=2.1) as ((axis,),):
        axis.plot(means, noise, color=COLOURS["IVON"], linewidth=0.7, linestyle="--", label="ε")
        axis.plot(means, noise.abs(), color=COLOURS["IVON"], label="|ε|")
        axis.set(xlabel="mean of $f$ (variance 1)", ylabel="label noise")
        axis.margins(x=0)
        axis.legend()


def claims(table: Table) -> list[Claim]:
    """None at 0, peaks on both sides, flat far away."""
    size = table.set_index("mean")["epsilon"].abs()
    peak = size.idxmax()
    parts = [
        size[0.0] < 1e-9,
        abs(abs(peak) - PEAK) < 0.1,
        max(size[-6.0], size[6.0]) < size[peak] / 10,
    ]
    return [
        Claim(
            "the noise is large around 0 but not at 0, with peaks on both sides",
            f"|ε| = {size[0.0]:.1g} at 0, largest {size[peak]:.4f} at |f| = {abs(peak):.2f}, {size[6.0]:.4f} at 6",
            holds(parts),
        )
    ]


STUDY = Study(
    "sigmoid-noise",
    "fig: guassian after sigmoid",
    "Label noise of logistic regression",
    "ε over the mean of f at variance 1",
    lambda scale: [],
    draw,
    claims,
    compute_curve,
)
