"""Recipe → run: the loop, checkpoints, the run directory."""

from bayesmooth.training.divergence import DivergedError
from bayesmooth.training.entry import resume, train
from bayesmooth.training.recipe import Recipe
from bayesmooth.training.run import Run
from bayesmooth.training.splits import Splits, prepare

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "prepare", "resume", "train"]
