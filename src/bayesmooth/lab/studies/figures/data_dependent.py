"""fig:cifar10_inc_acc: noise that differs by class, n_i = κ + .05 i."""

from pathlib import Path

from bayesmooth.lab.studies.figures.comparing import chosen, levels, overtakes
from bayesmooth.lab.studies.methods import Cell, comparison, kappa_noise
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.style import data_name, figure, line
from bayesmooth.lab.studies.table import Table, best, column, said, where
from bayesmooth.lab.studies.verdict import Claim, gain

NAMES = {"IVON": "IVON", "LS": "LS (best α)", "SAM": "SAM (best ρ)"}


def cells(scale: Scale) -> list[Cell]:
    """κ = .1 … .5."""
    return comparison(scale, "cifar10", map(kappa_noise, scale.kappas))


def draw(table: Table, out: Path) -> None:
    """Accuracy over κ."""
    with figure(out, height=2.5) as ((axis,),):
        for method, name in NAMES.items():
            points = [(kappa(noise), chosen(table, noise, method)) for noise in levels(table)]
            line(axis, method, points, name)
        axis.set(xlabel="noise κ (class $i$: κ + .05 $i$)", ylabel="test accuracy (%)")
        axis.set_title(f"{data_name(table)}, data-dependent noise")
        axis.set_xticks([kappa(noise) for noise in levels(table)])
        axis.legend()


def claims(table: Table) -> list[Claim]:
    """All noise levels; the extreme one."""
    hard = where(table, noise="κ = 0.4")
    pair = column(where(hard, method="IVON")), best(where(hard, method="LS"))[1]
    extreme = Claim(
        "κ = .4: IVON is about 50 points above the best LS",
        f"IVON {said(pair[0])}, LS {said(pair[1])}",
        gain(pair, 0.5),
    )
    return [*overtakes(table), extreme]


def kappa(noise: str) -> float:
    """The number in the label of a noise."""
    return float(noise.removeprefix("κ = "))


STUDY = Study(
    "data-dependent",
    "fig:cifar10_inc_acc",
    "Noise that differs by class",
    "accuracy of IVON, the best LS and the best SAM over κ = .1 … .5",
    cells,
    draw,
    claims,
)
