"""`train` and `resume`, `evaluate`, `predict` and `compare`, `recipes`."""

import csv
import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmooth.cli import add_columns, add_data_dir, add_run_options, add_settings
from bayesmooth.errors import InputError
from bayesmooth.files import check_output

if TYPE_CHECKING:
    from bayesmooth.lab import Recipe

LOADED = ("bayesmooth.lab", "bayesmooth.lab.compare")
"""What the commands need; not loaded to explain them, and loaded before they start, as Ctrl-C must not hit a module."""
TEMPLATE = "own"  # the shipped recipe to start one's own from
SHOWN = 10  # classes of predictions that are counted in the terminal


def train(arguments: Namespace) -> int:
    """Train on your own data or by a recipe, or go on where that stopped.

    Texts and pictures go through a frozen encoder, and IVON trains a small
    network on what it gives. The options of columns are for your own data;
    `bayesmooth recipes source` shows the settings.

    examples:
      bayesmooth train penguins.csv --label species --out runs/penguins
      bayesmooth train photos/ --set train.epochs=40       one folder per class
      bayesmooth train reviews.csv --text review --label stars
      bayesmooth train digits-ivon --set corruption.rate=0.4 --out runs/first
    """
    from bayesmooth.lab import Recipe
    from bayesmooth.lab.options import parameters
    from bayesmooth.lab.run import RECIPE
    from bayesmooth.lab.source import SOURCE, is_source, source

    columns = {
        key: value
        for key in parameters(source)
        if (value := getattr(arguments, key, None)) is not None
    }
    place = Path(arguments.recipe)
    if is_source(place):
        given = [f"data.{key}={json.dumps(value)}" for key, value in columns.items()]
        given = [f"data.path={json.dumps(str(place))}", *given, *arguments.settings]
        recipe = Recipe.load(SOURCE, given)
    elif (place / RECIPE).is_file():
        raise InputError(f"{place}: a run; `bayesmooth resume {place}` goes on with it")
    elif columns:
        raise InputError(
            f"{arguments.recipe}: no data, so there are no columns to name; give a .csv, a folder of pictures, …"
        )
    else:
        recipe = Recipe.load(arguments.recipe, arguments.settings)
    return _go(recipe, arguments.out or Path("runs") / recipe.title, arguments)


def train_arguments(parser: ArgumentParser) -> None:
    """The options of `train`."""
    known = "your data (what `audit` takes), a TOML file, or a name that `bayesmooth recipes` lists"
    parser.add_argument("recipe", metavar="data|recipe", help=known)
    add_columns(parser)
    add_settings(parser, "change a key of the recipe; may be repeated")
    parser.add_argument(
        "--out", type=Path, help="the run's directory (default: runs/ and its title)"
    )
    _add_training_options(parser)


def resume(arguments: Namespace) -> int:
    """Go on with an interrupted run; the result is the same to the bit.

    example:
      bayesmooth resume runs/first
    """
    from bayesmooth.lab import Run

    return _go(Run.open(arguments.run).recipe, arguments.run, arguments)


def resume_arguments(parser: ArgumentParser) -> None:
    """The options of `resume`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    _add_training_options(parser)


def _add_training_options(parser: ArgumentParser) -> None:
    add_run_options(parser)
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write the figures for TensorBoard"
    )
    parser.add_argument(
        "--save-steps", type=int, default=0, metavar="N", help="also save every N steps"
    )
    parser.add_argument(
        "--save-seconds",
        type=float,
        default=300,
        metavar="S",
        help="also save every S seconds (default: 300)",
    )


def _go(recipe: "Recipe", out: Path, arguments: Namespace) -> int:
    from bayesmooth.lab import train as train_recipe
    from bayesmooth.lab.compare import format_report
    from bayesmooth.lab.distributed import writes_here
    from bayesmooth.lab.executors import keep_freed_memory
    from bayesmooth.lab.train import StoppedError, tensorboard

    keep_freed_memory()
    with ExitStack() as scope:
        listeners = []
        if arguments.tensorboard:
            listeners.append(scope.enter_context(tensorboard(out / "tensorboard")))
        try:
            run = train_recipe(
                recipe,
                out,
                data_dir=arguments.data_dir,
                device=arguments.device,
                quiet=arguments.quiet,
                listeners=listeners,
                save_steps=arguments.save_steps,
                save_seconds=arguments.save_seconds,
            )
        except StoppedError:
            raise KeyboardInterrupt(f" and saved; `bayesmooth resume {out}` goes on") from None
    if writes_here():
        for note in run.data().get("notes", ()):
            print(f"note: {note}")
        print(format_report(run.report(), out))
    return 0


def evaluate(arguments: Namespace) -> int:
    """Measure a trained model again: accuracy, NLL, Brier, calibration, memorised errors.

    example:
      bayesmooth evaluate runs/first --samples 64
    """
    from bayesmooth.lab import Run
    from bayesmooth.lab.compare import format_report
    from bayesmooth.lab.evaluate import measure_recipe
    from bayesmooth.lab.run import POSTERIOR

    if arguments.checkpoint == "best" and arguments.samples:
        raise InputError(
            f"--samples {arguments.samples} with --checkpoint best: the posterior is that of the last; leave one out"
        )
    run = Run.open(arguments.run)
    if (status := run.status) != "finished":
        done, epochs = run.checkpoint()["progress"]["epoch"], run.recipe.train.epochs
        print(
            f"{run.path}: not finished ({status} after {done} of {epochs} epochs); these are its figures so far",
            file=sys.stderr,
        )
    model, splits = run.model(arguments.checkpoint), run.splits(arguments.data_dir)
    how: dict[str, Any] = {"batchnorm": run.statistics(splits, model), "ood": True}
    record = measure_recipe(run.recipe, splits, model, **how)
    if arguments.checkpoint == "last" and (run.path / POSTERIOR).exists():
        how["samples"] = arguments.samples
        record |= measure_recipe(run.recipe, splits, model, run.posterior(), **how)
    print(json.dumps(record, indent=2) if arguments.json else format_report(record, run.path))
    return 0


def evaluate_arguments(parser: ArgumentParser) -> None:
    """The options of `evaluate`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument(
        "--checkpoint", choices=("last", "best"), default="last", help="default: last"
    )
    add_samples(parser)
    add_data_dir(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def predict(arguments: Namespace) -> int:
    """Predict the classes of new examples with a trained run; they need no labels.

    They are read as the training data were: the same columns, scales,
    categories and encoder. Both predictions are written: at the mean of the
    weights, and averaged over the posterior.

    examples:
      bayesmooth predict runs/penguins new.csv
      bayesmooth predict runs/photos unsorted/ --out predictions.csv
    """
    from bayesmooth.lab import Run

    check_output(arguments.out, (".csv",))
    found = Run.open(arguments.run).predict(
        arguments.data, samples=arguments.samples, data_dir=arguments.data_dir
    )
    found.save(arguments.out)
    for note in (*found.examples.notes, *(problem.text for problem in found.examples.problems)):
        print(f"note: {note}")
    for name, count in Counter(found.columns()["at_mean"]).most_common(SHOWN):
        print(f"{count:>8,}  {name}")
    print(arguments.out)
    return 0


def predict_arguments(parser: ArgumentParser) -> None:
    """The options of `predict`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("data", type=Path, help="a file or folder like the one it was trained on")
    out = Path("predictions.csv")
    parser.add_argument("--out", type=Path, default=out, help=f"a .csv (default: {out})")
    add_samples(parser)
    add_data_dir(parser)


def add_samples(parser: ArgumentParser) -> None:
    """`--samples`."""
    usual = "drawn from the posterior (default: the recipe's)"
    parser.add_argument("--samples", type=int, default=0, help=usual)


def compare(arguments: Namespace) -> int:
    """Put runs side by side: a table, and a plot of accuracy, calibration and memorisation by epoch.

    example:
      bayesmooth compare runs/* --plot compare.png
    """
    from bayesmooth.lab import Run
    from bayesmooth.lab.compare import PICTURES, compare_runs, draw_curves, format_table

    check_output(arguments.plot, PICTURES)
    places = [path for path in arguments.runs if not path.is_file()]  # `runs/*` also matches logs
    if not places:
        raise InputError(f"{arguments.runs[0]}: a file; name the directories of runs")
    runs = [Run.open(path) for path in places]
    rows = compare_runs(runs)
    if arguments.csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        print(format_table(rows))
    for row, run in zip(rows, runs, strict=True):
        if row["status"] == "damaged":
            print(
                f"{run.path}: damaged; `bayesmooth resume {run.path}` mends it, or says why not",
                file=sys.stderr,
            )
    if arguments.plot:
        draw_curves(runs, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)
    return 0


def compare_arguments(parser: ArgumentParser) -> None:
    """The options of `compare`."""
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the curves: .png, .svg or .pdf"
    )
    parser.add_argument("--csv", action="store_true", help="print the table as CSV")


def recipes(arguments: Namespace) -> int:
    """List the recipes that come with the package, or print one to start your own from.

    examples:
      bayesmooth recipes digits-ivon > mine.toml
      bayesmooth recipes --own > mine.toml            for your own pictures, table or network
    """
    from bayesmooth.lab.recipe import families, recipe_text

    if name := TEMPLATE if arguments.own else arguments.name:
        print(recipe_text(name), end="")
        return 0
    rows = {
        "-".join([family.name, *(f"{{{','.join(axis)}}}" for axis in family.axes())]): family.about
        for family in families()
    }
    width = max(map(len, rows))
    for names, about in rows.items():
        print(f"{names:{width}}  {about}")
    return 0


def recipes_arguments(parser: ArgumentParser) -> None:
    """The options of `recipes`."""
    parser.add_argument("name", nargs="?", help="print this recipe")
    parser.add_argument("--own", action="store_true", help="print the template for your own data")
