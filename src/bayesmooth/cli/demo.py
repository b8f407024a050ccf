"""`demo`."""

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bayesmooth.cli.studies import LOADED as LOADED
from bayesmooth.errors import InputError
from bayesmooth.lab.executors import Processes
from bayesmooth.lab.studies import STUDIES
from bayesmooth.lab.studies.figures.demo import summarise
from bayesmooth.lab.studies.reproduce import Folders, reproduce
from bayesmooth.lab.studies.rows import read_table
from bayesmooth.lab.studies.scale import DEMO


def demo(arguments: Namespace) -> int:
    """See it work: six ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    if arguments.seeds < 1:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1")
    scale = replace(DEMO, seeds=tuple(range(arguments.seeds)))
    out = arguments.out
    folders = Folders(out, out / "runs")
    for name in scale.studies:
        with Processes(arguments.jobs) as executor:
            how = {"command": "bayesmooth demo", "threads": 1, "quiet": arguments.quiet}
            reproduce(STUDIES[name], scale, folders, executor, **how)
    rows = summarise(read_table(out / "demo.csv"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print(f"\n{out / 'index.html'}")
    return 0


def demo_arguments(parser: ArgumentParser) -> None:
    """The options of `demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="where to write (default: out/demo)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    parser.add_argument(
        "--jobs",
        type=int,
        default=cores,
        help="runs at a time (default: one per core)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
