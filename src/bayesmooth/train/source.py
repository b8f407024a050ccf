"""New examples for a finished run: they are read as the training data were, which its `data.json` says."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bayesmooth.data import Source
from bayesmooth.data.features import Reading
from bayesmooth.data.own import open_like
from bayesmooth.errors import InputError

if TYPE_CHECKING:
    from bayesmooth.train.recipe import Recipe

SOURCE = "source"
READABLE = (SOURCE, "folder")  # files of the user's: there can be more alike


def open_new(what: Any, recipe: "Recipe", facts: dict[str, Any]) -> Source:
    """New inputs, read as the training inputs of a run were; `facts` are what its `data.json` says.

    No labels are needed and none are read: all have that of the first class.
    """
    if recipe.data.name not in READABLE:
        raise InputError(
            f"a run on {recipe.data.name}, which is no file of yours; in Python Run.open(path).model() predicts"
        )
    reading, shape = Reading(**facts.get("reading", {})), tuple(facts["input_shape"])
    options, names = recipe.data.options, tuple(facts["class_names"])
    pixels = None
    if len(shape) == 3:
        pixels = options.get("size", shape[1]), options.get("crop")
    source = open_like(
        what, reading, names, options.get("encoding"), options.get("id"), pixels=pixels
    )
    if source.input_shape != shape:
        raise InputError(
            f"{source.name}: inputs of shape {source.input_shape}; the run was trained on {shape}"
        )
    mean, std = (tuple(facts[key]) if key in facts else None for key in ("mean", "std"))
    return replace(source, mean=mean, std=std)
