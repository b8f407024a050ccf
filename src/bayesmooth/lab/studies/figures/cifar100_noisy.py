"""fig:cifar100_all: CIFAR-100 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.cifar10_noisy import KINDS
from bayesmooth.lab.studies.figures.comparing import chosen, draw_panels, equals_sam
from bayesmooth.lab.studies.methods import NOISES, Cell, comparison
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.table import Table, said
from bayesmooth.lab.studies.verdict import Claim, gain

PAIRFLIP = "pairflip 20 %"
GAINS = {"LS": 0.091, "SAM": 0.133}


def cells(scale: Scale) -> list[Cell]:
    """Three kinds of noise."""
    return comparison(scale, "cifar100", [(kind, NOISES[kind]) for kind in KINDS])


def claims(table: Table) -> list[Claim]:
    """Those of CIFAR-10, and two numbers."""
    found = []
    for method, claimed in GAINS.items():
        pair = chosen(table, PAIRFLIP, "IVON"), chosen(table, PAIRFLIP, method)
        found.append(
            Claim(
                f"{PAIRFLIP}: IVON is {100 * claimed:.1f} points above the best {method}",
                f"IVON {said(pair[0])}, {method} {said(pair[1])}",
                gain(pair, claimed),
            )
        )
    return [*equals_sam(table), *found]


STUDY = Study(
    "cifar100-noisy",
    "fig:cifar100_all",
    "Flipped labels on CIFAR-100",
    "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
    cells,
    draw_panels,
    claims,
)
