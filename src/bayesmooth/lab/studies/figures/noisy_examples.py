"""The label noise of finished runs, as rows of a table; pictures go along as text."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.lab.studies.methods import Cell, Condition
from bayesmooth.lab.studies.rows import Row, Table
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.lab.studies.study import Finished
from bayesmooth.labelnoise import LabelNoise, label_noise

ALPHA = 0.1  # of the label smoothing that variational noise is shown beside
NEAREST = 10


def list_ivon(scale: Scale, task: str) -> list[Cell]:
    """IVON on clean labels."""
    found = []
    for seed in scale.seeds:
        recipe = Condition(scale, task, seed=seed).ivon()
        labels = {"data": recipe.data.name, "method": "IVON", "samples": scale.noise_samples}
        found.append(Cell({**labels, "seed": seed}, recipe))
    return found


def measure_noises(finished: Finished) -> Iterator[tuple[Row, Examples, LabelNoise]]:
    """Data set and seed, training examples, and the expected noise at the end, of each run that there is."""
    for cell, run in finished.pairs():
        if run.status != "diverged":
            splits, model = run.splits(finished.data_dir), run.model()
            noise = label_noise(
                model,
                run.posterior(),
                splits.train,
                samples=cell.labels["samples"],
                batchnorm=run.statistics(splits, model),
                quiet=finished.quiet,
            )
            yield {key: cell.labels[key] for key in ("data", "seed")}, splits.train, noise


def keep_first_seed(table: Table) -> Table:
    """What a figure of single examples shows; the claims are about all seeds."""
    return table[table["seed"] == table["seed"].iloc[0]]


def smoothing_noise(classes: int, label: int) -> Tensor:
    """ε = α(u − y), the noise of label smoothing."""
    noise = torch.full((classes,), ALPHA / classes, dtype=torch.float32, device="cpu")
    noise[label] -= ALPHA
    return noise


def own_kind_distance(points: Tensor, labels: Tensor, neighbours: int = NEAREST) -> Tensor:
    """The mean distance to the nearest points of the same class: how atypical each is, whatever a network thinks.

    >>> own_kind_distance(torch.tensor([[0.0], [1.0], [5.0], [0.5]]), torch.tensor([0, 0, 0, 1]), neighbours=1)
    tensor([1., 1., 4., inf])
    """
    found = torch.full((len(points),), torch.inf, dtype=points.dtype, device=points.device)
    for label in labels.unique():  # type: ignore[no-untyped-call]
        own = (labels == label).nonzero().flatten()
        distances = torch.cdist(points[own], points[own]).fill_diagonal_(torch.inf)
        found[own] = distances.sort(1).values[:, :neighbours].mean(1)
    return found


def write_picture(picture: Tensor) -> str:
    """A grey picture as text: its side, then its bytes."""
    values = picture.float()
    values = values / max(float(values.max()), 1e-9) * 255
    data = base64.b64encode(values.to(torch.uint8).numpy().tobytes()).decode()
    return f"{picture.shape[-1]}:{data}"


def read_picture(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture that `write_picture` wrote.

    >>> read_picture(write_picture(torch.tensor([[0, 1], [1, 0]])))
    array([[  0, 255], [255,   0]], dtype=uint8)
    """
    side, _, data = text.partition(":")
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, int(side))
