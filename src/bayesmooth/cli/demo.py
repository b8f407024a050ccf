"""`demo`."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bayesmooth.studies.demo import demo as show
from bayesmooth.studies.demo.live import text
from bayesmooth.studies.demo.results import sentences
from bayesmooth.training.executors import Processes

LOADED = ("sklearn.datasets", "torch._dynamo")


def demo(arguments: Namespace) -> int:
    """See it work: three methods on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    with Processes(arguments.jobs) as executor:
        # every run needs these, and would spend more time on loading them than on training
        executor.context.set_forkserver_preload(["bayesmooth.training", *LOADED])
        found = show(
            arguments.out,
            executor,
            seeds=arguments.seeds,
            settings=arguments.settings,
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
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="change a key in every recipe; as often as you like",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
