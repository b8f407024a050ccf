"""Fine-tuning pretrained networks on partly wrong labels: IVON by one call, beside AdamW and SAM at their best.

    BAYESMOOTH_DATA=… BAYESMOOTH_TEXTS=… python -m benchmarks finetune

AdamW runs at three rates; the accuracy on validation labels, which are as wrong as the others, chooses among them, and
at the chosen rate the smoothing and SAM's run follow. Runs are stored in results/finetune.jsonl (or in the folder that
BAYESMOOTH_OUT names), one line per run; what is there is not run again. --quick has the frozen body only;
BAYESMOOTH_FINETUNE_TASKS="top10 images" has these tasks only.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bayesmooth import metrics, progress
from bayesmooth.calling import call_model, recompute_batchnorm, take_logits
from bayesmooth.files import append_line, records, write_atomically
from bayesmooth.losses import CrossEntropy, LabelSmoothing, Loss
from bayesmooth.optim import IVON, SAM
from bayesmooth.optim.schedule import cosine
from benchmarks.finetune_tasks import TASKS, TITLES, Inputs, Problem, problem, take
from benchmarks.harness import Row, markdown, results_path, take_step

BATCH, WARMUP = 24, 0.1
SMOOTHING, RADIUS, DRAWS = (0.1, 0.4), 0.05, 8
SEEDS = 3


def train(
    model: nn.Module, optimizer: Optimizer, loss: Loss, data: Problem, epochs: int, seed: int
) -> Iterator[int]:
    """The numbers of the epochs, each once it is done; a cosine after a warm-up."""
    rates = [group["lr"] for group in optimizer.param_groups]
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        model.train()
        parts = torch.split(torch.randperm(len(data.labels), generator=order), BATCH)
        for done, index in enumerate(parts):
            factor = cosine((epoch + done / len(parts)) / epochs, warmup=WARMUP)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

            def value(index: Tensor = index) -> Tensor:
                found: Tensor = loss(logits(model, data.inputs, index), data.labels[index])
                return found

            take_step(optimizer, value)
        yield epoch + 1


def logits(model: nn.Module, inputs: Inputs, index: Tensor) -> Tensor:
    return take_logits(call_model(model, take(inputs, index)))


def batches(inputs: Inputs, count: int) -> list[Inputs]:
    return [take(inputs, index) for index in torch.split(torch.arange(count), 100)]


@torch.no_grad()
def probabilities(model: nn.Module, inputs: Inputs, count: int) -> Tensor:
    model.eval()
    return torch.cat(
        [take_logits(call_model(model, b)).softmax(-1) for b in batches(inputs, count)]
    )


def figures(probs: Tensor, labels: Tensor) -> Row:
    return {
        "accuracy": round(100 * metrics.accuracy(probs, labels), 2),
        "nll": round(metrics.nll(probs, labels), 4),
        "ece": round(metrics.ece(probs, labels), 4),
    }


def measure(model: nn.Module, data: Problem) -> Row:
    """At the weights as they stand: test, validation, and the share of wrong labels that it repeats."""
    wrong = (data.labels != data.clean_labels).nonzero().flatten()
    found = figures(probabilities(model, data.test_inputs, len(data.test_labels)), data.test_labels)
    held = probabilities(model, data.held_inputs, len(data.held_labels))
    found["validation"] = round(100 * metrics.accuracy(held, data.held_labels), 2)
    if len(wrong):
        repeated = probabilities(model, take(data.inputs, wrong), len(wrong))
        found["memorised"] = round(100 * metrics.accuracy(repeated, data.labels[wrong]), 1)
    return found


def descend(
    data: Problem, epochs: int, make: Callable[[Any], Optimizer], loss: Loss, seed: int
) -> Row:
    """Measured after the last epoch, and after the one that validation would have stopped at."""
    torch.manual_seed(seed)
    model = data.model(seed)
    best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    for epoch in train(model, optimizer, loss, data, epochs, seed):
        held = probabilities(model, data.held_inputs, len(data.held_labels))
        accuracy = metrics.accuracy(held, data.held_labels)
        if accuracy > best[0]:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            best = (accuracy, epoch, kept)
    end = measure(model, data)
    if best[1] == epochs:
        return {"end": end, "stopped": {**end, "epoch": epochs}}
    model.load_state_dict(best[2])
    return {"end": end, "stopped": {**measure(model, data), "epoch": best[1]}}


def vary(data: Problem, epochs: int, seed: int) -> Row:
    """IVON by one call: at the mean, averaged, and averaged with the σ that validation labels like best."""
    torch.manual_seed(seed)
    model, count = data.model(seed), len(data.labels)
    parts = torch.split(torch.randperm(count, generator=torch.Generator().manual_seed(seed)), BATCH)
    optimizer = IVON.auto(
        model,
        [(take(data.inputs, i), data.labels[i]) for i in parts],
        epochs,
        seed=seed,
        quiet=True,
    )
    chosen = {name: optimizer.param_groups[0][name] for name in ("lr", "hess_init")}
    for _ in train(model, optimizer, CrossEntropy(), data, epochs, seed):
        pass
    statistics = batches(data.inputs, count)
    recompute_batchnorm(model, statistics)
    row = {"end": measure(model, data), **chosen}
    posterior = optimizer.posterior(model)
    held = batches(data.held_inputs, len(data.held_labels))
    labelled = list(zip(held, torch.split(data.held_labels, 100), strict=True))
    scaled = posterior.scaled(model, labelled, 4, batchnorm=statistics[:1])
    test = batches(data.test_inputs, len(data.test_labels))
    for name, each in (("averaged", posterior), ("scaled", scaled)):
        averaged = each.predict(model, test, DRAWS, batchnorm=statistics[:1])
        row[name] = figures(averaged, data.test_labels)
    widths = [next(iter(each.std.values())).mean() for each in (scaled, posterior)]
    return {**row, "scale": round(float(widths[0] / widths[1]), 2)}


def adamw(rate: float) -> Callable[[Any], Optimizer]:
    return lambda weights: AdamW(weights, rate)


def sam(rate: float) -> Callable[[Any], Optimizer]:
    return lambda weights: SAM(weights, AdamW, rho=RADIUS, lr=rate)


def runs(task: str, noise: str, seed: int, done: Mapping[str, Row]) -> Iterator[Row]:
    """IVON; AdamW at its rates; at the best of them smoothing and SAM. What is done is not run again."""
    rates, epochs, found = TASKS[task].rates, TASKS[task].epochs, dict(done)
    data = problem(task, noise, seed)
    jobs: dict[str, Callable[[], Row]] = {"IVON": lambda: vary(data, epochs, seed)}
    for rate in rates:
        jobs[f"AdamW {rate:g}"] = partial(descend, data, epochs, adamw(rate), CrossEntropy(), seed)
    yield from _missing(jobs, found)
    best = max(rates, key=lambda r: found[f"AdamW {r:g}"]["stopped"]["validation"])
    jobs = {"SAM": partial(descend, data, epochs, sam(best), CrossEntropy(), seed)}
    for α in SMOOTHING:
        jobs[f"LS {α:g}"] = partial(descend, data, epochs, adamw(best), LabelSmoothing(α), seed)
    yield from _missing(jobs, found)


def _missing(jobs: Mapping[str, Callable[[], Row]], found: dict[str, Row]) -> Iterator[Row]:
    for name in [name for name in jobs if name not in found]:
        start = time.process_time()
        row = jobs[name]()
        found[name] = {"method": name, **row, "seconds": round(time.process_time() - start, 1)}
        yield found[name]


ADAMW = ("AdamW stopped", "AdamW end", "LS")
PEERS = (*ADAMW, "SAM")
COLUMNS = (*PEERS, "IVON", "averaged", "scaled")
FIGURES = {
    "accuracy": "accuracy, %",
    "nll": "NLL",
    "ece": "ECE",
    "memorised": "memorised, %",
}


def choose(rows: Mapping[str, Row]) -> dict[str, Row]:
    """One cell and seed: column → its figures, each strength chosen by validation labels."""

    def best(kind: str, when: str) -> Row | None:
        own = [row[when] for name, row in rows.items() if name.startswith(kind)]
        return max(own, key=lambda each: each["validation"]) if own else None

    found = {
        "AdamW stopped": best("AdamW", "stopped"),
        "AdamW end": best("AdamW", "end"),
        "LS": best("LS", "stopped"),
        "SAM": best("SAM", "stopped"),
        "IVON": best("IVON", "end"),
        **{name: rows["IVON"][name] for name in ("averaged", "scaled") if "IVON" in rows},
    }
    return {name: each for name, each in found.items() if each is not None}


def report(stored: Sequence[Row]) -> str:
    """One Markdown table per figure, one line per cell: means over the seeds for which every method has run."""
    cells: dict[tuple[str, str], dict[int, dict[str, Row]]] = {}
    for row in stored:
        seeds = cells.setdefault((row["task"], row["noise"]), {})
        seeds.setdefault(row["seed"], {})[row["method"]] = row
    chosen = {}
    for name, task in TASKS.items():
        every = len(task.rates) + len(SMOOTHING) + 2  # SAM and IVON
        for noise in task.noises:
            seeds = cells.get((name, noise), {})
            if whole := [choose(rows) for rows in seeds.values() if len(rows) == every]:
                chosen[name, noise] = whole
    parts = [summarise(chosen)]
    for figure, title in FIGURES.items():
        lines = [[title, "labels", "seeds", *COLUMNS]]
        for cell, whole in chosen.items():
            values = (_values(whole, name, figure) for name in COLUMNS)
            lines.append([*(TITLES[each] for each in cell), str(len(whole)), *map(_spread, values)])
        parts.append(markdown(lines))
    return "\n\n".join(parts)


def summarise(chosen: Mapping[tuple[str, str], Sequence[Mapping[str, Row]]]) -> str:
    """How IVON's mean stands to the best column of AdamW in each cell, and to each column under noise."""
    leads, noisy = [], []
    for (_, noise), whole in chosen.items():
        means = {name: fmean(_values(whole, name, "accuracy")) for name in (*PEERS, "IVON")}
        leads.append(means["IVON"] - max(means[name] for name in ADAMW))
        if noise != "clean":
            noisy.append({name: means["IVON"] - means[name] for name in PEERS} | {"": leads[-1]})
    near, mean = sum(lead >= -1 for lead in leads), {}
    for name in ("", *PEERS):
        mean[name] = f"{fmean(each[name] for each in noisy):+.1f}"
    return (
        f"IVON at its mean is at most a point behind AdamW's best column in {near} of {len(leads)} cells, and "
        f"{mean.pop('')} points from it on average over the {len(noisy)} cells with wrong labels. Which column "
        "is best is known only afterwards; the mean difference to each of them is "
        + ", ".join(f"{lead} ({name})" for name, lead in mean.items())
        + "."
    ).replace("-", "−")


def _values(seeds: Sequence[Mapping[str, Row]], name: str, figure: str) -> list[float]:
    return [each[name][figure] for each in seeds if figure in each.get(name, {})]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    digits = 1 if max(values) > 5 else 2
    middle = f"{fmean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ± {stdev(values):.{digits}f}"


def main(quick: bool = False) -> None:
    """Run what is missing, and print the table."""
    torch.set_num_threads(1)
    path = results_path("finetune")
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [name for name in TASKS if name.startswith("frozen") or not quick]
    only = os.environ.get("BAYESMOOTH_FINETUNE_TASKS", "").split()
    jobs = [
        (name, noise, seed)
        for seed in range(1 if quick else SEEDS)
        for name in (only or names)
        for noise in TASKS[name].noises
    ]
    for task, noise, seed in progress.track(jobs, description="fine-tuning"):
        stored = records(path)
        key = {"task": task, "noise": noise, "seed": seed}
        done = {row["method"]: row for row in stored if key.items() <= row.items()}
        for row in runs(task, noise, seed, done):
            append_line(path, json.dumps({**key, **row}, ensure_ascii=False))
    text = report(records(path))
    write_atomically(path.with_suffix(".txt"), text + "\n")
    print(f"{text}\n\nruns: {path}, tables: {path.with_suffix('.txt')}")
