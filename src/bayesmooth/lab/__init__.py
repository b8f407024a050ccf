"""Recipe → run: the loop, checkpoints, the run directory."""

from bayesmooth.lab.divergence import DivergedError
from bayesmooth.lab.entry import resume, train
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.run import Run
from bayesmooth.lab.splits import Splits, prepare

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "prepare", "resume", "train"]
