"""`sweep`; `data`, `reproduce`, `studies` and `demo`, whose bodies lie in a clone beside the package."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmooth.cli import DATA_DIR, MANY, PLACE, QUIET, RECIPE, command, option
from bayesmooth.errors import InputError, require
from bayesmooth.files import check_output, write_atomically

if TYPE_CHECKING:
    from bayesmooth.train.sweep import Outcome

FAILED = 1
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
SCALES = ("smoke", "demo", "laptop", "overnight", "features", "day", "full")
SCALE = option("--scale", choices=SCALES, default="laptop", help="size of the runs (default: laptop)")


@command(
    option("recipe", help=RECIPE),
    option(
        "--grid",
        metavar="SECTION.KEY=VALUES",
        help="an axis of the grid: values between commas, or 0:5 for 0 to 4; may be repeated",
        **MANY,
    ),
    option("--out", type=Path, default=Path("runs"), help="folder of the runs (default: runs)"),
    *PLACE,
    option("--csv", type=Path, metavar="FILE", help="write settings and figures to this file"),
    option("--best", type=Path, metavar="FILE", help="write the recipe that best predicts the held-out labels"),
)
def sweep(arguments: Namespace) -> int:
    """Train a recipe over a grid of settings, on this machine or a cluster; finished runs are skipped.

    examples:
      bayesmooth sweep digits-ls --grid loss.alpha=0,.1,.3 --grid train.seed=0:5 --jobs 2
      bayesmooth sweep digits-ivon --grid optimizer.noise=.3,1,2 --best mine.toml
      bayesmooth sweep mine.toml --grid optimizer.lr=.1,.2 --cluster ray --address auto --csv grid.csv
    """
    from bayesmooth.train import override, read_recipe
    from bayesmooth.train.compare import compare_runs, format_table
    from bayesmooth.train.sweep import OVER, choose_best, export_rows, grid, name_recipes
    from bayesmooth.train.sweep import sweep as run_all

    check_output(arguments.csv)
    check_output(arguments.best)
    tree = override(read_recipe(arguments.recipe), arguments.settings)
    recipes = grid(tree, arguments.grid, Path(arguments.recipe).name)
    if arguments.best and not all(recipe.data.validation for recipe in recipes):
        raise InputError("data.validation = 0: nothing to choose by; hold a part back with --set data.validation=0.2")
    with make_executor(arguments) as where:
        outcomes = run_all(recipes, arguments.out, where, arguments.device)
    names = name_recipes(recipes)
    if ended := [outcome for outcome in outcomes if outcome.status in OVER]:
        rows = compare_runs([outcome.run for outcome in ended])
        print(format_table([row | {"run": names[o.run.recipe.hash]} for o, row in zip(ended, rows, strict=True)]))
    if arguments.csv:
        table = require("pandas", extra="train").DataFrame(export_rows(outcomes), dtype=object)  # with whole numbers
        write_atomically(arguments.csv, table.to_csv(index=False, lineterminator="\n"))
        print(f"table: {arguments.csv}", file=sys.stderr)
    if arguments.best and (best := choose_best(outcomes)):
        write_atomically(arguments.best, best.run.recipe.to_toml())
        print(f"best: {names[best.run.recipe.hash]}, {best.run.path}")
    return report_failures(outcomes)


def make_executor(arguments: Namespace) -> Executor:
    """The executor of the runs; options that it does not have are refused rather than dropped."""
    from bayesmooth.train.sweep import Processes, RayTasks

    for name in ("jobs", "cpus"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise InputError(f"--{name} {value}: must be > 0; leave it out for the default")
    for name in ("address", "cpus", "gpus"):
        value = getattr(arguments, name)
        if value is not None and arguments.cluster is None:
            raise InputError(f"--{name} {value}: needs --cluster ray; add that, or leave it out")
    if arguments.cluster == "ray":
        return RayTasks(arguments.address, cpus=arguments.cpus or 1, gpus=arguments.gpus or 0)
    return Processes(arguments.jobs)


def report_failures(outcomes: "Sequence[Outcome]") -> int:
    """Print the runs that did not end well; return the exit code."""
    from bayesmooth.train.sweep import OVER

    bad = [outcome for outcome in outcomes if outcome.status not in OVER]
    for outcome in bad:
        path, message = str(outcome.run.path), outcome.message
        words = (outcome.status, "" if path in message else path, message)
        print(": ".join(filter(None, words)), file=sys.stderr)
    return FAILED if bad else 0


# ---- the paper, and its data ----


@command(
    option("action", choices=("list", "embed"), metavar="list|embed", help="what to do"),
    option("name", nargs="?", help="the data set to embed, as `list` names it"),
    DATA_DIR,
    option("--set", dest="settings", metavar="KEY=VALUE", help="an option of the data set, such as limit", **MANY),
)
def data(arguments: Namespace) -> int:
    """List the data sets and how to get them, or embed the pictures of one.

    `embed` encodes the pictures with the frozen encoder of the extra `audit`, for `reproduce --scale features`.

    examples:
      bayesmooth data list
      bayesmooth data embed cifar10 --set limit=10000 --data-dir ~/data
    """
    from bayesmooth.data import data_root, datasets
    from bayesmooth.train.recipe import parse_value

    if arguments.action == "list":
        root = data_root(None)
        for title, dataset in datasets().items():
            missing = dataset.places and not any((root / place).exists() for place in dataset.places)
            remark = f" (not in {root})" if missing else ""
            print(f"{title:14} {dataset.about}")
            print(f"{'':14}   files  {dataset.files}{remark}")
            advice = dataset.bring.replace("DIR", str(root)).replace("\n", "\n" + " " * 22)
            print(f"{'':14}   get    {advice}")
        return 0
    if arguments.name is None:
        raise InputError("data embed: which one? `bayesmooth data list` has the names")
    pairs = [setting.partition("=") for setting in arguments.settings]
    if wrong := ["".join(pair) for pair in pairs if not pair[1]]:
        raise InputError(f"{wrong[0]!r}: not a setting; write key=value")
    for path in import_studies().embed_data(arguments.name, **{key: parse_value(text) for key, _, text in pairs}):
        print(path)
    return 0


@command(
    option("name", help="a study that `bayesmooth studies` lists, or all"),
    SCALE,
    option("--out", type=Path, help="folder of the figures (default: results/SCALE)"),
    option("--runs", type=Path, help="folder of the runs (default: runs/SCALE)"),
    option("--noises", nargs="+", default=[], metavar="NOISE", help="only these: 0.4 (κ), 'symmetric 40'"),
    option("--seeds", type=int, default=0, help="number of seeds (default: as many as the scale has)"),
    *PLACE,
)
def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims.

    example:
      bayesmooth reproduce data-dependent --scale laptop --jobs 2 --data-dir ~/data
    """
    return int(import_studies().reproduce(arguments))


@command(SCALE)
def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, and how many runs it needs.

    example:
      bayesmooth studies --scale full
    """
    return int(import_studies().studies(arguments))


@command(
    option("--out", type=Path, default=Path("out/demo"), help="folder to write to (default: out/demo)"),
    option("--seeds", type=int, default=3, help="runs of each method (default: 3)"),
    option("--jobs", type=int, default=CORES, help="runs at a time (default: one per core)"),
    QUIET,
)
def demo(arguments: Namespace) -> int:
    """Compare five ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    return int(import_studies().demo(arguments))


def import_studies() -> Any:
    """The module `reproduce.commands` of the clone that the package or the current directory belongs to."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "reproduce" / "commands.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return import_module("reproduce.commands")

    from importlib.metadata import metadata

    addresses = dict(line.split(", ") for line in metadata("bayesmooth").get_all("Project-URL", []))
    raise InputError(
        f"the paper's studies are not part of the installed package; git clone {addresses['Homepage']}, "
        "and start the command in that folder"
    )
