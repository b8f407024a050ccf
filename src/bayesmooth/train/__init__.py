"""Recipe → run: the loop, the checkpoint, the run directory, sweeps."""

from bayesmooth.train.evaluate import Splits, prepare
from bayesmooth.train.loop import DivergedError
from bayesmooth.train.recipe import Recipe, Tree, override, read_recipe
from bayesmooth.train.run import Run, train

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "Tree", "override", "prepare", "read_recipe", "train"]
