"""Which learning rate SGD, LS and SAM get in the regret table: mean test accuracy over the cells of digits and texts.

    python -m benchmarks rates

IVON's lr was chosen on the same cells. One seed, another one than the first of the table.
"""

from statistics import fmean

import torch

from bayesmooth import progress
from benchmarks.regret import DESCENT, METHODS, run
from benchmarks.regret_tasks import cells

RATES = (0.01, 0.02, 0.05, 0.1)
TRIED = ("SGD", "LS α=0.5", "SAM ρ=0.2", "SAM ρ=0.5")
SEED = 1


def main(quick: bool = False) -> None:
    """Print one row per learning rate."""
    torch.set_num_threads(1)
    tasks = ("digits",) if quick else ("digits", "text")
    chosen = [cell for cell in cells(tasks) if cell.network != "resnet"]
    jobs = [(rate, cell, name) for rate in RATES for cell in chosen for name in TRIED]
    found: dict[float, dict[str, list[float]]] = {rate: {} for rate in RATES}
    usual = DESCENT["lr"]
    for rate, cell, name in progress.track(jobs, description="rates"):
        DESCENT["lr"] = rate
        for result in run(cell, name, METHODS[name], SEED):
            found[rate].setdefault(result["method"], []).append(result["accuracy"])
    DESCENT["lr"] = usual
    print(f"{'lr':6}" + "".join(f"{name:>22}" for name in found[RATES[0]]))
    for rate, methods in found.items():
        print(f"{rate:<6}" + "".join(f"{fmean(values):>22.1f}" for values in methods.values()))


if __name__ == "__main__":
    main()
