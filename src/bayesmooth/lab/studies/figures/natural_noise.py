"""fig: clothing1m_all: labels that people or web pages got wrong."""

from bayesmooth.lab.studies.figures.comparing import make_comparison
from bayesmooth.lab.studies.methods import NOISES
from bayesmooth.lab.studies.scale import Scale


def leave_noise(scale: Scale) -> list[tuple[str, str]]:
    """The labels as they came; digits come right, so at smoke scale some are flipped."""
    return [("natural noise", NOISES["symmetric 40 %" if scale.name == "smoke" else "none"])]


STUDY = make_comparison(
    "natural-noise",
    "fig: clothing1m_all",
    "Natural label noise",
    "the same on Clothing1M (full scale) or one annotator's labels of CIFAR-10N (laptop)",
    task="natural",
    noises=leave_noise,
)
