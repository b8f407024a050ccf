"""`sweep` and `tune`; `reproduce`, `studies` and `demo`, whose bodies lie in a clone beside the package."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import Executor
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmooth.cli import RECIPE, add_place
from bayesmooth.errors import InputError
from bayesmooth.files import check_output, write_atomically

if TYPE_CHECKING:
    from bayesmooth.train import Recipe
    from bayesmooth.train.sweep import Outcome

LOADED = ("bayesmooth.train", "pandas", "matplotlib.figure", "sklearn.datasets")
FAILED = 1
SCALES = "smoke, demo, laptop, overnight, features, day or full"


def add_sweep(parser: ArgumentParser) -> None:
    """The options of `sweep`."""
    values = "an axis of the grid: values between commas, or 0:5 for 0 to 4; may be repeated"
    add_grid(parser, values)
    csv = "write settings and figures to this file"
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
        outcomes = run_all(recipes, arguments.out, where, arguments.device, count_threads(arguments))
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
    add("--write", type=Path, metavar="FILE", help="write the chosen recipe to this file, as TOML")
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
        outcomes = choose(recipes, arguments.out, where, arguments.device, count_threads(arguments))
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


def count_threads(arguments: Namespace) -> int:
    """Those of each run; torch's threads (see OMP_NUM_THREADS) are divided among the jobs."""
    import torch

    local = max(1, torch.get_num_threads() // arguments.jobs)
    return (arguments.cpus or 1) if arguments.cluster else local


def report_failures(outcomes: "Sequence[Outcome]") -> int:
    """Say what did not end well; the exit code."""
    from bayesmooth.train.sweep import OVER

    bad = [outcome for outcome in outcomes if outcome.status not in OVER]
    for outcome in bad:
        path, message = str(outcome.path), outcome.message
        words = (outcome.status, "" if path in message else path, message)
        print(": ".join(filter(None, words)), file=sys.stderr)
    return FAILED if bad else 0


# ---- the paper ----


def add_reproduce(parser: ArgumentParser) -> None:
    """The options of `reproduce`."""
    add = parser.add_argument
    add("name", help="a study that `bayesmooth studies` lists, or all")
    add_studies(parser)
    add("--out", type=Path, help="where figures go (default: results/SCALE)")
    add("--runs", type=Path, help="where runs go (default: runs/SCALE)")
    noises = "only these noises, such as 0.4 (κ) or symmetric 40 (default: all of the scale)"
    add("--noises", nargs="+", default=[], metavar="NOISE", help=noises)
    add("--seeds", type=int, default=0, help="how many seeds (default: as many as the scale has)")
    add_place(parser)


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims.

    example:
      bayesmooth reproduce data-dependent --scale laptop --jobs 2 --data-dir ~/data
    """
    code: int = import_studies().reproduce(arguments)
    return code


def add_studies(parser: ArgumentParser) -> None:
    """The options of `studies`."""
    usual = f"how much to train: {SCALES} (default: laptop)"
    parser.add_argument("--scale", default="laptop", help=usual)


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes.

    example:
      bayesmooth studies --scale full
    """
    code: int = import_studies().studies(arguments)
    return code


def add_demo(parser: ArgumentParser) -> None:
    """The options of `demo`."""
    add, out = parser.add_argument, Path("out/demo")
    add("--out", type=Path, default=out, help=f"where to write (default: {out})")
    add("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    add("--jobs", type=int, default=cores, help="runs at a time (default: one per core)")
    add("--quiet", action="store_true", help="no progress")


def demo(arguments: Namespace) -> int:
    """See it work: five ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    code: int = import_studies().demo(arguments)
    return code


def import_studies() -> Any:
    """The module `reproduce.commands` of the clone that the package or the current directory belongs to."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "reproduce" / "commands.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return import_module("reproduce.commands")
    addresses = dict(line.split(", ") for line in metadata("bayesmooth").get_all("Project-URL", []))
    raise InputError(
        f"the paper's studies are not part of the installed package; git clone {addresses['Homepage']}, "
        "and start the command in that folder"
    )
