"""From the sections of a recipe to what they name: the network, the loss, the optimizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.lab.options import build, find_builder
from bayesmooth.lab.pretrained import freeze
from bayesmooth.lab.recipe import Recipe
from bayesmooth.models import load_weights, weights_from


def make(recipe: Recipe, section: str, **supplied: Any) -> Any:
    """What a section of the recipe chooses."""
    choice = getattr(recipe, section)
    with name_section(recipe, section):
        return build(find_builder(section, choice.name), choice.options, **supplied)


def make_model(recipe: Recipe, *, pretrained: bool = True, **facts: Any) -> nn.Module:
    """The network that a run starts with; `pretrained=False` where its weights are about to be replaced."""
    section = recipe.model
    with weights_from(recipe.train.seed):
        model: nn.Module = make(recipe, "model", pretrained=pretrained, **facts)
    with name_section(recipe, "model"):
        if not isinstance(model, nn.Module):
            raise InputError(f"it gives a {type(model).__name__}; it must give a torch.nn.Module")
        if section.weights is not None and pretrained:
            load_weights(model, section.weights, bool(section.new_head))
        if section.freeze is not None:
            freeze(model, section.freeze)
    return model


@contextmanager
def name_section(recipe: Recipe, section: str) -> Iterator[None]:
    """An error inside says which section it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"[{section}] {getattr(recipe, section).name}: {error}") from None


def check_past(recipe: Recipe) -> None:
    """Refuse a recipe in which a loss that learns from its best past self could not know which one that is."""
    name, every, epochs = recipe.loss.name, recipe.evaluate.every, recipe.train.epochs
    if not recipe.data.validation:
        raise InputError(
            f"[loss] {name} learns from its best past self, and only a validation split tells which that is; "
            "set data.validation = 0.1"
        )
    if 1 < epochs <= every:
        raise InputError(
            f"[evaluate] every = {every} of {epochs} epochs: {name} learns from its best past self, and none is known "
            "before the end; set evaluate.every = 1"
        )
