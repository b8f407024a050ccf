"""Two sentences of the paper without a figure: second-order methods adapt the noise more, and SAM's noise is similar.

Softmax regression on the digits of scikit-learn, where every method has its exact label noise (eq:labelnoiseGLMGD).
"""

from pathlib import Path

import torch

from bayesmooth.data import load
from bayesmooth.theory import fit_glm, noise_by_method
from bayesmooth.theory.noise import sam_noise
from reproduce.rows import Table, make_table
from reproduce.study import Finished, Study
from reproduce.style import COLOURS, figure
from reproduce.verdict import Claim, holds

RHO = 0.5
FIRST, SECOND = "variational GD", ("VON, diagonal Σ", "VON, full Σ")
LINES = dict(zip((FIRST, *SECOND), (":", "--", "-"), strict=True))
ALIKE = 0.5  # rank correlation


def measure_noises(finished: Finished) -> Table:
    """½‖ε‖₁ of every digit, one column per method; GD and Newton have none."""
    digits = load("digits", "train")
    assert isinstance(digits.inputs, torch.Tensor)
    inputs, labels = digits.inputs.double().flatten(1), digits.labels.numbers
    noises = noise_by_method(inputs, labels, family="categorical")
    theta = fit_glm(inputs, labels, family="categorical").theta
    model = torch.nn.Linear(inputs.shape[1], theta.shape[1], dtype=inputs.dtype, device="cpu")
    model.load_state_dict({"weight": theta[:-1].T, "bias": theta[-1]})
    noises["SAM"] = sam_noise(model, inputs, labels, RHO)
    sizes = {name: (noise.abs().sum(-1) / 2).tolist() for name, noise in noises.items()}
    return make_table(
        [dict(zip(sizes, row, strict=True)) for row in zip(*sizes.values(), strict=True)]
    )


def draw(table: Table, out: Path) -> None:
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


def claims(table: Table) -> list[Claim]:
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


STUDY = Study(
    "second-order",
    "sec: newton on GLM",
    "First- and second-order methods",
    "label noise of variational GD, VON and SAM in softmax regression on digits",
    lambda scale: [],
    draw,
    claims,
    measure_noises,
)
