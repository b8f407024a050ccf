"""fig:cifar100_ivon_hess: how much IVON depends on h₀."""

from pathlib import Path
from statistics import mean

from bayesmooth.lab.studies.figures import cifar100_noisy, hessians
from bayesmooth.lab.studies.figures.comparing import in_words, sensitivities
from bayesmooth.lab.studies.figures.hessians import LEARNED
from bayesmooth.lab.studies.methods import Cell
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Study
from bayesmooth.lab.studies.table import Table, where
from bayesmooth.lab.studies.verdict import Claim, ahead, holds

SMALL, ALLOWED = (
    0.05,
    0.10,
)  # the paper speaks of h₀ above the one, and of a variation up to the other


def cells(scale: Scale) -> list[Cell]:
    """IVON over h₀; and SAM over ρ, that it is compared with: the runs of `cifar100-noisy`."""
    others = [cell for cell in cifar100_noisy.cells(scale) if cell.labels["method"] == "SAM"]
    return [*hessians.cells(scale, LEARNED), *others]


def draw(table: Table, out: Path) -> None:
    """IVON alone."""
    hessians.draw(where(table, method=LEARNED), out)


def claims(table: Table) -> list[Claim]:
    """Accuracy varies by 10 points at most, and by less than that of SAM."""
    large = [row for row in where(table, method=LEARNED) if row["strength"] > SMALL]
    ours, sam = sensitivities(large), sensitivities(where(table, method="SAM"))
    both = [noise for noise in ours if noise in sam]
    return [
        Claim(
            "accuracy varies by up to 10 points over h₀ > .05",
            in_words(ours),
            holds([mean(cost) <= ALLOWED for cost in ours.values()]),
        ),
        Claim(
            "it is less sensitive to h₀ than SAM is to ρ",
            f"h₀: {in_words(ours)}; SAM's ρ: {in_words(sam)}",
            ahead([(sam[noise], ours[noise]) for noise in both]),
        ),
    ]


STUDY = Study(
    "hessian-init",
    "fig:cifar100_ivon_hess",
    "The first Hessian",
    "IVON's accuracy over h₀",
    cells,
    draw,
    claims,
)
