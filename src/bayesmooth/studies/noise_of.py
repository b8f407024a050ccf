"""The label noise of finished runs, as rows of a table; pictures go along as text."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.studies.methods import NOISES, Cell, ivon, recipe
from bayesmooth.studies.scale import Scale
from bayesmooth.training import Run

ALPHA = 0.1  # of the label smoothing that variational noise is shown beside


def ivon_cell(scale: Scale, name: str) -> Cell:
    """IVON on clean labels, the first seed."""
    task, seed = scale.task(name), scale.seeds[0]
    labels = {
        "data": task.data["name"],
        "method": "IVON",
        "samples": scale.noise_samples,
        "seed": seed,
    }
    made = recipe(scale, task, NOISES["none"], {"name": "ce"}, ivon(task), seed)
    return Cell(labels, made)


def training_noise(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None
) -> tuple[Examples, LabelNoise] | None:
    """Of the first cell: its training examples, and the expected noise at the end of its run."""
    run = runs.get(cells[0].recipe.hash)
    if run is None:
        return None
    examples = run.examples("train", data_dir)
    noise = label_noise(
        run.model(), run.posterior(), examples, samples=cells[0].labels["samples"], quiet=True
    )
    return examples, noise


def smoothing_noise(classes: int, label: int, alpha: float = ALPHA) -> Tensor:
    """ε = α(u − y), the noise of label smoothing."""
    noise = torch.full((classes,), alpha / classes)
    noise[label] -= alpha
    return noise


def picture_text(picture: Tensor) -> str:
    """A grey picture as text: its side, then its bytes."""
    values = picture.float()
    values = values / max(float(values.max()), 1e-9) * 255
    data = base64.b64encode(values.to(torch.uint8).numpy().tobytes()).decode()
    return f"{picture.shape[-1]}:{data}"


def picture_from(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture that `picture_text` wrote.

    >>> picture_from(picture_text(torch.tensor([[0, 1], [1, 0]])))
    array([[  0, 255], [255,   0]], dtype=uint8)
    """
    side, _, data = text.partition(":")
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, int(side))
