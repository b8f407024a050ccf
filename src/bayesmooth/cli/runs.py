"""`train` and `resume`, `evaluate`, `predict` and `compare`, `recipes`."""

import json
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

from bayesmooth.errors import InputError
from bayesmooth.executors import keep_freed_memory
from bayesmooth.files import check_output
from bayesmooth.train import Recipe, Run
from bayesmooth.train import train as train_recipe
from bayesmooth.train.compare import (
    PICTURES,
    compare_runs,
    draw_curves,
    format_csv,
    format_report,
    format_table,
)
from bayesmooth.train.distributed import writes_here
from bayesmooth.train.options import parameters
from bayesmooth.train.recipe import families, recipe_text
from bayesmooth.train.run import RECIPE
from bayesmooth.train.source import SOURCE, is_source, source
from bayesmooth.train.training import StoppedError

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
    asked = {key: getattr(arguments, key, None) for key in parameters(source)}
    columns = {key: value for key, value in asked.items() if value is not None}
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


def resume(arguments: Namespace) -> int:
    """Go on with an interrupted run; the result is the same to the bit.

    example:
      bayesmooth resume runs/first
    """
    return _go(Run.open(arguments.run).recipe, arguments.run, arguments)


def _go(recipe: Recipe, out: Path, arguments: Namespace) -> int:
    keep_freed_memory()
    asked = ("data_dir", "device", "quiet", "save_steps", "save_seconds", "tensorboard")
    try:
        run = train_recipe(recipe, out, **{name: getattr(arguments, name) for name in asked})
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
    how = {"samples": arguments.samples, "data_dir": arguments.data_dir}
    record = run.evaluate(arguments.checkpoint, **how)
    print(json.dumps(record, indent=2) if arguments.json else format_report(record, run.path))
    return 0


def predict(arguments: Namespace) -> int:
    """Predict the classes of new examples with a trained run; they need no labels.

    They are read as the training data were: the same columns, scales,
    categories and encoder. Both predictions are written: at the mean of the
    weights, and averaged over the posterior.

    examples:
      bayesmooth predict runs/penguins new.csv
      bayesmooth predict runs/photos unsorted/ --out predictions.csv
    """
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


def compare(arguments: Namespace) -> int:
    """Put runs side by side: a table, and a plot of accuracy, calibration and memorisation by epoch.

    example:
      bayesmooth compare runs/* --plot compare.png
    """
    check_output(arguments.plot, PICTURES)
    places = [path for path in arguments.runs if not path.is_file()]  # `runs/*` also matches logs
    if not places:
        raise InputError(f"{arguments.runs[0]}: a file; name the directories of runs")
    runs = [Run.open(path) for path in places]
    rows = compare_runs(runs)
    print(format_csv(rows) if arguments.csv else format_table(rows) + "\n", end="")
    if arguments.plot:
        draw_curves(runs, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)
    return 0


def recipes(arguments: Namespace) -> int:
    """List the recipes that come with the package, or print one to start your own from.

    examples:
      bayesmooth recipes digits-ivon > mine.toml
      bayesmooth recipes --own > mine.toml            for your own pictures, table or network
    """
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
