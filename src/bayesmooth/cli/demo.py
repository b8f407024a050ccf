"""`demo`."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bayesmooth.lab.executors import Processes
from bayesmooth.lab.studies.figures.demo import demo as show
from bayesmooth.lab.studies.figures.demo.live import text
from bayesmooth.lab.studies.figures.demo.results import sentences


def demo(arguments: Namespace) -> int:
    """See it work: three methods on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    with Processes(arguments.jobs) as executor:
        found = show(
            arguments.out,
            executor,
            seeds=arguments.seeds,
            epochs=arguments.epochs,
            quiet=arguments.quiet,
        )
    print(text(found.results), "", *sentences(found.results), sep="\n", end="\n\n")
    print(found.page)
    return 0


def demo_arguments(parser: ArgumentParser) -> None:
    """The options of `demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="where to write (default: out/demo)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs a method (default: 3)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="runs at a time (default: one a core)",
    )
    parser.add_argument("--epochs", type=int, help="of every run (default: the recipes')")
    parser.add_argument("--quiet", action="store_true", help="no progress")
