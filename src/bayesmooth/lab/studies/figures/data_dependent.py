"""fig:cifar10_inc_acc: noise that differs by class, n_i = κ + .05 i."""

from pathlib import Path

from bayesmooth.lab.studies.figures.comparing import (
    accuracies,
    judge_ahead,
    list_noises,
    make_comparison,
)
from bayesmooth.lab.studies.methods import EARLY, kappa_noise
from bayesmooth.lab.studies.rows import Table, format_shares
from bayesmooth.lab.studies.style import figure, legend_below, line, name_data
from bayesmooth.lab.studies.verdict import Claim, gain

NAMES = {"IVON": "IVON", "LS": "LS (best α)", "SAM": "SAM (best ρ)", EARLY: EARLY}
HARD = "κ = 0.4"


def draw(table: Table, out: Path) -> None:
    """Accuracy over κ."""
    kappas = {noise: float(noise.removeprefix("κ = ")) for noise in list_noises(table)}
    with figure(out, height=2.9) as ((axis,),):
        for method, name in NAMES.items():
            points = [(at, accuracies(table, noise, method)) for noise, at in kappas.items()]
            line(axis, method, points, name)
        axis.set(xlabel="noise κ (class $i$: κ + .05 $i$)", ylabel="test accuracy (%)")
        axis.set_title(f"{name_data(table)}, data-dependent noise")
        axis.set_xticks(list(kappas.values()))
        legend_below(axis)


def claims(table: Table) -> list[Claim]:
    """All noise levels; the extreme one."""
    pair = accuracies(table, HARD, "IVON"), accuracies(table, HARD, "LS")
    extreme = Claim(
        "κ = .4: IVON is about 50 points above the best LS",
        f"IVON {format_shares(pair[0])}, LS {format_shares(pair[1])}",
        gain(pair, 0.5),
    )
    return [*judge_ahead(table), extreme]


STUDY = make_comparison(
    "data-dependent",
    "fig:cifar10_inc_acc",
    "Noise that differs by class",
    "accuracy of IVON, the best LS and the best SAM over κ = .1 … .5",
    task="cifar10",
    noises=lambda scale: [kappa_noise(kappa) for kappa in scale.kappas],
    draw=draw,
    claims=claims,
)
