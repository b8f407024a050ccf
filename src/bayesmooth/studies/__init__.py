"""One file a figure of the paper: its recipes, its drawing, its claims and the verdict on them."""

from bayesmooth.studies import cifar10_noisy, data_dependent
from bayesmooth.studies.study import Study

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        data_dependent,
        cifar10_noisy,
    )
}

__all__ = ["STUDIES", "Study"]
