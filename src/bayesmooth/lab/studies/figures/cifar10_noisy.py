"""fig:cifar10_all: CIFAR-10 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.comparing import compare_on, draw_panels, judge_ahead_or_level
from bayesmooth.lab.studies.methods import NOISES
from bayesmooth.lab.studies.study import Study

KINDS = ("symmetric 20 %", "symmetric 40 %", "pairflip 20 %")

STUDY = Study(
    "cifar10-noisy",
    "fig:cifar10_all",
    "Flipped labels on CIFAR-10",
    "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
    draw=draw_panels,
    claims=judge_ahead_or_level,
    **compare_on("cifar10", lambda scale: [(kind, NOISES[kind]) for kind in KINDS]),
)
