"""fig:cifar10_all: CIFAR-10 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.comparing import draw_panels, equals_sam
from bayesmooth.lab.studies.methods import NOISES, Cell, comparison
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study

KINDS = ("symmetric 20 %", "symmetric 40 %", "pairflip 20 %")


def cells(scale: Scale) -> list[Cell]:
    """Three kinds of noise."""
    return comparison(scale, "cifar10", [(kind, NOISES[kind]) for kind in KINDS])


STUDY = Study(
    "cifar10-noisy",
    "fig:cifar10_all",
    "Flipped labels on CIFAR-10",
    "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
    cells,
    draw_panels,
    equals_sam,
)
