"""Tools of the benchmarks: the places of data and results, and rows that are not measured twice."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

from bayesmooth.files import append_line, records
from bayesmooth.progress import track

T = TypeVar("T")
Row = dict[str, Any]


def time_cpu(job: Callable[[], T]) -> tuple[T, float]:
    """The result of the job, and its seconds of processor time."""
    start = process_time()
    result = job()
    return result, process_time() - start


def results_path(name: str) -> Path:
    """The file of the rows of a benchmark: in results/, or in the folder that BAYESMOOTH_OUT names."""
    return Path(os.environ.get("BAYESMOOTH_OUT", "results")) / f"{name}.jsonl"


def real_data() -> list[Path]:
    """The .npz files with people's errors in the folder that BAYESMOOTH_AUDIT_DATA names, if it does."""
    folder = os.environ.get("BAYESMOOTH_AUDIT_DATA")
    return sorted(Path(folder).glob("*.npz")) if folder else []


def run_missing(
    path: Path, keys: Sequence[str], jobs: Mapping[tuple[Any, ...], Callable[[], Iterable[Row]]], description: str
) -> list[Row]:
    """All rows of a file of JSON lines, after running the jobs whose values of `keys` no row has yet.

    A row is written as soon as it is there, with five digits, so that a run that was stopped goes on from there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(row[key] for key in keys) for row in records(path)}
    for job in track([jobs[key] for key in jobs if key not in done], description=description):
        for row in job():
            short = json.loads(json.dumps(row), parse_float=lambda digits: float(f"{float(digits):.5g}"))
            append_line(path, json.dumps(short, ensure_ascii=False))
    return records(path)
