"""Label noise where it is exact: in logistic regression (fig: guassian after sigmoid), and by method.

The second has no figure in the paper, which says that second-order methods adapt the noise more, and that SAM's is
similar: softmax regression on the digits of scikit-learn, where every method has its exact noise (eq:labelnoiseGLMGD).
"""

from pathlib import Path

import torch

from bayesmooth.data import load
from bayesmooth.theory import fit_glm
from bayesmooth.theory.links import Bernoulli
from bayesmooth.theory.noise import expected_noise, sam_noise
from reproduce.study import Finished, Study
from reproduce.style import COLOURS, figure
from reproduce.table import Claim, Table, holds, make_table

PEAK = 1.5  # where the paper's curve is highest, to a tenth


def compute_curve(finished: Finished) -> Table:
    """ε = σ(f) − E[σ(f + e)], by quadrature (eq:labelnoiseGD_sim)."""
    means = torch.linspace(-6, 6, 241, dtype=torch.float64, device="cpu")
    noise = expected_noise(means, torch.ones_like(means), Bernoulli())
    pairs = zip(means.tolist(), noise.tolist(), strict=True)
    return make_table({"mean": round(mean, 3), "epsilon": epsilon} for mean, epsilon in pairs)


def draw_curve(table: Table, out: Path) -> None:
    """The magnitude, as in the paper, and the signed noise thinly."""
    means, noise = table["mean"], table["epsilon"]
    with figure(out, height=2.1) as ((axis,),):
        axis.plot(means, noise, color=COLOURS["IVON"], linewidth=0.7, linestyle="--", label="ε")
        axis.plot(means, noise.abs(), color=COLOURS["IVON"], label="|ε|")
        axis.set(xlabel="mean of $f$ (variance 1)", ylabel="label noise")
        axis.margins(x=0)
        axis.legend()


def judge_curve(table: Table) -> list[Claim]:
    """None at 0, peaks on both sides, flat far away."""
    size = table.set_index("mean")["epsilon"].abs()
    peak = size.idxmax()
    parts = [size[0.0] < 1e-9, abs(abs(peak) - PEAK) < 0.1, max(size[-6.0], size[6.0]) < size[peak] / 10]
    return [
        Claim(
            "the noise is large around 0 but not at 0, with peaks on both sides",
            f"|ε| = {size[0.0]:.1g} at 0, largest {size[peak]:.4f} at |f| = {abs(peak):.2f}, {size[6.0]:.4f} at 6",
            holds(parts),
        )
    ]


SIGMOID_NOISE = Study("sigmoid-noise", lambda scale: [], draw_curve, judge_curve, compute_curve)


# ---- by method ----

RHO = 0.5
FIRST, SECOND = "variational GD", ("VON, diagonal Σ", "VON, full Σ")
LINES = dict(zip((FIRST, *SECOND), (":", "--", "-"), strict=True))
ALIKE = 0.5  # rank correlation


def measure_sizes(finished: Finished) -> Table:
    """½‖ε‖₁ of every digit, one column per method; GD and Newton have none."""
    digits = load("digits", "train")
    assert isinstance(digits.inputs, torch.Tensor)
    inputs, labels = digits.inputs.double().flatten(1), digits.labels.numbers
    fits = {f"VON, {name} Σ": fit_glm(inputs, labels, covariance=name) for name in ("diagonal", "full")}
    # Σ = s I with the s that gives the logits the mean variance of VON's: the shape of Σ alone differs.
    variance = fits["VON, full Σ"].logits(inputs)[1].diagonal(dim1=-2, dim2=-1).mean()
    isotropic = float(variance / (1 + inputs.square().sum(1).mean()))  # the 1 is that of the bias
    fits[FIRST] = fit_glm(inputs, labels, method="variational_gd", init_variance=isotropic)
    noises = {name: fits[name].label_noise(inputs) for name in (FIRST, *SECOND)}
    noises = dict.fromkeys(("GD", "Newton"), torch.zeros_like(noises[FIRST])) | noises
    theta = fit_glm(inputs, labels).theta
    model = torch.nn.Linear(inputs.shape[1], theta.shape[1], dtype=inputs.dtype, device="cpu")
    model.load_state_dict({"weight": theta[:-1].T, "bias": theta[-1]})
    noises["SAM"] = sam_noise(model, inputs, labels, RHO)
    sizes = {name: (noise.abs().sum(-1) / 2).tolist() for name, noise in noises.items()}
    return make_table([dict(zip(sizes, row, strict=True)) for row in zip(*sizes.values(), strict=True)])


def draw_sizes(table: Table, out: Path) -> None:
    """The noise over its mean, sorted: the steeper, the more it adapts."""
    with figure(out) as ((axis,),):
        for name, dashes in {**LINES, "SAM": "-"}.items():
            sizes = (table[name] / table[name].mean()).sort_values().tolist()
            colour = COLOURS["SAM" if name == "SAM" else "IVON"]
            label = f"{name}, ρ = {RHO}" if name == "SAM" else name
            axis.semilogy(sizes, color=colour, linestyle=dashes, label=label)
        axis.set(xlabel="digit, by its noise", ylabel="label noise ½‖ε‖₁ over its mean")
        axis.margins(x=0)
        axis.legend()


def judge_orders(table: Table) -> list[Claim]:
    """The spread over examples, relative to the mean, which is no matter of how large the noise is."""
    spread = table.std() / table.mean()
    second = [f"{name} {spread[name]:.3f}" for name in SECOND if name in spread]
    known = [float(table["SAM"].corr(table[name], "spearman")) for name in SECOND if name in spread]
    return [
        Claim(
            "second-order methods yield more adaptive label noise than first-order methods "
            "(we ask: more spread over examples, as a share of the mean)",
            f"{FIRST} {spread.get(FIRST, 0):.3f}, {', '.join(second) or 'nothing'}; GD and Newton have no noise",
            holds([spread[name] > spread[FIRST] for name in SECOND if name in spread]),
        ),
        Claim(
            f"the label noise of SAM would be similar (we ask: rank correlation with VON's > {ALIKE})",
            f"{', '.join(f'{value:.2f}' for value in known) or 'nothing'} at ρ = {RHO}",
            holds([value > ALIKE for value in known]),
        ),
    ]


SECOND_ORDER = Study("second-order", lambda scale: [], draw_sizes, judge_orders, measure_sizes)
