"""Recipe → run: the loop, the checkpoint, the run directory, sweeps."""

from bayesmooth.train.evaluate import Splits, prepare
from bayesmooth.train.loop import DivergedError
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.recipe_files import Tree, override, read_recipe
from bayesmooth.train.run import Run
from bayesmooth.train.training import train

__all__ = ["DivergedError", "Recipe", "Run", "Splits", "Tree", "override", "prepare", "read_recipe", "train"]
