"""Recipe → run: the loop, checkpoints, the run directory, sweeps."""

from bayesmooth.train.loop import DivergedError
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.run import Run
from bayesmooth.train.splits import Splits, prepare
from bayesmooth.train.training import resume, train

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "prepare", "resume", "train"]
