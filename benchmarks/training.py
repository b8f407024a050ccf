"""Training on clean and on partly wrong labels: every method with the same budget and the same held-out given labels.

    BAYESMOOTH_DATA=… BAYESMOOTH_TEXTS=… BAYESMOOTH_AUDIT_DATA=… python -m benchmarks training

The protocol, the same for everybody, is that of `bayesmooth.fit`, which trains the peers too:

- A fifth of the given labels is held back. It is as wrong as the rest, and nothing else chooses anything.
- Each method has a grid of six settings. All of them train for a quarter of the epochs, the best two go on to the end:
  three times the epochs of one run. Rates rise over 5 % of the steps and fall to zero on a cosine.
- "fit" is the call as users make it: AdamW and IVON in its grid, and half of the cost after the first quarter goes into
  runs on predicted labels, at the same cost in all. Once the held-out labels have chosen, its last run learns them too,
  corrected by what is predicted. "fit-IVON" has IVON alone in its grid.
- The others learn the held-out labels too: the chosen setting is trained once more with all labels, from the start to
  the chosen look. That run is on top of the budget.
- After every sixteenth of a run the last weights and a running average of them are measured, with BatchNorm's
  statistics computed anew. The best look (accuracy less a tenth of NLL) keeps settings, stops early, and chooses.
- The chosen network is tested once, at its weights, on clean labels.
- The best peer of a cell and seed is the one with the best look.
- Rates of peers lie a factor of three to five apart, as wide as the winners on the development pool.

`training_tasks.py` has the cells: a development pool, which may choose constants, and a test pool, which may not.
BAYESMOOTH_POOL=development runs the former, BAYESMOOTH_METHODS="fit AdamW" some methods, BAYESMOOTH_SEEDS=1 one seed.
One line per cell, seed and method goes to results/training-POOL.jsonl (BAYESMOOTH_OUT names another folder); what is
there is not run again.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from bayesmooth.errors import require
from bayesmooth.fitting.choose import GRID, IVON_GRID, Fit, fit
from bayesmooth.fitting.heldout import Batches
from bayesmooth.fitting.trial import NLL_SHARE, Plan, Trial, advance
from bayesmooth.losses import LabelSmoothing
from bayesmooth.optim import SAM
from benchmarks.harness import Row, markdown, results_path, run_missing
from benchmarks.training_tasks import DEVELOPMENT, TEST, Cell, problem

POOLS = {"development": DEVELOPMENT, "test": TEST}
SEEDS = int(os.environ.get("BAYESMOOTH_SEEDS", "2"))


class Public(Optimizer):
    """The public package's IVON behind `step(closure)`."""

    def __init__(self, weights: list[tuple[str, nn.Parameter]], ess: int, **settings: Any) -> None:
        ivon = require("ivon", "dev")
        self.inner = ivon.IVON([p for _, p in weights], ess=ess, **settings)
        self.param_groups = self.inner.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with self.inner.sampled_params(train=True):
            closure()
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "step": self.inner.current_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        self.inner.current_step = state_dict["step"]
        self.param_groups = self.inner.param_groups


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
PEERS = ("AdamW", "SGD", "LS", "SAM")


def halve(cell: Cell, seed: int, method: str) -> Iterator[Row]:
    """One method on one cell."""
    start, data = time.process_time(), problem(cell, seed)
    grid = GRIDS[method]
    if method == "ivon-opt":
        grid = [setting | {"ess": len(data.labels)} for setting in grid]
    everything = (torch.cat([data.inputs, data.held_inputs]), torch.cat([data.labels, data.held_labels]))
    with tempfile.TemporaryDirectory() as folder:
        found = fit(
            lambda: data.model(seed),
            everything,
            cell.epochs,
            batch_size=cell.batch,
            held_back=range(len(data.labels), len(everything[1])),
            grid=grid,
            seed=seed,
            teach=method in OURS,
            folder=folder,
            quiet=True,
        )
        model = found.model if method in OURS else learn_everything(cell, seed, everything, found, grid, Path(folder))
    said = predict(model, data.test_inputs)
    best = max((row for row in found.table if row["accuracy"] is not None), key=rate)
    yield {
        "cell": str(cell),
        "seed": seed,
        "method": method,
        "validation": best["accuracy"],
        "validation_nll": best["nll"],
        "accuracy": round(100 * float((said.argmax(1) == data.test_labels).double().mean()), 3),
        "nll": round(min(float(cross_entropy(said, data.test_labels)), 99.0), 4),
        "labels": found.labels,
        "tried": found.table,
        "seconds": round(time.process_time() - start, 1),
    }


def learn_everything(
    cell: Cell, seed: int, data: tuple[Tensor, Tensor], found: Fit, grid: list[dict[str, Any]], folder: Path
) -> nn.Module:
    """The network of the chosen setting, trained with the held-out labels too, to where the chosen one was best."""
    looks = Trial(found.setting, folder / f"{grid.index(found.setting)}.pt").load()["looks"]
    again = Trial(found.setting, folder / "everything.pt")
    make, loader = problem(cell, seed).model, Batches(*data, cell.batch)
    steps = round(cell.epochs * len(loader))
    plan = Plan(lambda: make(seed), loader, [data], cross_entropy, SGD, steps, seed, keep=False, stop=False)
    advance(plan, 1 + looks.index(max(looks)), again)
    if again.has_learned:
        found.model.load_state_dict(again.load()["best"]["model"])
    return found.model


def rate(row: Mapping[str, Any]) -> float:
    """What chooses: accuracy less a tenth of NLL, of held-out labels."""
    which = "validation", "validation_nll"
    accuracy, nll = (row[name] for name in (which if "validation" in row else ("accuracy", "nll")))
    return float(accuracy - NLL_SHARE * nll)


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in torch.split(inputs, 500)])


def compare(rows: Sequence[Mapping[str, Any]], ours: str, peers: Sequence[str] = PEERS) -> dict[str, list[float]]:
    """Ours minus the peer that validation chooses, in points, for every cell and seed that has all of them."""
    cells: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["cell"], row["seed"]), {})[row["method"]] = row
    found: dict[str, list[float]] = {"clean": [], "wrong": []}
    for (cell, _), methods in cells.items():
        if {ours, *peers} <= methods.keys():
            best = max((methods[p] for p in peers), key=rate)
            kind = "clean" if " · clean · " in cell else "wrong"
            found[kind].append(methods[ours]["accuracy"] - best["accuracy"])
    return found


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy by cell and method, means over seeds; and each method against the peer that validation chooses."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = list(dict.fromkeys(row["cell"] for row in rows))

    def mean(cell: str, method: str, key: str) -> str:
        own = [r[key] for r in rows if (r["cell"], r["method"]) == (cell, method)]
        return f"{fmean(own):.{1 if key == 'accuracy' else 2}f}" if own else "–"

    parts = []
    for key in ("accuracy", "nll"):
        lines = [[key, *methods]] + [[c, *(mean(c, m, key) for m in methods)] for c in cells]
        parts.append(markdown(lines))
    lines = [["minus the best peer by validation", "wrong labels", "clean", "worst", "cells"]]
    for method in methods:
        leads = compare(rows, method)
        every = leads["wrong"] + leads["clean"]
        if every:
            figures = [f"{fmean(leads[k]):+.2f}" if leads[k] else "–" for k in ("wrong", "clean")]
            lines.append([method, *figures, f"{min(every):+.1f}", str(len(every))])
    return "\n\n".join([*parts, markdown(lines)])


def main(quick: bool = False) -> None:
    """Run what is missing, and print the tables."""
    torch.set_num_threads(1)
    pool = os.environ.get("BAYESMOOTH_POOL", "test")
    cells = POOLS[pool][:3] if quick else POOLS[pool]
    methods = os.environ.get("BAYESMOOTH_METHODS", " ".join(GRIDS)).split()
    jobs = {
        (str(cell), seed, method): partial(halve, cell, seed, method)
        for seed in range(1 if quick else SEEDS)
        for method in methods
        for cell in cells
    }
    path = results_path(f"training-{pool}")
    rows = run_missing(path, ("cell", "seed", "method"), jobs, f"training, {pool} pool")
    print(f"\n{report(rows)}\n\nruns: {path}")
