"""`reproduce`, `studies` and `demo`."""

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bayesmooth.cli.sweeps import (
    check_place,
    make_executor,
    report_failures,
    shared_arguments,
    sweep_options,
)
from bayesmooth.errors import InputError
from bayesmooth.words import format_duration

SCALES = "smoke, demo, laptop, overnight, features, showcase or full"
LOADED = ("bayesmooth.lab.studies.reproduce", "pandas", "matplotlib.figure", "sklearn.datasets")
"""What the command needs later; loaded before it starts, because Ctrl-C must not hit a module that is being loaded."""


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims.

    example:
      bayesmooth reproduce data-dependent --scale laptop --jobs 2 --data-dir ~/data
    """
    from bayesmooth.lab.studies import STUDIES
    from bayesmooth.lab.studies.reproduce import Folders
    from bayesmooth.lab.studies.reproduce import reproduce as reproduce_study
    from bayesmooth.lab.studies.scale import find_scale

    check_place(arguments)
    scale = find_scale(arguments.scale)
    chosen = list(scale.studies or STUDIES) if arguments.name == "all" else [arguments.name]
    unknown = [name for name in chosen if name not in STUDIES]
    if unknown:
        raise InputError(f"study {unknown[0]!r}: must be all, or one of {', '.join(STUDIES)}")
    out = arguments.out or Path("results") / scale.name
    folders = Folders(out, arguments.runs or Path("runs") / scale.name, arguments.data_dir)
    outcomes, failed = [], False
    for name in chosen:
        try:
            with make_executor(arguments) as where:
                outcomes += reproduce_study(
                    STUDIES[name],
                    scale,
                    folders,
                    where,
                    settings=arguments.settings,
                    command=command(name, arguments),
                    **sweep_options(arguments),
                )
        except InputError as problem:
            if len(chosen) == 1:
                raise
            failed = True  # one study without its data does not stop the rest
            print(f"{name}: {problem}", file=sys.stderr)
        else:
            print(f"{name}: {out / name}.png .svg .csv .json, {out / 'index.html'}")
    return report_failures(outcomes) or int(failed)


def reproduce_arguments(parser: ArgumentParser) -> None:
    """The options of `reproduce`."""
    parser.add_argument("name", help="a study that `bayesmooth studies` lists, or all")
    parser.add_argument(
        "--scale", default="laptop", help=f"how much to train: {SCALES} (default: laptop)"
    )
    parser.add_argument("--out", type=Path, help="where figures go (default: results/SCALE)")
    parser.add_argument("--runs", type=Path, help="where runs go (default: runs/SCALE)")
    shared_arguments(parser)


def command(name: str, arguments: Namespace) -> str:
    """The line that makes these figures again; where the data lies is a matter of the machine."""
    words = ["bayesmooth", "reproduce", name, "--scale", arguments.scale]
    return shlex.join(words + [word for each in arguments.settings for word in ("--set", each)])


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes.

    example:
      bayesmooth studies --scale full
    """
    from bayesmooth.lab.studies import STUDIES
    from bayesmooth.lab.studies.cost import expected_seconds
    from bayesmooth.lab.studies.scale import find_scale

    scale = find_scale(arguments.scale)
    print(f"{scale.name}: {scale.about}\n")
    seen: set[str] = set()
    total = 0.0
    for study in (STUDIES[name] for name in scale.studies or STUDIES):
        recipes = [recipe for recipe in study.recipes(scale) if recipe.hash not in seen]
        seen |= {recipe.hash for recipe in recipes}
        seconds = expected_seconds(recipes, scale)
        total += seconds
        shared = len(study.recipes(scale)) - len(recipes)
        print(f"{study.name:16} {study.title}: {study.shows}")
        print(
            f"{'':16} {study.figure or 'not in the paper'} · {_runs(len(recipes), shared)} · {format_duration(seconds)}"
        )
    print(
        f"\nall: {len(seen)} runs, {format_duration(total)} expected with {scale.processes} at a time"
    )
    return 0


def studies_arguments(parser: ArgumentParser) -> None:
    """The options of `studies`."""
    parser.add_argument(
        "--scale", default="laptop", help=f"how much to train: {SCALES} (default: laptop)"
    )


def _runs(count: int, shared: int) -> str:
    return f"{count} runs" + (f" and {shared} of studies above" if shared else "")


def demo(arguments: Namespace) -> int:
    """See it work: six ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    from bayesmooth.lab.executors import Processes
    from bayesmooth.lab.studies import STUDIES
    from bayesmooth.lab.studies.figures.demo import summarise
    from bayesmooth.lab.studies.reproduce import Folders
    from bayesmooth.lab.studies.reproduce import reproduce as reproduce_study
    from bayesmooth.lab.studies.rows import read_table
    from bayesmooth.lab.studies.scale import DEMO

    if arguments.seeds < 1:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1")
    scale = replace(DEMO, seeds=tuple(range(arguments.seeds)))
    out = arguments.out
    folders = Folders(out, out / "runs")
    for name in scale.studies:
        with Processes(arguments.jobs) as executor:
            how = {"command": "bayesmooth demo", "threads": 1, "quiet": arguments.quiet}
            reproduce_study(STUDIES[name], scale, folders, executor, **how)
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
