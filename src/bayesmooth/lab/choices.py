"""The tables that a recipe chooses from, and what the run supplies to what is chosen."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import SGD

from bayesmooth.data import DATASETS, Corruption
from bayesmooth.data.corrupt import KINDS
from bayesmooth.losses import LOSSES
from bayesmooth.models import MODELS
from bayesmooth.optim import OPTIMIZERS
from bayesmooth.optim.schedule import SCHEDULES

Table = Mapping[str, Callable[..., Any]]

NONE, FILE = "none", "file"  # corruptions that draw nothing


def nothing() -> None:
    """The labels stay as they are."""


def noise_file(path: str) -> Corruption:
    """The noise of another run, from its `noise.json`."""
    return Corruption.load(path)


# section → (what is meant when it names nothing, the table)
CHOICES: dict[str, tuple[str, Table]] = {
    "data": ("digits", {name: dataset.load for name, dataset in DATASETS.items()}),
    "corruption": (NONE, {NONE: nothing, **KINDS, FILE: noise_file}),
    "model": ("cnn", MODELS),
    "loss": ("ce", LOSSES),
    "optimizer": ("sgd", OPTIMIZERS),
    "schedule": ("constant", SCHEDULES),
}

BASE = SGD
"""What SAM wraps; an optimizer's `**` arguments are those of this class."""

FILLED = frozenset({"ess", "transition"})
"""May be left out of a recipe although the signature has no default: the number of training examples, and the
matrix that the corruption drew from."""

SUPPLIED = frozenset(
    {
        "params",
        "base_optimizer",
        "num_classes",
        "num_examples",
        "split",
        "root",
        "progress",
        "seed",
        "generator",
    }
    | {"reduction", "in_channels", "input_shape"}
)
"""Arguments that a recipe does not set: the run knows them."""
