"""Training on clean and on partly wrong labels: every method with the same budget and the same held-out given labels.

    BAYESMOOTH_DATA=… BAYESMOOTH_TEXTS=… BAYESMOOTH_AUDIT_DATA=… python -m benchmarks training

Each method has a grid of six settings. All of them train for a quarter of the epochs, the best two go on to the end:
three times the epochs of one run, as in `bayesmooth.fit`, whose rule chooses here too: accuracy less a tenth of NLL on
held-out labels, which are as wrong as those for training. It chooses the runs to keep, the best one, and one of its
sixteenths (early stopping). The test has clean labels and chooses nothing.

`training_tasks.py` has the cells: a development pool, which may choose constants, and a test pool, which may not.
BAYESMOOTH_POOL=development runs the former, BAYESMOOTH_METHODS="IVON AdamW" some methods, BAYESMOOTH_SEEDS=1 one seed.
One line per cell, seed and method goes to results/training-POOL.jsonl (BAYESMOOTH_OUT names another folder); what is
there is not run again. results/training-whole.jsonl has settings of IVON that went to the end, on the development pool:
any choice among them can be computed from it.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from bayesmooth.calling import recompute_batchnorm
from bayesmooth.losses import CrossEntropy, LabelSmoothing, Loss
from bayesmooth.optim import IVON, SAM
from bayesmooth.optim.choose import GRID, PARTS, RUNGS, WARMUP, Average, score
from bayesmooth.optim.schedule import cosine
from bayesmooth.optional import require
from benchmarks.harness import Row, markdown, results_path, run_missing, take_step
from benchmarks.training_tasks import DEVELOPMENT, TEST, Cell, Problem, problem

POOLS = {"development": DEVELOPMENT, "test": TEST}
SEEDS = int(os.environ.get("BAYESMOOTH_SEEDS", "2"))


class Setting(NamedTuple):
    """One point of a method's grid: its optimizer from model, data, cell and seed, and its loss."""

    name: str
    optimizer: Callable[[nn.Module, Problem, Cell, int], Optimizer]
    loss: Loss = CrossEntropy()
    average: bool = (
        False  # look at an average of the weights over the last part, as `bayesmooth.fit` does
    )


def weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def adamw(lr: float) -> Any:
    return lambda model, *_: AdamW(weights(model), lr, weight_decay=0.01)


def sgd(lr: float) -> Any:
    return lambda model, *_: SGD(weights(model), lr, momentum=0.9, weight_decay=1e-3)


def sam(lr: float, rho: float) -> Any:
    return lambda model, *_: SAM(weights(model), AdamW, rho=rho, lr=lr, weight_decay=0.01)


class Public(Optimizer):
    """The public package's IVON behind `step(closure)`."""

    def __init__(self, model: nn.Module, data: Problem, cell: Cell, seed: int, **settings: Any):
        ivon = require("ivon", "dev")
        torch.manual_seed(seed)
        self.inner = ivon.IVON(weights(model), ess=len(data.labels), **settings)
        self.param_groups = self.inner.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with self.inner.sampled_params(train=True):
            closure()
        self.inner.step()


def public(lr: float, hess_init: float) -> Any:
    return partial(Public, lr=lr, hess_init=hess_init, weight_decay=1e-4)


def ours(lr: float, noise: float) -> Any:
    def make(model: nn.Module, data: Problem, cell: Cell, seed: int) -> Optimizer:
        steps = cell.epochs * -(-len(data.labels) // cell.batch)
        count = len(data.labels)
        return IVON(weights(model), lr, count, noise=noise, steps=steps, seed=seed)

    return make


RATES, RADII, SMOOTHING = (5e-4, 2e-3, 8e-3), (0.02, 0.1), (0.1, 0.4)
GRIDS: dict[str, list[Setting]] = {
    "IVON": [Setting(f"{s['lr']:g} c={s['noise']:g}", ours(**s), average=True) for s in GRID],
    "AdamW": [Setting(f"{lr:g}", adamw(lr)) for lr in (3e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)],
    "SGD": [Setting(f"{lr:g}", sgd(lr)) for lr in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)],
    "LS": [
        Setting(f"{lr:g} α={alpha:g}", adamw(lr), LabelSmoothing(alpha))
        for lr, alpha in product(RATES, SMOOTHING)
    ],
    "SAM": [Setting(f"{lr:g} ρ={rho:g}", sam(lr, rho)) for lr, rho in product(RATES, RADII)],
    "ivon-opt": [
        Setting(f"{lr:g} h₀={h:g}", public(lr, h))
        for lr, h in product((0.03, 0.1, 0.3), (0.1, 1.0))
    ],
}
PEERS = ("AdamW", "SGD", "LS", "SAM")


class Run:
    """One setting: trained part by part, measured after each."""

    def __init__(self, setting: Setting, cell: Cell, seed: int) -> None:
        self.setting, self.cell, self.seed = setting, cell, seed
        self.data = problem(cell, seed)
        torch.manual_seed(seed)
        self.model = self.data.model(seed)
        self.optimizer = setting.optimizer(self.model, self.data, cell, seed)
        steps = cell.epochs * -(-len(self.data.labels) // cell.batch)
        self.average = Average(weights(self.model), steps) if setting.average else None
        self.path: list[dict[str, float]] = []
        self.steps = self._train()

    def advance(self, parts: int) -> None:
        """Train and measure until so many parts are done."""
        while len(self.path) < parts:
            next(self.steps)
            with self.average.inside() if self.average else nullcontext():
                self.path.append(measure(self.model, self.data, self.optimizer))

    @property
    def best(self) -> dict[str, float]:
        """The part at which validation would have stopped."""
        return max(self.path, key=rate)

    def _train(self) -> Iterator[None]:
        data, cell, order = self.data, self.cell, torch.Generator().manual_seed(self.seed)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        batches = -(-len(data.labels) // cell.batch)
        total, done, part = cell.epochs * batches, 0, 1
        torch.manual_seed(self.seed)
        for _ in range(cell.epochs):
            for index in torch.split(torch.randperm(len(data.labels), generator=order), cell.batch):
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * cosine(done / total, warmup=WARMUP, start=0.0)
                x, y = data.inputs[index], data.labels[index]
                self.model.train()
                take_step(self.optimizer, lambda x=x, y=y: self.setting.loss(self.model(x), y))  # type: ignore[misc]
                if self.average:
                    self.average.add()
                done += 1
                while part <= PARTS and done >= part * total / PARTS:
                    part += 1
                    yield


def rate(figures: Mapping[str, float]) -> float:
    """What chooses: of held-out labels alone."""
    return score(figures["validation"] / 100, figures["validation_nll"])


@torch.no_grad()
def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in torch.split(inputs, 500)])


def measure(model: nn.Module, data: Problem, optimizer: Optimizer) -> dict[str, float]:
    """Accuracy in per cent and NLL on held-out given labels and on the test."""
    if hasattr(optimizer, "sampled_params") or isinstance(optimizer, Public):
        recompute_batchnorm(model, torch.split(data.inputs[:2000], 250))
    held, test = logits(model, data.held_inputs), logits(model, data.test_inputs)
    return {
        "validation": share(held, data.held_labels),
        "validation_nll": nll(held, data.held_labels),
        "accuracy": share(test, data.test_labels),
        "nll": nll(test, data.test_labels),
    }


def share(said: Tensor, labels: Tensor) -> float:
    return round(100 * float((said.argmax(1) == labels).double().mean()), 3)


def nll(said: Tensor, labels: Tensor) -> float:
    return round(min(float(cross_entropy(said, labels)), 99.0), 4)


def halve(cell: Cell, seed: int, method: str) -> Iterator[Row]:
    """Successive halving over the grid of a method."""
    start = time.process_time()
    runs = [Run(setting, cell, seed) for setting in GRIDS[method]]
    kept = runs
    for parts, keep in RUNGS:
        for run in kept:
            run.advance(parts)
        kept = sorted(kept, key=lambda run: rate(run.best), reverse=True)[:keep]
    chosen = kept[0]
    yield {
        "cell": str(cell),
        "seed": seed,
        "method": method,
        "setting": chosen.setting.name,
        **chosen.best,
        "end": chosen.path[-1],
        "tried": {run.setting.name: run.path for run in runs},
        "seconds": round(time.process_time() - start, 1),
    }


def compare(
    rows: Sequence[Mapping[str, Any]], ours: str, peers: Sequence[str] = PEERS
) -> dict[str, list[float]]:
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
