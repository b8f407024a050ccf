"""The label noise of finished runs, as rows of a table; pictures go along as text."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmooth.data import Examples
from bayesmooth.lab import Run
from bayesmooth.lab.studies.methods import NOISES, Cell, ivon, recipe
from bayesmooth.lab.studies.rows import Row, Table, where
from bayesmooth.lab.studies.scale import Scale
from bayesmooth.labelnoise import LabelNoise, label_noise

ALPHA = 0.1  # of the label smoothing that variational noise is shown beside
NEIGHBOURS = 10


def ivon_cells(scale: Scale, name: str) -> list[Cell]:
    """IVON on clean labels."""
    task = scale.task(name)
    facts = {"data": task.data["name"], "method": "IVON", "samples": scale.noise_samples}
    return [
        Cell(
            {**facts, "seed": seed},
            recipe(scale, task, NOISES["none"], {"name": "ce"}, ivon(task), seed),
        )
        for seed in scale.seeds
    ]


def training_noises(
    cells: Sequence[Cell], runs: Mapping[str, Run], data_dir: Path | None, quiet: bool
) -> Iterator[tuple[Row, Examples, LabelNoise]]:
    """Data set and seed, training examples, and the expected noise at the end, of each run that there is."""
    for cell in cells:
        if (run := runs.get(cell.recipe.hash)) is not None and run.status != "diverged":
            splits, model = run.splits(data_dir), run.model()
            noise = label_noise(
                model,
                run.posterior(),
                splits.train,
                samples=cell.labels["samples"],
                batchnorm=run.statistics(splits, model),
                quiet=quiet,
            )
            yield {key: cell.labels[key] for key in ("data", "seed")}, splits.train, noise


def first_seed(table: Table) -> Table:
    """What a figure of single examples shows; the claims are about all seeds."""
    return where(table, seed=table[0]["seed"]) if table else []


def smoothing_noise(classes: int, label: int) -> Tensor:
    """ε = α(u − y), the noise of label smoothing."""
    noise = torch.full((classes,), ALPHA / classes)
    noise[label] -= ALPHA
    return noise


def own_kind_distance(points: Tensor, labels: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """The mean distance to the nearest points of the same class: how atypical each is, whatever a network thinks.

    >>> own_kind_distance(torch.tensor([[0.0], [1.0], [5.0], [0.5]]), torch.tensor([0, 0, 0, 1]), neighbours=1)
    tensor([1., 1., 4., inf])
    """
    found = torch.full((len(points),), torch.inf)
    for label in labels.unique():  # type: ignore[no-untyped-call]
        own = (labels == label).nonzero().flatten()
        distances = torch.cdist(points[own], points[own]).fill_diagonal_(torch.inf)
        found[own] = distances.sort(1).values[:, :neighbours].mean(1)
    return found


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
