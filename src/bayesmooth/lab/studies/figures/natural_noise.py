"""fig: clothing1m_all: labels that people or web pages got wrong."""

from bayesmooth.lab.studies.figures.comparing import draw_panels, equals_sam
from bayesmooth.lab.studies.methods import NOISES, Cell, comparison
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study


def cells(scale: Scale) -> list[Cell]:
    """The labels as they came; digits come right, so at smoke scale some are flipped."""
    noise = NOISES["symmetric 40 %"] if scale.name == "smoke" else NOISES["none"]
    return comparison(scale, "natural", [("natural noise", noise)])


STUDY = Study(
    "natural-noise",
    "fig: clothing1m_all",
    "Natural label noise",
    "the same on Clothing1M (full scale) or one annotator's labels of CIFAR-10N (laptop)",
    cells,
    draw_panels,
    equals_sam,
)
