"""The paper beside the package: its figures and a few of our own, with recipes, drawings, claims and verdicts."""

from reproduce.figures import STUDIES
from reproduce.study import Study

__all__ = ["STUDIES", "Study"]
