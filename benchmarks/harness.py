"""What the benchmarks share: timing in turns, training steps, results that are not measured twice, and tables.

Callables are timed in turn, round after round: a busy machine slows all of them alike.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesmooth.files import append_line, records
from bayesmooth.progress import track

T = TypeVar("T")
Jobs = Mapping[str, Callable[[], object]]
Row = dict[str, Any]
Ratios = Mapping[str, float]


def measure_seconds(jobs: Jobs, repeats: int, clock: Callable[[], float] = perf_counter) -> dict[str, float]:
    """Median seconds of each job; one round to warm up, then `repeats` rounds over all of them."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(repeats + 1):
        for name, job in jobs.items():
            start = clock()
            job()
            if round_:
                times[name].append(clock() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def compare_seconds(title: str, jobs: Jobs, goals: Ratios | None = None, *, repeats: int) -> dict[str, float]:
    """Print and return each job's median processor time over that of the first one."""
    seconds = measure_seconds(jobs, repeats, process_time)
    first = next(iter(seconds.values()))
    ratios = {name: each / first for name, each in seconds.items()}
    print_ratios(title, ratios, goals)
    return ratios


def print_ratios(title: str, ratios: Ratios, goals: Ratios | None = None) -> None:
    """One row per ratio; those that have a goal must not be larger."""
    width = max(len(name) for name in ratios)
    print(f"\n{title}\n{'':{width}}    ratio     goal")
    for name, ratio in ratios.items():
        goal = (goals or {}).get(name)
        verdict = "" if goal is None else f"  ≤ {goal:5.2f}  {'ok' if ratio <= goal else 'MISSED'}"
        print(f"{name:{width}}  {ratio:6.2f}×{verdict}", flush=True)


def time_cpu(job: Callable[[], T]) -> tuple[T, float]:
    """What the job returns, and its seconds of processor time."""
    start = process_time()
    result = job()
    return result, process_time() - start


def take_step(optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """One step of any optimizer, which calls the loss as often as it needs."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return value

    optimizer.step(closure)  # type: ignore[arg-type]


def results_path(name: str) -> Path:
    """Where the rows of a benchmark are kept: in results/, or in the folder that BAYESMOOTH_OUT names."""
    return Path(os.environ.get("BAYESMOOTH_OUT", "results")) / f"{name}.jsonl"


def real_data() -> Path | None:
    """The folder of .npz files with people's errors that BAYESMOOTH_AUDIT_DATA names, if it does."""
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    return Path(folder) if folder else None


def run_missing(
    path: Path, keys: Sequence[str], jobs: Mapping[tuple[Any, ...], Callable[[], Iterable[Row]]], description: str
) -> list[Row]:
    """All rows of a file of JSON lines, after running the jobs whose values of `keys` no row has yet.

    A row is written as soon as it is there, so that a run that was stopped goes on where it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(row[key] for key in keys) for row in records(path)}
    for job in track([jobs[key] for key in jobs if key not in done], description=description):
        for row in job():
            append_line(path, json.dumps(row, ensure_ascii=False))
    return records(path)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The lines as a Markdown table, whose first one is the head."""
    head, *rows = lines
    return "\n".join(map(markdown_row, (head, ["---"] * len(head), *rows)))


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
