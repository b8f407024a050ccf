"""One setting for everything: how far each method stays below the best one, over tasks, networks, noises and lengths.

    python -m benchmarks regret --quick
    BAYESMOOTH_DATA=… python -m benchmarks regret

The regret of a method in a cell is its distance to the best of all methods there, in points of accuracy, means over
seeds: several where runs are short, as the best of a dozen single runs is the luckiest. --quick has the digits and the
table; BAYESMOOTH_DATA adds MNIST and CIFAR-10. One JSON line per run goes to results/regret.jsonl (BAYESMOOTH_OUT names
another folder). What the file holds already is not run again.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from bayesmooth.calling import recompute_batchnorm
from bayesmooth.losses import CrossEntropy, LabelSmoothing, Loss
from bayesmooth.optim import IVON, SAM
from bayesmooth.optim.schedule import cosine
from benchmarks.harness import Row, results_path, run_missing, take_step
from benchmarks.regret_tasks import NETWORKS, PICTURES, Cell, Problem, cells, problem

BATCH, WARMUP = 50, 0.05
# lr: the best of four for early stopping, LS and SAM with ρ = .2 (results/choices/rates.txt)
DESCENT: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}
SGD, STOPPED, ONE_CALL = "SGD", "SGD, early stopping", "IVON.auto(model, …)"
SEEDS = {"table": 3, "digits": 2, "text": 2}  # one for pictures
FAMILIES = {"LS": "α", "SAM": "ρ", "IVON": "h₀"}

Batches = list[tuple[Tensor, Tensor]]
Make = Callable[[nn.Module, Batches, int], Optimizer]
"""From the model, the batches of an epoch and the number of epochs to an optimizer."""


class Method(NamedTuple):
    """A loss × an optimizer."""

    optimizer: Make
    loss: Loss


def sgd(model: nn.Module, batches: Batches, epochs: int) -> Optimizer:
    return torch.optim.SGD(model.parameters(), **DESCENT)


def sam(rho: float) -> Make:
    return lambda model, batches, epochs: SAM(model.parameters(), rho=rho, **DESCENT)


def ivon(hess_init: Any) -> Make:
    """β₂ = 1 − 2/steps for every h₀, so that h₀ alone is compared."""
    return lambda model, batches, epochs: IVON(
        model.parameters(),
        lr=0.1,
        ess=sum(len(labels) for _, labels in batches),
        hess_init=hess_init,
        beta2="auto",
        weight_decay=1e-3,
        epochs=epochs,
        steps=epochs * len(batches),
        seed=0,
    )


def ivon_by_one_call(model: nn.Module, batches: Batches, epochs: int) -> Optimizer:
    """IVON chooses lr too."""
    return IVON.auto(model, batches, epochs, seed=0, quiet=True)


METHODS: dict[str, Method] = {
    SGD: Method(sgd, CrossEntropy()),
    **{f"LS α={alpha:g}": Method(sgd, LabelSmoothing(alpha)) for alpha in (0.1, 0.5, 0.9)},
    **{f"SAM ρ={rho:g}": Method(sam(rho), CrossEntropy()) for rho in (0.1, 0.2, 0.5)},
    **{f"IVON h₀={h:g}": Method(ivon(h), CrossEntropy()) for h in (0.1, 0.3, 1.0, 3.0)},
    "IVON auto": Method(ivon("auto"), CrossEntropy()),
    ONE_CALL: Method(ivon_by_one_call, CrossEntropy()),
}


def run(cell: Cell, seed: int, name: str) -> Iterator[Row]:
    """Train and measure; SGD also counts at the epoch that the noisy validation labels would have stopped at."""
    data, method = problem(cell.task, cell.noise, seed), METHODS[name]
    wrong = data.labels != data.clean_labels
    stopped: Row = {"validation": -1.0}

    def measure(model: nn.Module) -> Row:
        said = logits(model, data.test_inputs)
        return {
            "accuracy": share(said, data.test_labels),
            "nll": round(float(cross_entropy(said, data.test_labels)), 4),
            "validation": share(logits(model, data.held_inputs), data.held_labels),
            "memorised": share(logits(model, data.inputs[wrong]), data.labels[wrong])
            if wrong.any()
            else None,
        }

    model = NETWORKS[cell.network](seed=seed, **data.facts)
    batches = list(zip(*(torch.split(t, BATCH) for t in (data.inputs, data.labels)), strict=True))
    optimizer = method.optimizer(model, batches, cell.epochs)
    for epoch in train(model, optimizer, method.loss, data, cell.epochs, seed):
        if name == SGD:
            held = share(logits(model, data.held_inputs), data.held_labels)
            if held > stopped["validation"]:
                stopped = measure(model) | {"epoch": epoch}
    if isinstance(optimizer, IVON):
        recompute_batchnorm(model, torch.split(data.inputs[:2000], 250))
    key = {"cell": str(cell), "seed": seed}
    chosen = {"h0": h} if (h := optimizer.param_groups[0].get("hess_init")) else {}
    yield {**key, "method": name, **measure(model), **chosen}
    if name == SGD:
        yield {**key, "method": STOPPED, **stopped}


def train(
    model: nn.Module, optimizer: Optimizer, loss: Loss, data: Problem, epochs: int, seed: int
) -> Iterator[int]:
    """The numbers of the epochs, each once it is done; a cosine after a short warm-up."""
    if data.inputs.ndim == 4:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate, order = optimizer.param_groups[0]["lr"], torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        model.train()
        parts = torch.split(torch.randperm(len(data.labels), generator=order), BATCH)
        for done, index in enumerate(parts):
            inputs, labels = data.inputs[index], data.labels[index]
            for group in optimizer.param_groups:
                group["lr"] = rate * cosine((epoch + done / len(parts)) / epochs, warmup=WARMUP)

            take_step(optimizer, lambda x=inputs, y=labels: loss(model(x), y))  # type: ignore[misc]
        yield epoch + 1


@torch.no_grad()
def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in torch.split(inputs, 500)])


def share(said: Tensor, labels: Tensor) -> float:
    """Per cent of the labels that are predicted."""
    return round(100 * float((said.argmax(1) == labels).double().mean()), 3)


def complete(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """cell → method → accuracy and validation, means over seeds, of the cells in which all methods have run them."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for each in runs:
        found.setdefault(each["cell"], {}).setdefault(each["method"], []).append(each)
    return {
        cell: {
            method: {key: fmean(r[key] for r in rows) for key in ("accuracy", "validation")}
            for method, rows in methods.items()
        }
        for cell, methods in found.items()
        if {*METHODS, STOPPED} <= methods.keys()
        and len({len(methods[name]) for name in (*METHODS, STOPPED)}) == 1
    }


def regrets(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """method → cell → points below the best method of the cell; a family may also choose by noisy validation.

    What `IVON.auto` reaches does not count as the best for the others: it came later, and their figures stay.
    """
    found: dict[str, dict[str, float]] = {}
    for cell, methods in table.items():
        single = {name: methods[name] for name in (*METHODS, STOPPED)}
        best = max(each["accuracy"] for name, each in single.items() if name != ONE_CALL)
        for family, strength in FAMILIES.items():
            own = [each for name, each in methods.items() if f"{family} {strength}=" in name]
            chosen = max(own, key=lambda each: each["validation"])
            single[f"{family}, {strength} by validation in each cell"] = chosen
        for name, each in single.items():
            found.setdefault(name, {})[cell] = max(best - each["accuracy"], 0.0)
    return found


def report(runs: Sequence[Mapping[str, Any]]) -> str:
    """The table: mean and largest regret of every method, and its mean by task."""
    found = regrets(complete(runs))
    if not found:
        return "no cell has all methods yet"
    cells_done = list(found[SGD])
    tasks = list(dict.fromkeys(cell.split(" · ")[0] for cell in cells_done))
    width = max(map(len, found))
    lines = [
        f"Regret in points of accuracy over {len(cells_done)} cells: mean, largest, mean by task",
        f"{'':{width}}  " + " ".join(f"{title:>8}" for title in ("mean", "max", *tasks)),
    ]
    for name, by_cell in sorted(found.items(), key=lambda item: fmean(item[1].values())):
        figures = [fmean(by_cell.values()), max(by_cell.values())]
        figures += [
            fmean(value for cell, value in by_cell.items() if cell.startswith(f"{task} "))
            for task in tasks
        ]
        lines.append(f"{name:{width}}  " + " ".join(f"{figure:8.2f}" for figure in figures))
    return "\n".join(lines)


def main(quick: bool = False) -> None:
    """Run what is missing, and print the table of all that is stored."""
    pictures = PICTURES if "BAYESMOOTH_DATA" in os.environ else ()
    tasks = ("table", "digits") if quick else ("table", "digits", "text", *pictures)
    jobs = {
        (str(cell), seed, name): partial(run, cell, seed, name)
        for cell in cells(tasks)
        for seed in range(SEEDS.get(cell.task, 1))
        for name in METHODS
    }
    path = results_path("regret")
    runs = run_missing(path, ("cell", "seed", "method"), jobs, "regret")
    print(f"\n{report(runs)}\n\nruns: {path}")
