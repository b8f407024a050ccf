"""Files of the user's: settings that their held-out labels choose, and new examples for a finished run."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from bayesmooth.data import Source
from bayesmooth.data.features import Reading
from bayesmooth.data.prepare import open_like
from bayesmooth.errors import InputError
from bayesmooth.optim.choose import IVON_GRID, fit
from bayesmooth.optim.linear import fit_linear
from bayesmooth.optim.settings import ENOUGH
from bayesmooth.train.evaluate import prepare
from bayesmooth.train.networks import make_model

if TYPE_CHECKING:
    from bayesmooth.train.recipe import Recipe

SOURCE = "source"
READABLE = (SOURCE, "folder")  # files of the user's: there can be more alike


def choose_settings(recipe: "Recipe", quiet: bool = False) -> "Recipe":
    """The recipe with what the held-out given labels choose: lr and noise of the network, or a linear model's prior.

    The network is taken where it predicts them better than the linear model by a standard error: it is measured at its
    best of many looks. What is chosen stands in the recipe of the run, and so in its hash.
    """
    splits = prepare(recipe)
    if splits.validation is None or len(splits.validation) < ENOUGH:
        return recipe
    parts = splits.train, splits.validation
    (inputs, labels), held = (
        (part.batch(torch.arange(len(part), device="cpu")), part.labels.numbers) for part in parts
    )
    classes, shape = splits.train.num_classes, splits.train.input_shape
    found = fit(
        lambda: make_model(recipe, num_classes=classes, input_shape=shape),
        (inputs, labels),
        recipe.train.epochs,
        batch_size=recipe.train.batch_size,
        validation=held,
        grid=IVON_GRID,
        teach=False,
        seed=recipe.train.seed,
        quiet=quiet,
    )
    tree, best = recipe.to_dict(), max(row["accuracy"] for row in found.table)
    tree["optimizer"] |= found.setting
    if len(shape) == 1:
        rows = torch.cat([inputs, held[0]])
        last = torch.arange(len(rows), device="cpu") >= len(inputs)
        line = fit_linear(rows, torch.cat([labels, held[1]]), last, classes)
        if line.accuracy >= best - math.sqrt(best * (1 - best) / len(held[1])):
            decay = line.precision / len(inputs)
            tree["model"]["hidden"] = []
            tree["optimizer"] = {"name": "ivon", "lr": 0.3, "hess_init": 0.1, "weight_decay": decay}
    return type(recipe).from_dict(tree, SOURCE)


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
