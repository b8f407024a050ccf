"""Recipe → run: the loop, checkpoints, the run directory, sweeps."""

from bayesmooth.lab.loop import DivergedError
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.run import Run
from bayesmooth.lab.splits import Splits, prepare
from bayesmooth.lab.train import resume, train

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "prepare", "resume", "train"]
