"""`sweep` and `tune`, and the options that they share with `reproduce`."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmooth.cli.options import RECIPE, add_place
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, write_atomically

if TYPE_CHECKING:
    from bayesmooth.train import Recipe
    from bayesmooth.train.sweep import Outcome

LOADED = ("bayesmooth.train", "sklearn.datasets")
FAILED = 1


def add_sweep(parser: ArgumentParser) -> None:
    """The options of `sweep`."""
    values = (
        "an axis of the grid: values with commas between, or 0:5 for 0 … 4; as often as you like"
    )
    add_grid(parser, values)
    csv = "write settings and figures there"
    parser.add_argument("--csv", type=Path, metavar="FILE", help=csv)
    add_place(parser)


def add_grid(parser: ArgumentParser, values: str) -> None:
    """The recipe and the axes along which it is changed."""
    add, axis = parser.add_argument, "SECTION.KEY=VALUES"
    add("recipe", help=RECIPE)
    add("--grid", metavar=axis, action="append", default=[], help=values)
    add("--out", type=Path, default=Path("runs"), help="where the runs go (default: runs)")


def sweep(arguments: Namespace) -> int:
    """Train a recipe over a grid of settings, on this machine or a cluster; what is finished is not run again.

    examples:
      bayesmooth sweep digits-ls --grid loss.alpha=0,.1,.3 --grid train.seed=0:5 --jobs 2
      bayesmooth sweep mine.toml --grid optimizer.lr=.1,.2 --cluster ray --address auto --csv grid.csv
    """
    from bayesmooth.train.compare import format_table
    from bayesmooth.train.sweep import OVER, export_csv, sweep_rows
    from bayesmooth.train.sweep import sweep as run_all

    check_output(arguments.csv)
    recipes = _read_grid(arguments, arguments.grid)
    with make_executor(arguments) as where:
        outcomes = run_all(recipes, arguments.out, where, **sweep_options(arguments))
    if ended := [outcome for outcome in outcomes if outcome.status in OVER]:
        print(format_table(sweep_rows(ended)))
    if arguments.csv:
        export_csv(outcomes, arguments.csv)
        print(f"table: {arguments.csv}", file=sys.stderr)
    return report_failures(outcomes)


def add_tune(parser: ArgumentParser) -> None:
    """The options of `tune`."""
    add, usual = parser.add_argument, "optimizer.noise=0.3,1.0,2.0"
    add_grid(parser, f"settings to try, as in `sweep` (default: {usual})")
    add("--write", type=Path, metavar="FILE", help="write the chosen recipe there, as TOML")
    add_place(parser)


def tune(arguments: Namespace) -> int:
    """Choose a recipe's noise, or other settings, by the noisy labels of its validation split.

    examples:
      bayesmooth tune digits-ivon --write mine.toml
      bayesmooth tune mine.toml --grid optimizer.noise=.7,1,1.4 --grid optimizer.lr=.1,.2 --jobs 2
    """
    from bayesmooth.train.compare import format_table
    from bayesmooth.train.sweep import NOISES, name_recipes
    from bayesmooth.train.sweep import tune as choose

    check_output(arguments.write)
    recipes = _read_grid(arguments, arguments.grid or NOISES)
    names = name_recipes(recipes)
    with make_executor(arguments) as where:
        outcomes = choose(recipes, arguments.out, where, **sweep_options(arguments))
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = {"setting": names[outcome.recipe.hash], "status": outcome.status}
        report = outcome.run.report() if outcome.status == "finished" else {}
        row["validation"] = report.get("validation.accuracy")
        rows.append(row | {"NLL": report.get("validation.nll")})
    print(format_table(rows))
    best = outcomes[0]
    if best.status == "finished":
        print(f"best: {names[best.recipe.hash]}, {best.path}")
        if arguments.write:
            write_atomically(arguments.write, best.recipe.to_toml())
            print(f"recipe: {arguments.write}", file=sys.stderr)
    return report_failures(outcomes)


def _read_grid(arguments: Namespace, axes: Sequence[str]) -> "list[Recipe]":
    from bayesmooth.train import override, read_recipe
    from bayesmooth.train.sweep import grid

    tree = override(read_recipe(arguments.recipe), arguments.settings)
    return grid(tree, axes, Path(arguments.recipe).name)


def make_executor(arguments: Namespace) -> Executor:
    """Where the runs go."""
    from bayesmooth.executors import Processes, RayTasks

    check_place(arguments)
    if arguments.cluster == "ray":
        cpus, gpus = arguments.cpus or 1, arguments.gpus or 0
        return RayTasks(arguments.address, cpus=cpus, gpus=gpus)
    return Processes(arguments.jobs)


def check_place(arguments: Namespace) -> None:
    """Refuse options that the place of the runs does not have, rather than drop them."""
    for option in ("jobs", "cpus"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            raise InputError(f"--{option} {value}: must be > 0; leave it out for the default")
    for option in ("address", "cpus", "gpus"):
        value = getattr(arguments, option)
        if value is not None and arguments.cluster is None:
            raise InputError(f"--{option} {value}: needs --cluster ray; add that, or leave it out")


def sweep_options(arguments: Namespace) -> dict[str, Any]:
    """The other options of `sweep`; torch's threads (see OMP_NUM_THREADS) are divided among the jobs."""
    import torch

    local = max(1, torch.get_num_threads() // arguments.jobs)
    threads = (arguments.cpus or 1) if arguments.cluster else local
    return {"device": arguments.device, "threads": threads}


def report_failures(outcomes: "Sequence[Outcome]") -> int:
    """Say what did not end well; the exit code."""
    from bayesmooth.train.sweep import OVER

    bad = [outcome for outcome in outcomes if outcome.status not in OVER]
    for outcome in bad:
        path, message = str(outcome.path), outcome.message
        words = (outcome.status, "" if path in message else path, message)
        print(": ".join(filter(None, words)), file=sys.stderr)
    return FAILED if bad else 0
