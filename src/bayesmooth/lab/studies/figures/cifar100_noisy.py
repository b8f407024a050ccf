"""fig:cifar100_all: CIFAR-100 with flipped labels, accuracy over α and ρ."""

from bayesmooth.lab.studies.figures.cifar10_noisy import FLIPS
from bayesmooth.lab.studies.figures.comparing import (
    accuracies,
    judge_ahead_or_level,
    make_comparison,
)
from bayesmooth.lab.studies.rows import Table, format_shares
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
                f"IVON {format_shares(pair[0])}, {method} {format_shares(pair[1])}",
                gain(pair, claimed),
            )
        )
    return [*judge_ahead_or_level(table), *found]


STUDY = make_comparison(
    "cifar100-noisy",
    "fig:cifar100_all",
    "Flipped labels on CIFAR-100",
    task="cifar100",
    noises=lambda scale: FLIPS,
    claims=claims,
)
