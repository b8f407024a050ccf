"""fig: clothing1m_all: labels that people or web pages got wrong."""

from bayesmooth.lab.studies.figures.comparing import compare_on, draw_panels, judge_ahead_or_level
from bayesmooth.lab.studies.methods import NOISES, Section
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study


def noises(scale: Scale) -> list[tuple[str, Section]]:
    """The labels as they came; digits come right, so at smoke scale some are flipped."""
    noise = NOISES["symmetric 40 %"] if scale.name == "smoke" else NOISES["none"]
    return [("natural noise", noise)]


STUDY = Study(
    "natural-noise",
    "fig: clothing1m_all",
    "Natural label noise",
    "the same on Clothing1M (full scale) or one annotator's labels of CIFAR-10N (laptop)",
    draw=draw_panels,
    claims=judge_ahead_or_level,
    **compare_on("natural", noises),
)
