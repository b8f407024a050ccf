"""The bodies of `bayesmooth reproduce`, `studies` and `demo`."""

import shlex
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from bayesmooth.cli.sweeps import check_place, make_executor, report_failures, sweep_options
from bayesmooth.errors import InputError
from bayesmooth.executors import Processes
from bayesmooth.words import format_duration
from reproduce import STUDIES
from reproduce.cost import expected_seconds
from reproduce.features import embed_data as embed_data
from reproduce.figures.demo import summarise
from reproduce.reproduce import Folders
from reproduce.reproduce import reproduce as reproduce_study
from reproduce.rows import read_table
from reproduce.scale import DEMO, find_scale


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims."""
    check_place(arguments)
    scale = find_scale(arguments.scale)
    chosen = list(scale.studies or STUDIES) if arguments.name == "all" else [arguments.name]
    if unknown := [name for name in chosen if name not in STUDIES]:
        raise InputError(f"study {unknown[0]!r}: must be all, or one of {', '.join(STUDIES)}")
    out = arguments.out or Path("results") / scale.name
    folders = Folders(out, arguments.runs or Path("runs") / scale.name, arguments.data_dir)
    outcomes, failed = [], False
    for name in chosen:
        try:
            how = {"settings": arguments.settings, "command": write_command(name, arguments)}
            how |= sweep_options(arguments)
            with make_executor(arguments) as where:
                outcomes += reproduce_study(STUDIES[name], scale, folders, where, **how)
        except InputError as problem:
            if len(chosen) == 1:
                raise
            failed = True  # one study without its data does not stop the rest
            print(f"{name}: {problem}", file=sys.stderr)
        else:
            print(f"{name}: {out / name}.png .svg .csv .json, {out / 'index.html'}")
    return report_failures(outcomes) or int(failed)


def write_command(name: str, arguments: Namespace) -> str:
    """The line that makes these figures again; where the data lies is a matter of the machine."""
    words = ["bayesmooth", "reproduce", name, "--scale", arguments.scale]
    return shlex.join(words + [word for each in arguments.settings for word in ("--set", each)])


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes."""
    scale = find_scale(arguments.scale)
    print(f"{scale.name}: {scale.about}\n")
    seen, total = set[str](), 0.0
    for study in (STUDIES[name] for name in scale.studies or STUDIES):
        recipes = [recipe for recipe in study.recipes(scale) if recipe.hash not in seen]
        seen |= {recipe.hash for recipe in recipes}
        seconds = expected_seconds(recipes, scale)
        total += seconds
        shared = len(study.recipes(scale)) - len(recipes)
        runs = f"{len(recipes)} runs" + (f" and {shared} of studies above" if shared else "")
        facts = [study.figure or "not in the paper", runs, format_duration(seconds)]
        print(f"{study.name:16} {study.title}: {study.shows}")
        print(f"{'':16} {' · '.join(facts)}")
    print(
        f"\nall: {len(seen)} runs, {format_duration(total)} expected with {scale.processes} at a time"
    )
    return 0


def demo(arguments: Namespace) -> int:
    """See it work: six ways to train on digits of which 30 % have a wrong label, in about a minute."""
    if arguments.seeds < 1:
        raise InputError(f"--seeds {arguments.seeds}: must be ≥ 1")
    scale = replace(DEMO, seeds=tuple(range(arguments.seeds)))
    out, how = arguments.out, {"command": "bayesmooth demo", "quiet": arguments.quiet}
    for name in scale.studies:
        with Processes(arguments.jobs) as executor:
            folders = Folders(out, out / "runs")
            reproduce_study(STUDIES[name], scale, folders, executor, threads=1, **how)
    rows = summarise(read_table(out / "demo.csv"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(f"\n{out / 'index.html'}")
    return 0
