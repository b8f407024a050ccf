"""Training on clean and on partly wrong labels: every method with the same budget and the same held-out given labels.

    BAYESMOOTH_DATA=… BAYESMOOTH_TEXTS=… BAYESMOOTH_AUDIT_DATA=… python -m benchmarks training

The protocol is that of `bayesmooth.fit`, which trains the peers too: a grid of six settings each, the same held-out
given labels, three times the epochs of one run. The peers learn the held-out labels in one further run, on top of that
(docs/evidence-optimizers.md). "fit-IVON" has IVON alone in its grid. Rates of peers lie a factor of three to five
apart, as wide as the winners on the development pool.

`training_tasks.py` has the cells: a development pool, which may choose constants, and a test pool, which may not.
BAYESMOOTH_POOL=development runs the former, BAYESMOOTH_METHODS="fit AdamW" some methods, BAYESMOOTH_SEEDS=1 one seed.
One line per cell, seed and method goes to results/training-POOL.jsonl (BAYESMOOTH_OUT names another folder). Lines
that the file holds are not measured again.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ivon
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from bayesmooth.calling import read_logits
from bayesmooth.fitting.choose import GRID, IVON_GRID, fit
from bayesmooth.fitting.heldout import Batches
from bayesmooth.fitting.trial import NLL_SHARE, Plan, Trial, advance
from bayesmooth.losses import LabelSmoothing
from bayesmooth.optim import SAM
from benchmarks.harness import Row, results_path, run_missing
from benchmarks.training_tasks import POOLS, Cell, problem
from docs.make_tables import compare_training, format_table

SEEDS = int(os.environ.get("BAYESMOOTH_SEEDS", "2"))


class Public(ivon.IVON):  # type: ignore[misc]
    """The public package's IVON behind `step(closure)`; its state has the number of steps, too."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], ess: int, **settings: Any) -> None:
        super().__init__([p for _, p in weights], ess=ess, **settings)

    def step(self, closure: Any = None) -> None:
        with self.sampled_params(train=True):
            closure()
        super().step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "current_step": self.current_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.current_step = state_dict["current_step"]


RATES = (3e-4, 2e-3, 1e-2)
ADAMW = {"optimizer": partial(AdamW, weight_decay=0.01)}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "fit": [dict(setting) for setting in GRID],
    "fit-IVON": [dict(setting) for setting in IVON_GRID],
    "AdamW": [ADAMW | {"lr": lr} for lr in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)],
    "SGD": [
        {"optimizer": partial(SGD, momentum=0.9, weight_decay=1e-3), "lr": lr}
        for lr in (1e-3, 4e-3, 1.5e-2, 6e-2, 0.25, 1.0)
    ],
    "LS": [ADAMW | {"lr": lr, "loss": LabelSmoothing(alpha)} for lr, alpha in product(RATES, (0.1, 0.4))],
    "SAM": [
        {"optimizer": partial(SAM, base_optimizer=AdamW, weight_decay=0.01), "lr": lr, "rho": rho}
        for lr, rho in product(RATES, (0.02, 0.1))
    ],
    "ivon-opt": [
        {"optimizer": Public, "lr": lr, "hess_init": h, "weight_decay": 1e-4}
        for lr, h in product((0.03, 0.3, 2.0), (0.1, 1.0))
    ],
}
OURS = ("fit", "fit-IVON")


def halve(cell: Cell, seed: int, method: str) -> Iterator[Row]:
    """One method on one cell."""
    start, data = time.process_time(), problem(cell, seed)
    grid = GRIDS[method]
    if method == "ivon-opt":
        grid = [setting | {"ess": data.held.start} for setting in grid]
    with tempfile.TemporaryDirectory() as folder:
        fit_result = fit(
            lambda: data.model(seed),
            (data.inputs, data.labels),
            cell.epochs,
            batch_size=cell.batch,
            held_back=data.held,
            grid=grid,
            seed=seed,
            teach=method in OURS,
            folder=folder,
            quiet=True,
        )
        if method not in OURS:
            chosen = Trial(fit_result.setting, Path(folder, f"{grid.index(fit_result.setting)}.pt"))
            learn_everything(cell, seed, chosen, fit_result.model)
    logits = torch.cat([part for part, _ in read_logits(fit_result.model, torch.split(data.test_inputs, 500))])
    measured = [row for row in fit_result.table if row["accuracy"] is not None]
    best = max(measured, key=lambda row: row["accuracy"] - NLL_SHARE * row["nll"])
    yield {
        "cell": str(cell),
        "seed": seed,
        "method": method,
        "validation": best["accuracy"],
        "validation_nll": best["nll"],
        "accuracy": 100 * float((logits.argmax(1) == data.test_labels).double().mean()),
        "nll": min(float(cross_entropy(logits, data.test_labels)), 99.0),
        "labels": fit_result.labels,
        "tried": fit_result.table,
        "seconds": time.process_time() - start,
    }


def learn_everything(cell: Cell, seed: int, chosen: Trial, model: nn.Module) -> None:
    """Train the chosen setting with the held-out labels, too, up to the part that was best without them."""
    data, looks = problem(cell, seed), chosen.load()["looks"]
    loader, held = Batches(data.inputs, data.labels, cell.batch), [(data.inputs, data.labels)]
    steps = round(cell.epochs * len(loader))
    plan = Plan(lambda: data.model(seed), loader, held, cross_entropy, SGD, steps, seed, keep=False, stop=False)
    again = Trial(chosen.setting, chosen.path.with_name("everything.pt"))
    advance(plan, 1 + looks.index(max(looks)), again)
    if again.has_learned:
        model.load_state_dict(again.load()["best"]["model"])


def main(quick: bool = False) -> None:
    """Run the missing jobs, and print the tables."""
    pool = os.environ.get("BAYESMOOTH_POOL", "test")
    cells = POOLS[pool][:3] if quick else POOLS[pool]
    methods = os.environ.get("BAYESMOOTH_METHODS", " ".join(GRIDS)).split()
    runs = product(range(1 if quick else SEEDS), methods, cells)
    jobs = {(str(cell), seed, method): partial(halve, cell, seed, method) for seed, method, cell in runs}
    rows = run_missing(results_path(f"training-{pool}"), ("cell", "seed", "method"), jobs, f"training, {pool} pool")
    records = pd.DataFrame(rows)
    print(f"\n{format_table(compare_training(records))}")
