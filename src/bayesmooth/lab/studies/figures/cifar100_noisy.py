"""fig:cifar100_all: CIFAR-100 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.cifar10_noisy import KINDS
from bayesmooth.lab.studies.figures.comparing import (
    accuracies,
    compare_on,
    draw_panels,
    judge_ahead_or_level,
)
from bayesmooth.lab.studies.methods import NOISES
from bayesmooth.lab.studies.rows import Table, format_percent
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.verdict import Claim, gain

PAIRFLIP = "pairflip 20 %"
GAINS = {"LS": 0.091, "SAM": 0.133}


def claims(table: Table) -> list[Claim]:
    """Those of CIFAR-10, and two numbers."""
    found = []
    for method, claimed in GAINS.items():
        pair = accuracies(table, PAIRFLIP, "IVON"), accuracies(table, PAIRFLIP, method)
        found.append(
            Claim(
                f"{PAIRFLIP}: IVON is {100 * claimed:.1f} points above the best {method}",
                f"IVON {format_percent(pair[0])}, {method} {format_percent(pair[1])}",
                gain(pair, claimed),
            )
        )
    return [*judge_ahead_or_level(table), *found]


STUDY = Study(
    "cifar100-noisy",
    "fig:cifar100_all",
    "Flipped labels on CIFAR-100",
    "accuracy over α (LS) and ρ (SAM), IVON as the line, by noise",
    draw=draw_panels,
    claims=claims,
    **compare_on("cifar100", lambda scale: [(kind, NOISES[kind]) for kind in KINDS]),
)
