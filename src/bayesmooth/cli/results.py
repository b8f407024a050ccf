"""`evaluate` and `compare`."""

import csv
import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bayesmooth.errors import InputError
from bayesmooth.files import check_output
from bayesmooth.lab import Run
from bayesmooth.lab.compare import PICTURES, draw, rows, table
from bayesmooth.lab.evaluate import evaluate as measure
from bayesmooth.lab.run import POSTERIOR
from bayesmooth.lab.summary import final


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
    splits = run.splits(arguments.data_dir)
    model = run.model(arguments.checkpoint)
    size = run.recipe.evaluate.batch_size
    record = measure(
        model, splits.test, splits.validation, splits.wrong, splits.ood, batch_size=size
    )
    if arguments.checkpoint == "last" and (run.path / POSTERIOR).exists():
        record |= measure(
            model,
            splits.test,
            ood=splits.ood,
            name="averaged",
            posterior=run.posterior(),
            samples=arguments.samples or run.recipe.evaluate.samples,
            seed=run.recipe.train.seed,
            batchnorm=run.statistics(splits),
            batch_size=size,
        )
    print(json.dumps(record, indent=2) if arguments.json else final(record, run.path))
    return 0


def evaluate_arguments(parser: ArgumentParser) -> None:
    """The options of `evaluate`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument(
        "--checkpoint", choices=("last", "best"), default="last", help="(default: last)"
    )
    parser.add_argument("--samples", type=int, help="of the posterior (default: the recipe's)")
    parser.add_argument(
        "--data-dir", type=Path, help="where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def compare(arguments: Namespace) -> int:
    """Put runs side by side: a table, and a plot of accuracy, calibration and memorisation by epoch.

    example:
      bayesmooth compare runs/* --plot compare.png
    """
    check_output(arguments.plot, PICTURES)
    places = [path for path in arguments.runs if not path.is_file()]  # `runs/*` finds logs, too
    if not places:
        raise InputError(f"{arguments.runs[0]}: a file; name the directories of runs")
    runs = [Run.open(path) for path in places]
    content = rows(runs)
    if arguments.csv:
        writer = csv.DictWriter(sys.stdout, list(content[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)
    else:
        print(table(content))
    if arguments.plot:
        draw(runs, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)
    return 0


def compare_arguments(parser: ArgumentParser) -> None:
    """The options of `compare`."""
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the curves: .png, .svg or .pdf"
    )
    parser.add_argument("--csv", action="store_true", help="print the table as CSV")
