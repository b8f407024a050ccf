"""fig:cifar10_all: CIFAR-10 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.comparing import make_comparison
from bayesmooth.lab.studies.methods import NOISES

FLIPS = [item for item in NOISES.items() if item[0] != "none"]

STUDY = make_comparison(
    "cifar10-noisy",
    "fig:cifar10_all",
    "Flipped labels on CIFAR-10",
    task="cifar10",
    noises=lambda scale: FLIPS,
)
