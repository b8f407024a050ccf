"""fig:cifar10_inc_acc: noise that differs by class, n_i = κ + .05 i."""

from pathlib import Path

from bayesmooth.lab.studies.figures.comparing import accuracies, compare_on, judge_ahead, levels
from bayesmooth.lab.studies.methods import EARLY, kappa_noise
from bayesmooth.lab.studies.rows import Table, format_percent
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import data_name, figure, legend_below, line
from bayesmooth.lab.studies.verdict import Claim, gain

NAMES = {
    "IVON": "IVON",
    "LS": "LS (best α)",
    "SAM": "SAM (best ρ)",
    EARLY: EARLY,
}
HARD = "κ = 0.4"


def draw(table: Table, out: Path) -> None:
    """Accuracy over κ."""
    with figure(out, height=2.9) as ((axis,),):
        for method, name in NAMES.items():
            points = [(kappa(noise), accuracies(table, noise, method)) for noise in levels(table)]
            line(axis, method, points, name)
        axis.set(xlabel="noise κ (class $i$: κ + .05 $i$)", ylabel="test accuracy (%)")
        axis.set_title(f"{data_name(table)}, data-dependent noise")
        axis.set_xticks([kappa(noise) for noise in levels(table)])
        legend_below(axis)


def claims(table: Table) -> list[Claim]:
    """All noise levels; the extreme one."""
    pair = accuracies(table, HARD, "IVON"), accuracies(table, HARD, "LS")
    extreme = Claim(
        "κ = .4: IVON is about 50 points above the best LS",
        f"IVON {format_percent(pair[0])}, LS {format_percent(pair[1])}",
        gain(pair, 0.5),
    )
    return [*judge_ahead(table), extreme]


def kappa(noise: str) -> float:
    """The number in the label of a noise."""
    return float(noise.removeprefix("κ = "))


STUDY = Study(
    "data-dependent",
    "fig:cifar10_inc_acc",
    "Noise that differs by class",
    "accuracy of IVON, the best LS and the best SAM over κ = .1 … .5",
    draw=draw,
    claims=claims,
    **compare_on("cifar10", lambda scale: [kappa_noise(kappa) for kappa in scale.kappas]),
)
