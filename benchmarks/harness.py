"""Time named callables in turn, round after round: a busy machine slows all of them alike. And tables of figures."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import pandas

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


def accuracy_table(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str], means: Mapping[str, Sequence[str]]
) -> str:
    """Accuracy in per cent, mean ± std over seeds: one line per data set, one column per method.

    `means` are titles of further lines, each the mean over some of the data sets, where all of them were measured.
    """
    values = 100 * pandas.DataFrame(rows).set_index(["data", "method"])["accuracy"]
    groups = values.groupby(level=[0, 1], sort=False)
    centre, spread = groups.mean().unstack(sort=False), groups.std().fillna(0).unstack(sort=False)
    cells = centre.map("{:.1f}".format) + " ± " + spread.map("{:.1f}".format)
    cells = cells.where(centre.notna(), "")
    for title, some in means.items():
        over = centre.reindex(some).mean(skipna=False)
        cells.loc[title] = over.map("{:.1f}".format).where(over.notna(), "")
    text: str = (
        cells.reindex(columns=methods, fill_value="")
        .rename_axis(index=None, columns=None)
        .to_string()
    )
    return text
