"""`sweep` and `tune`, and the options that they share with `reproduce`."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmooth.cli import add_run_options, add_settings
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, write_atomically

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from bayesmooth.lab.sweep import Outcome
    from bayesmooth.lab.tune import Trial

LOADED = ("bayesmooth.lab.tune",)
FAILED = 1
CLUSTERS = {
    "ray": ("address", "cpus", "gpus"),
    "slurm": ("cpus", "gpus", "hours", "partition"),
}
"""The options that each kind of cluster has; on this machine none of them means anything."""


def sweep(arguments: Namespace) -> int:
    """Train a recipe over a grid of settings, on this machine or a cluster; what is finished is not run again.

    examples:
      bayesmooth sweep digits-ls --grid loss.alpha=0,.1,.3 --grid train.seed=0:5 --jobs 2
      bayesmooth sweep mine.toml --grid optimizer.lr=.1,.2 --cluster ray --address auto --csv grid.csv
    """
    from bayesmooth.lab.compare import format_table
    from bayesmooth.lab.recipe import override, read_recipe
    from bayesmooth.lab.sweep import OVER, export_csv, grid, sweep_rows
    from bayesmooth.lab.sweep import sweep as run_all

    check_output(arguments.csv)
    tree = override(read_recipe(arguments.recipe), arguments.settings)
    recipes = grid(tree, arguments.grid, Path(arguments.recipe).name)
    with make_executor(arguments) as where:
        outcomes = run_all(
            recipes, arguments.out, where, data_dir=arguments.data_dir, **sweep_options(arguments)
        )
    ended = [outcome for outcome in outcomes if outcome.status in OVER]
    if ended:
        print(format_table(sweep_rows(ended)))
    if arguments.csv:
        export_csv(outcomes, arguments.csv)
        print(f"table: {arguments.csv}", file=sys.stderr)
    return report_failures(outcomes)


def sweep_arguments(parser: ArgumentParser) -> None:
    """The options of `sweep`."""
    parser.add_argument("recipe", help="a TOML file, or a name that `bayesmooth recipes` lists")
    parser.add_argument(
        "--grid",
        metavar="SECTION.KEY=VALUES",
        action="append",
        default=[],
        help="an axis of the grid: values with commas between, or 0:5 for 0 … 4; as often as you like",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where the runs go (default: runs)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write settings and figures there")
    shared_arguments(parser)


def tune(arguments: Namespace) -> int:
    """Choose a recipe's noise, or other settings, by the noisy labels of its validation split.

    examples:
      bayesmooth tune digits-ivon --write mine.toml
      bayesmooth tune mine.toml --grid optimizer.noise=.7,1,1.4 --grid optimizer.lr=.1,.2 --jobs 2
    """
    from bayesmooth.lab.compare import format_table
    from bayesmooth.lab.recipe import override, read_recipe
    from bayesmooth.lab.sweep import grid, name_recipes
    from bayesmooth.lab.tune import AUTO, AXES
    from bayesmooth.lab.tune import tune as choose

    check_output(arguments.write)
    settings = [*arguments.settings, *(() if arguments.grid else AUTO)]
    tree = override(read_recipe(arguments.recipe), settings)
    recipes = grid(tree, arguments.grid or AXES, Path(arguments.recipe).name)
    names = name_recipes(recipes)
    with make_executor(arguments) as where:
        short, whole = choose(
            recipes,
            arguments.out,
            where,
            shorten=arguments.shorten,
            keep=arguments.keep,
            data_dir=arguments.data_dir,
            **sweep_options(arguments),
        )
    trials = [*whole, *short]
    print(format_table([_row(trial, names) for trial in trials]))
    best = whole[0]
    if best.outcome.status == "finished":
        print(f"best: {names[best.recipe.hash]}, {best.outcome.path}")
        if arguments.write:
            write_atomically(arguments.write, best.recipe.to_toml())
            print(f"recipe: {arguments.write}", file=sys.stderr)
    return report_failures([trial.outcome for trial in trials])


def tune_arguments(parser: ArgumentParser) -> None:
    """The options of `tune`."""
    parser.add_argument("recipe", help="a TOML file, or a name that `bayesmooth recipes` lists")
    parser.add_argument(
        "--grid",
        metavar="SECTION.KEY=VALUES",
        action="append",
        default=[],
        help="settings to try, as in `sweep` (default: optimizer.noise=0.5,0.7,1.0,1.4,2.0)",
    )
    parser.add_argument(
        "--shorten", type=int, default=1, metavar="N", help="try over 1/N of the epochs first"
    )
    parser.add_argument(
        "--keep", type=int, default=2, help="how many of those to run whole (default: 2)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where the runs go (default: runs)"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the chosen recipe there, as TOML"
    )
    shared_arguments(parser)


def _row(trial: "Trial", names: dict[str, str]) -> dict[str, Any]:
    finished = trial.outcome.status == "finished"
    return {
        "setting": names[trial.recipe.hash],
        "epochs": trial.outcome.recipe.train.epochs,
        "status": trial.outcome.status,
        "validation": trial.accuracy if finished else None,
        "NLL": trial.nll if finished else None,
    }


def shared_arguments(parser: ArgumentParser) -> None:
    """Where runs go, and how many at a time."""
    add_settings(parser, "change a key in every recipe; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time here (default: 1)")
    parser.add_argument(
        "--cluster", choices=("ray", "slurm"), help="run on a cluster instead of here"
    )
    parser.add_argument("--address", help="Ray cluster to use; auto finds one (default: start one)")
    parser.add_argument("--cpus", type=int, help="CPUs per run on a cluster (default: 1)")
    parser.add_argument("--gpus", type=float, help="GPUs per run on a cluster (default: 0)")
    parser.add_argument("--partition", help="Slurm partition")
    parser.add_argument("--hours", type=float, help="time limit of a Slurm job (default: 24)")
    add_run_options(parser)


def make_executor(arguments: Namespace) -> "Executor":
    """Where the runs go."""
    from bayesmooth.lab.executors import Processes, RayTasks, Submitit

    check_place(arguments)
    cpus, gpus = arguments.cpus or 1, arguments.gpus or 0
    if arguments.cluster == "ray":
        return RayTasks(arguments.address, cpus=cpus, gpus=gpus)
    if arguments.cluster == "slurm":
        return Submitit(
            Path("slurm"),
            timeout_min=round(60 * (arguments.hours or 24)),
            cpus_per_task=cpus,
            gpus_per_node=int(gpus),
            **({"slurm_partition": arguments.partition} if arguments.partition else {}),
        )
    return Processes(arguments.jobs)


def check_place(arguments: Namespace) -> None:
    """Refuse options that the place of the runs does not have, rather than drop them."""
    for option in ("jobs", "cpus", "hours"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            raise InputError(f"--{option} {value}: must be > 0; leave it out for the default")
    for option in dict.fromkeys(option for options in CLUSTERS.values() for option in options):
        value = getattr(arguments, option)
        if value is not None and option not in CLUSTERS.get(arguments.cluster, ()):
            right = " or ".join(name for name, options in CLUSTERS.items() if option in options)
            raise InputError(
                f"--{option} {value}: needs --cluster {right}; add that, or leave it out"
            )
    if arguments.cluster == "slurm" and (arguments.gpus or 0) % 1:
        raise InputError(f"--gpus {arguments.gpus}: Slurm gives out whole GPUs; write 0, 1, …")


def sweep_options(arguments: Namespace) -> dict[str, Any]:
    """The other options of `sweep`; torch's threads (see OMP_NUM_THREADS) are divided among the jobs."""
    import torch

    local = max(1, torch.get_num_threads() // arguments.jobs)
    threads = (arguments.cpus or 1) if arguments.cluster else local
    return {"device": arguments.device, "threads": threads, "quiet": arguments.quiet}


def report_failures(outcomes: "list[Outcome]") -> int:
    """Say what did not end well; the exit code."""
    from bayesmooth.lab.sweep import OVER

    bad = [outcome for outcome in outcomes if outcome.status not in OVER]
    for outcome in bad:
        path, message = str(outcome.path), outcome.message
        words = (outcome.status, "" if path in message else path, message)
        print(": ".join(filter(None, words)), file=sys.stderr)
    return FAILED if bad else 0
