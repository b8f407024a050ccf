"""The network that a run starts with: of the package, the user's own or one of `transformers`; with frozen parts."""

from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesmooth.calling import evaluating
from bayesmooth.errors import InputError, name_place
from bayesmooth.models import load_weights, name_head, weights_from
from bayesmooth.optional import require

if TYPE_CHECKING:
    from bayesmooth.train.recipe import Recipe


def make_model(recipe: "Recipe", *, pretrained: bool = True, **facts: Any) -> nn.Module:
    """The network that a run starts with; `pretrained=False` where its weights are about to be replaced."""
    section = recipe.model
    with weights_from(recipe.train.seed):
        model: nn.Module = recipe.make("model", pretrained=pretrained, **facts)
    with name_place(f"[model] {section.name}"):
        if not isinstance(model, nn.Module):
            raise InputError(f"it gives a {type(model).__name__}; it must give a torch.nn.Module")
        if section.weights is not None and pretrained:
            load_weights(model, section.weights, bool(section.new_head))
        if section.freeze is not None:
            freeze(model, section.freeze)
    return model


def import_factory(name: str) -> Callable[..., Any]:
    """The function or class that `package.module:name` stands for.

    >>> import_factory("torch.nn:Identity")
    <class 'torch.nn.modules.linear.Identity'>
    """
    try:
        factory: Callable[..., Any] = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"name '{name}': cannot be imported: {error}; start the command in the directory that has "
            f"{name.partition(':')[0]!r}, or put that directory on PYTHONPATH"
        ) from None
    if not callable(factory):
        raise InputError(f"name '{name}': is a {type(factory).__name__}; name a function or a class")
    return factory


class LogitsOf(nn.Module):
    """A network of `transformers` that gives its logits as a tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, K)."""
        logits: Tensor = self.network(pixel_values=inputs).logits
        return logits


def transformers_classifier(
    path: str, num_classes: int = 10, *, input_shape: Iterable[int] = (), pretrained: bool = True
) -> nn.Module:
    """An image classifier of `transformers` with a new head; `path` is a folder, or a name on the Hugging Face hub.

    `pretrained=False` leaves the weights out: a run has its own.
    """
    transformers = require("transformers", extra="huggingface")
    try:
        config = transformers.AutoConfig.from_pretrained(path, num_labels=num_classes)
        make = transformers.AutoModelForImageClassification
        size, shape = getattr(config, "image_size", None), tuple(input_shape)
        if isinstance(size, int) and shape and shape[-2:] != (size, size):
            raise InputError(
                f"path = {path!r}: takes pictures of {size} × {size}, these have {shape[-2]} × {shape[-1]}; "
                f"set data.size = {size}"
            )
        how = {"config": config, "ignore_mismatched_sizes": True}
        network = make.from_pretrained(path, **how) if pretrained else make.from_config(config)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"path = {path!r}: no image classifier can be read: {reason}") from None
    return LogitsOf(network)


def freeze(model: nn.Module, parts: bool | Iterable[str]) -> None:
    """Keep parameters as they are: all but the head, or those whose names begin with one of `parts`."""
    names = [name for name, _ in model.named_parameters()]
    if parts is True:
        head = f"{name_head(model)}."
        chosen = {name for name in names if not name.startswith(head)}
    else:
        chosen = set()
        for part in parts or ():
            found = {name for name in names if f"{name}.".startswith(f"{part}.")}
            if not found:
                there = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
                raise InputError(f"freeze: no parameter under '{part}'; there are {there}")
            chosen |= found
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in chosen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("freeze: no parameter is left to train; name fewer parts")


def is_frozen(part: nn.Module) -> bool:
    """Whether a part has parameters, and none of them is trained."""
    own = list(part.parameters())
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def evaluate_frozen(model: nn.Module) -> None:
    """In a model that trains, frozen parts stay as in evaluation: BatchNorm keeps its statistics, dropout is off."""
    for part in filter(is_frozen, model.modules()):
        part.eval()


def check_logits(model: nn.Module, inputs: Tensor, num_classes: int) -> None:
    """Try a model of the user's on one example: a wrong shape is refused here, where it can be named."""
    with evaluating(model), torch.no_grad():
        logits = model(inputs)
    if not isinstance(logits, Tensor) or logits.shape != (len(inputs), num_classes):
        what = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise InputError(
            f"it gives {what} for inputs of shape {tuple(inputs.shape)}; "
            f"it must give logits of shape {(len(inputs), num_classes)}"
        )
