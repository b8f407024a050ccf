"""Can noisy validation labels choose the noise of IVON, and can short runs do it for long ones?

    BAYESMOOTH_TUNING=results/tuning.jsonl python -m benchmarks tuning

Digits and texts with 40 % wrong labels, in ten classes and in two, with and without batch norm. The noise of
`hess_init="auto"` is multiplied by several factors; ties go to the one nearest to 1. Runs are stored in the file that
BAYESMOOTH_TUNING names (default: tuning.jsonl), one line per run; what is there is not run again.
"""

import json
import os
from pathlib import Path

import torch

from bayesmooth import progress
from bayesmooth.files import append_line, records
from bayesmooth.losses import CrossEntropy
from benchmarks.regret import Method, ivon, run
from benchmarks.regret_tasks import EPOCHS, Cell

FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
KEEP = 2  # settings that short runs leave over
Runs = dict[tuple[str, float], dict[str, float]]


def choose(
    runs: Runs, cell: Cell, among: tuple[float, ...] = FACTORS, keep: int = 1
) -> tuple[float, ...]:
    """The factors with the best accuracy under noisy validation labels, best first."""

    def rank(factor: float) -> tuple[float, float]:
        return -runs[str(cell), factor]["validation"], abs(factor - 1)

    return tuple(sorted(among, key=rank)[:keep])


def main(quick: bool = False) -> None:
    """Run what is missing, and print the table."""
    torch.set_num_threads(1)
    path = Path(os.environ.get("BAYESMOOTH_TUNING", "tuning.jsonl"))
    tasks = ("digits",) if quick else ("digits", "text", "parity", "pair", "halves")
    pairs = [
        tuple(Cell(task, network, "symmetric", epochs) for epochs in EPOCHS[task])
        for task in tasks
        for network in ("mlp+bn", "mlp")
    ]
    jobs = [(cell, factor) for pair in pairs for cell in pair for factor in FACTORS]
    done = {(each["cell"], each["noise"]) for each in records(path)}
    todo = [(cell, factor) for cell, factor in jobs if (str(cell), factor) not in done]
    for cell, factor in progress.track(todo, description="tuning"):
        for result in run(cell, "IVON", Method(ivon("auto", noise=factor), CrossEntropy())):
            append_line(path, json.dumps(result | {"noise": factor}, ensure_ascii=False))
    runs = {(each["cell"], each["noise"]): each for each in records(path)}
    print("\nAccuracy (noisy validation accuracy) by factor, and points lost by the choice\n")
    for short, whole in pairs:
        for cell in (short, whole):
            rows = [runs[str(cell), factor] for factor in FACTORS]
            shown = [f"{row['accuracy']:.1f} ({row['validation']:.1f})" for row in rows]
            print(f"{cell!s:40}" + "  ".join(shown))
        found = {factor: runs[str(whole), factor]["accuracy"] for factor in FACTORS}
        left = choose(runs, short, keep=KEEP)
        titles = ("whole runs choose", f"short runs leave {left[0]:g} and {left[1]:g}; chosen")
        for title, among in zip(titles, (FACTORS, left), strict=True):
            (factor,) = choose(runs, whole, among)
            print(f"  {title} {factor:g}: {max(found.values()) - found[factor]:.1f} lost")


if __name__ == "__main__":
    main()
