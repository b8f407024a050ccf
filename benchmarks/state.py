"""A state of 16 bits beside one of 32, on noisy digits: rounded at random, and to the nearest.

`python -m benchmarks optim` has its memory.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bayesmooth.lab import Recipe, train
from bayesmooth.lab.studies.rows import format_mean, read_final
from bayesmooth.optim import backends

NARROW = "optimizer.state_dtype=bfloat16"
STATES = {"float32": (), "bfloat16, at random": (NARROW,), "bfloat16, to the nearest": (NARROW,)}
NETWORKS = {
    "MLP": (),
    "CNN": ('model={name="cnn_batchnorm", widths=[32, 64], stride=1}', "train.epochs=40"),
}
KEYS = {"accuracy": 100, "at_mean": 100, "nll": 1, "std": 1}


def round_to_nearest(g: Tensor, h: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """What copying into bfloat16 does by itself."""
    return g, h


def run_once(network: str, state: str, seed: int) -> dict[str, Any]:
    """The figures of a run, and σ at its end."""
    settings = f"train.seed={seed}", *NETWORKS[network], *STATES[state]
    recipe = Recipe.load("digits-ivon", settings)
    change: AbstractContextManager[object] = nullcontext()
    if "nearest" in state:
        change = mock.patch.object(backends, "round_randomly", round_to_nearest)
    with TemporaryDirectory() as folder, change:
        run = train(recipe, Path(folder) / "run", quiet=True)
        stds = torch.cat([std.reshape(-1) for std in run.posterior().std.values()])
        return {**read_final(run), "std": float(stds.square().mean().sqrt())}


def main(quick: bool = False) -> None:
    """Two networks, three seeds."""
    torch.set_num_threads(1)
    print(f"{'':40} {'accuracy':>14} {'at the mean':>14} {'NLL':>15} {'σ at the end':>15}")
    for network in NETWORKS:
        for state in STATES:
            seeds = range(1 if quick else 3)
            rows = [run_once(network, state, seed) for seed in seeds]
            cells = [format_mean([row[key] for row in rows], unit) for key, unit in KEYS.items()]
            name = f"IVON, {network}, {state}"
            print(f"{name:40} " + " ".join(f"{cell:>15}" for cell in cells), flush=True)
