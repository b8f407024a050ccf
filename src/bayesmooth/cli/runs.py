"""`train`, `evaluate`, `predict`, `compare` and `recipes`."""

import json
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

from bayesmooth.cli import COLUMNS, DEVICE, RECIPE, SET, command, option
from bayesmooth.errors import InputError
from bayesmooth.files import check_output

SHOWN = 10  # classes of predictions that are counted in the terminal

RUN = option("run", type=Path, help="directory of the run")
SAMPLES = option("--samples", type=int, default=0, help="draws from the posterior (default: as in the recipe)")


@command(
    option("recipe", metavar="data|recipe|run", help=f"your data (as for `audit`); {RECIPE}; or a run to continue"),
    *COLUMNS,
    SET,
    option("--out", type=Path, help="directory of the run (default: runs/TITLE)"),
    *DEVICE,
    option("--save-seconds", type=float, default=300, metavar="S", help="seconds between checkpoints (default: 300)"),
)
def train(arguments: Namespace) -> int:
    """Train on your own data or by a recipe, or continue a run that was stopped.

    A frozen encoder turns your texts or pictures into numbers. IVON trains a
    small network or a linear model on them. A tenth of the labels is held out:
    from 100 of them on, they choose among 6 settings of IVON, and between the
    two models. With fewer, the linear model is taken; it learns the held-out
    labels, too. The linear model learns no labels that the audit contradicts,
    if it then predicts other labels better. If --set changes a key of the
    model or the optimizer, nothing is chosen.
    `bayesmooth recipes source` shows all keys.
    A continued run ends with the same bits as an uninterrupted one.

    examples:
      bayesmooth train penguins.csv --label species --out runs/penguins
      bayesmooth train photos/ --set train.epochs=40       one folder per class
      bayesmooth train reviews.csv --text review --label stars
      bayesmooth train digits-ivon --set corruption.rate=0.4 --out runs/first
      bayesmooth train runs/first                          continues a run that was stopped
    """
    from bayesmooth.data.catalog import source
    from bayesmooth.data.opening import is_source
    from bayesmooth.train import Recipe, override, read_recipe
    from bayesmooth.train import train as train_recipe
    from bayesmooth.train.compare import format_report
    from bayesmooth.train.evaluate import SOURCE
    from bayesmooth.train.own_data import choose_settings
    from bayesmooth.train.recipe import parameters
    from bayesmooth.train.run import RECIPE as RECIPE_FILE
    from bayesmooth.train.run import StoppedError
    from bayesmooth.train.sweep import keep_freed_memory

    columns = {key: asked for key in parameters(source) if (asked := getattr(arguments, key, None)) is not None}
    place, out = Path(arguments.recipe), arguments.out
    if "," in (arguments.encoder or ""):
        raise InputError(f"--encoder {arguments.encoder}: train takes one; `bayesmooth audit` compares several")
    if columns and not is_source(place):
        raise InputError(f"{place}: no data, so there are no columns to name; give a .csv, a folder of pictures, …")
    if (place / RECIPE_FILE).is_file():
        recipe, out = Recipe.load(place / RECIPE_FILE, arguments.settings), out or place
    elif is_source(place):
        tree = read_recipe(SOURCE)
        tree["data"] |= {"path": str(place), **columns}
        recipe = Recipe.from_dict(override(tree, arguments.settings), SOURCE)
        if not any(key.startswith(("optimizer.", "model.")) for key in arguments.settings):
            recipe = choose_settings(recipe)
    else:
        recipe = Recipe.load(arguments.recipe, arguments.settings)
    out = out or Path("runs") / recipe.title
    keep_freed_memory()
    try:
        run = train_recipe(recipe, out, device=arguments.device, save_seconds=arguments.save_seconds)
    except StoppedError:
        raise KeyboardInterrupt(f" and saved; `bayesmooth train {out}` goes on") from None
    for note in run.data().get("notes", ()):
        print(f"note: {note}")
    print(format_report(run.report(), out))
    return 0


@command(RUN, *DEVICE, SAMPLES, option("--json", action="store_true", help="print JSON"))
def evaluate(arguments: Namespace) -> int:
    """Measure a trained run again: accuracy, NLL, Brier score, calibration, memorised wrong labels.

    example:
      bayesmooth evaluate runs/first --samples 64
    """
    from bayesmooth.train import Run
    from bayesmooth.train.compare import format_report

    run = Run.open(arguments.run)
    if (status := run.status) != "finished":
        print(f"{run.path}: not finished ({status}); these are its figures so far", file=sys.stderr)
    record = run.evaluate(samples=arguments.samples, device=arguments.device)
    print(json.dumps(record, indent=2) if arguments.json else format_report(record, run.path))
    return 0


@command(
    RUN,
    option("data", type=Path, help="a file or folder like the training data"),
    option("--out", type=Path, default=Path("predictions.csv"), help="a .csv to write (default: predictions.csv)"),
    *DEVICE,
    SAMPLES,
)
def predict(arguments: Namespace) -> int:
    """Predict the classes of new examples with a trained run; they need no labels.

    New data are read like the training data: by the same columns, scales,
    categories and encoder. The command writes two predictions: at the mean of
    the weights, and averaged over the posterior.

    examples:
      bayesmooth predict runs/penguins new.csv
      bayesmooth predict runs/photos unsorted/ --out predictions.csv
    """
    from bayesmooth.train import Run

    out, data = arguments.out, arguments.data
    check_output(out, (".csv",))
    run = Run.open(arguments.run)
    for place in (data, Path(run.recipe.data.options.get("path", data))):
        if out.exists() and place.exists() and out.samefile(place):
            raise InputError(f"--out {out}: the data themselves; choose another file")
    forecast = run.predict(data, samples=arguments.samples, device=arguments.device)
    forecast.save(out)
    for note in forecast.examples.notes:
        print(f"note: {note}")
    for name, count in Counter(forecast.columns()["at_mean"]).most_common(SHOWN):
        print(f"{count:>8,}  {name}")
    print(out)
    return 0


@command(
    option("runs", nargs="+", type=Path, help="directories of runs"),
    option("--plot", type=Path, metavar="FILE", help="draw the curves: .png, .svg or .pdf"),
)
def compare(arguments: Namespace) -> int:
    """Compare runs: a table, and a plot of accuracy, calibration and memorisation by epoch.

    example:
      bayesmooth compare runs/* --plot compare.png
    """
    from bayesmooth.train import Run, compare

    check_output(arguments.plot, compare.PICTURES)
    places = [path for path in arguments.runs if not path.is_file()]  # `runs/*` also matches logs
    if not places:
        raise InputError(f"{arguments.runs[0]}: a file; name the directories of runs")
    runs = [Run.open(path) for path in places]
    print(compare.format_table(compare.compare_runs(runs)))
    if arguments.plot:
        compare.draw_curves(runs, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)
    return 0


@command(option("name", nargs="?", help="recipe to print; `own` is a start for your own data"))
def recipes(arguments: Namespace) -> int:
    """List the recipes that come with the package, or print one as a start for your own.

    examples:
      bayesmooth recipes digits-ivon > mine.toml
      bayesmooth recipes own > mine.toml            for your own pictures, table or network
    """
    from bayesmooth.train.recipe import families, recipe_text

    if arguments.name:
        print(recipe_text(arguments.name), end="")
        return 0
    width = max(map(len, families()))
    for names, (about, _) in families().items():
        print(f"{names:{width}}  {about}")
    return 0
