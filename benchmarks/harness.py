"""Time named callables in turn, round after round: a busy machine slows all of them alike."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

Jobs = Mapping[str, Callable[[], object]]


def measure(jobs: Jobs, *, repeats: int = 15) -> dict[str, float]:
    """Median seconds of each job; one round to warm up, then `repeats` rounds over all of them."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(repeats + 1):
        for name, job in jobs.items():
            start = perf_counter()
            job()
            if round_:
                times[name].append(perf_counter() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def compare(jobs: Jobs, *, baseline: str, repeats: int = 15) -> dict[str, float]:
    """Median time of each job over the median time of the job named `baseline`."""
    medians = measure(jobs, repeats=repeats)
    return {name: seconds / medians[baseline] for name, seconds in medians.items()}


def table(title: str, ratios: Mapping[str, float], goals: Mapping[str, float] | float = {}) -> None:
    """Print a row for each ratio, with its goal (one for all, or by name) and whether it holds."""
    width = max(len(name) for name in ratios)
    print(f"\n{title}\n{'':{width}}    ratio     goal")
    for name, ratio in ratios.items():
        goal = goals.get(name) if isinstance(goals, Mapping) else goals
        verdict = "" if goal is None else f"  ≤ {goal:5.2f}  {'ok' if ratio <= goal else 'MISSED'}"
        print(f"{name:{width}}  {ratio:6.2f}×{verdict}")
