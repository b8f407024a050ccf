"""The bodies of `bayesmooth reproduce`, `studies` and `demo`."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bayesmooth.cli.sweeps import check_place, make_executor, report_failures, sweep_options
from bayesmooth.errors import InputError
from bayesmooth.executors import Processes
from bayesmooth.words import format_duration
from reproduce import STUDIES
from reproduce.cost import expected_seconds, time_steps
from reproduce.features import embed_data as embed_data
from reproduce.figures.demo import summarise
from reproduce.methods import NOISES
from reproduce.reproduce import Job
from reproduce.reproduce import reproduce as reproduce_study
from reproduce.rows import read_table
from reproduce.scale import DEMO, find_scale


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims."""
    check_place(arguments)
    scale = find_scale(arguments.scale)
    if arguments.seeds:
        scale = replace(scale, seeds=tuple(range(arguments.seeds)), more_seeds=())
    chosen = list(scale.studies or STUDIES) if arguments.name == "all" else [arguments.name]
    if unknown := [name for name in chosen if name not in STUDIES]:
        raise InputError(f"study {unknown[0]!r}: must be all, or one of {', '.join(STUDIES)}")
    out = arguments.out or Path("results") / scale.name
    runs = arguments.runs or Path("runs") / scale.name
    job = Job(STUDIES[chosen[0]], scale, out, runs, arguments.settings)
    job = replace(job, noises=find_noises(arguments.noises), how=sweep_options(arguments))
    jobs = [
        replace(job, study=STUDIES[name], command=write_command(name, arguments)) for name in chosen
    ]
    if scale.name == "day":
        announce(jobs, arguments.jobs)
    outcomes, failed = [], False
    for job in jobs:
        name = job.study.name
        try:
            with make_executor(arguments) as where:
                outcomes += reproduce_study(job, where)
        except InputError as problem:
            if len(chosen) == 1:
                raise
            failed = True  # one study without its data does not stop the rest
            print(f"{name}: {problem}", file=sys.stderr)
        else:
            print(f"{name}: {out / name}.png .csv .json, {out / 'index.html'}")
    return report_failures(outcomes) or int(failed)


def find_noises(wanted: Sequence[str]) -> list[str]:
    """The noises whose names end with these words, or have them without the per cent.

    >>> find_noises(["0.4", "symmetric 40"])
    ['κ = 0.4', 'symmetric 40 %']
    """
    found = []
    for word in wanted:
        match = [name for name in NOISES if word in (name, name.removesuffix(" %"), name[4:])]
        if not match:
            raise InputError(f"--noises {word}: must be κ (0.4) or one of {', '.join(NOISES)}")
        found += match
    return found


def announce(jobs: Sequence[Job], at_once: int) -> None:
    """Train a few steps of each method here, and say how long all runs will take."""
    recipes = {cell.recipe.hash: cell.recipe for job in jobs for cell in job.cells()}
    times = time_steps(recipes.values(), jobs[0].how.get("device"))
    total = sum(seconds * steps for seconds, steps in times.values())
    words = (f"{name} {1000 * seconds:.0f} ms" for name, (seconds, _) in times.items())
    print(f"a training step here: {', '.join(words)}")
    print(
        f"{len(recipes)} runs: about {format_duration(total / at_once)} of training with {at_once} at a time; finished "
        "runs are skipped, and --noises and --seeds make it less",
        flush=True,
    )


def write_command(name: str, arguments: Namespace) -> str:
    """The line that makes these figures again; where the data lies is a matter of the machine."""
    words = ["bayesmooth", "reproduce", name, "--scale", arguments.scale]
    words += [word for each in arguments.settings for word in ("--set", each)]
    words += ["--noises", *arguments.noises] if arguments.noises else []
    return shlex.join(words + (["--seeds", str(arguments.seeds)] if arguments.seeds else []))


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
    scale, out = replace(DEMO, seeds=tuple(range(arguments.seeds))), arguments.out
    how = {"threads": 1}
    for name in scale.studies:
        with Processes(arguments.jobs) as executor:
            job = Job(STUDIES[name], scale, out, out / "runs", command="bayesmooth demo", how=how)
            reproduce_study(job, executor)
    rows = summarise(read_table(out / "demo.csv"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(f"\n{out / 'index.html'}")
    return 0
