"""The options of every command: `add_NAME(parser)` adds those of `bayesmooth NAME`. Explaining them loads nothing."""

import os
import sys
from argparse import SUPPRESS, ArgumentParser
from pathlib import Path

RECIPE = "a TOML file, or a name that `bayesmooth recipes` lists"
SCALES = "smoke, demo, laptop, overnight, features, showcase or full"
LABELS_FILE = "a .npy of labels, beside a .npy of embeddings"


def add_train(parser: ArgumentParser) -> None:
    """`train`."""
    add = parser.add_argument
    data = "your data (what `audit` takes)"
    add("recipe", metavar="data|recipe", help=f"{data}, {RECIPE}")
    _add_columns(parser, LABELS_FILE)
    _add_settings(parser, "change a key of the recipe; may be repeated")
    add("--out", type=Path, help="the run's directory (default: runs/ and its title)")
    _add_training(parser)


def add_resume(parser: ArgumentParser) -> None:
    """`resume`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    _add_training(parser)


def add_evaluate(parser: ArgumentParser) -> None:
    """`evaluate`."""
    add = parser.add_argument
    add("run", type=Path, help="the run's directory")
    add("--checkpoint", choices=("last", "best"), default="last", help="default: last")
    _add_samples(parser)
    _add_data_dir(parser)
    add("--json", action="store_true", help="print JSON")


def add_predict(parser: ArgumentParser) -> None:
    """`predict`."""
    add, out = parser.add_argument, Path("predictions.csv")
    add("run", type=Path, help="the run's directory")
    add("data", type=Path, help="a file or folder like the one it was trained on")
    add("--out", type=Path, default=out, help=f"a .csv (default: {out})")
    _add_samples(parser)
    _add_data_dir(parser)


def add_compare(parser: ArgumentParser) -> None:
    """`compare`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="directories of runs")
    add("--plot", type=Path, metavar="FILE", help="draw the curves: .png, .svg or .pdf")
    add("--csv", action="store_true", help="print the table as CSV")


def add_recipes(parser: ArgumentParser) -> None:
    """`recipes`."""
    parser.add_argument("name", nargs="?", help="print this recipe")
    parser.add_argument("--own", action="store_true", help="print the template for your own data")


def add_data(parser: ArgumentParser) -> None:
    """`data`."""
    parser.add_argument("action", choices=("list", "check", "embed"))
    parser.add_argument("name", nargs="?", help="the data set to check or embed")
    _add_data_dir(parser)
    _add_settings(parser, "an option of the data set", "KEY=VALUE")


def add_audit(parser: ArgumentParser) -> None:
    """`audit`; the defaults of its settings stand in `Settings`."""
    parser.usage = f"{parser.prog} SOURCE [option …]"
    parser.argument_default = SUPPRESS
    add = parser.add_argument
    kinds = "a .csv, .tsv, .parquet, .npz or .npy with labels, a folder of pictures or of Parquet files, a Hugging "
    add("source", type=Path, help=kinds + "Face data set on disk, or a run")
    add("--out", type=Path, default=Path("audit"), help="folder to write to (default: audit)")
    further = "what a report exported: decided labels are learned from and not asked again"
    add("--decisions", metavar="FILE", type=Path, default=None, help=further)
    add("--title", default="", help="title of the report")
    _add_columns(parser, f"columns of 0 and 1, one per tag; or {LABELS_FILE}")
    people = "column that says who gave the label: one row per vote, --id names the example"
    add("--annotator", metavar="COLUMN", help=people)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    predicted = "the numbers are predicted probabilities"
    add("--probabilities", action="store_true", default=False, help=predicted)
    cache = "where embeddings are kept (default: $BAYESMOOTH_CACHE)"
    add("--cache", metavar="DIR", type=Path, help=cache)
    split = "another split; reports examples found in both"
    add("--against", metavar="FILE", type=Path, default=None, help=split)
    add("--out-of-sample", metavar="WAY", help="none (default), loo or folds")
    add("--folds", type=int, help="cross-fit with this many folds instead")
    add("--samples", type=int, help="drawn from a run's posterior (default: 16)")
    add("--cluster", choices=("ray",), help="score the examples as tasks of a cluster")
    add("--seed", type=int, help="(default: 0)")
    add("--top", type=int, default=10, help="how many to print (default: 10)")
    add("--thumbnails", type=int, default=500, help="pictures in the report (default: 500)")
    place = "where a run's data set is (default: $BAYESMOOTH_DATA)"
    add("--data-dir", type=Path, default=None, help=place)
    add("--quiet", action="store_true", help="no progress")


def add_clean(parser: ArgumentParser) -> None:
    """`clean`."""
    add = parser.add_argument
    add("labels", type=Path, help="what was audited, or its audit.csv")
    add("decisions", type=Path, nargs="?", default=None, help="the CSV that the report exported")
    add("--out", type=Path, required=True, help="the file or folder to write")
    folder = "folder of the audit (default: that of the decisions, or audit)"
    add("--audit", metavar="DIR", type=Path, help=folder)
    add("--drop-duplicates", action="store_true", help="keep one of copies with the same label")
    add("--drop-unreadable", action="store_true", help="leave out pictures that cannot be read")
    add("--label", metavar="COLUMN", help="column of labels (default: label, or given)")
    columns = "columns of 0 and 1, one per tag"
    add("--labels", dest="tags", metavar="COLUMN,…", type=split_names, help=columns)
    add("--separator", metavar="TEXT", help="between several labels in the column of labels")
    _add_reading(parser)


def add_sweep(parser: ArgumentParser) -> None:
    """`sweep`."""
    values = (
        "an axis of the grid: values with commas between, or 0:5 for 0 … 4; as often as you like"
    )
    _add_grid(parser, values)
    csv = "write settings and figures there"
    parser.add_argument("--csv", type=Path, metavar="FILE", help=csv)
    _add_place(parser)


def add_tune(parser: ArgumentParser) -> None:
    """`tune`."""
    add, usual = parser.add_argument, "optimizer.noise=0.5,0.7,1.0,1.4,2.0"
    _add_grid(parser, f"settings to try, as in `sweep` (default: {usual})")
    add("--shorten", type=int, default=1, metavar="N", help="try over 1/N of the epochs first")
    add("--keep", type=int, default=2, help="how many of those to run whole (default: 2)")
    add("--write", type=Path, metavar="FILE", help="write the chosen recipe there, as TOML")
    _add_place(parser)


def add_reproduce(parser: ArgumentParser) -> None:
    """`reproduce`."""
    add = parser.add_argument
    add("name", help="a study that `bayesmooth studies` lists, or all")
    add_studies(parser)
    add("--out", type=Path, help="where figures go (default: results/SCALE)")
    add("--runs", type=Path, help="where runs go (default: runs/SCALE)")
    _add_place(parser)


def add_studies(parser: ArgumentParser) -> None:
    """`studies`."""
    usual = f"how much to train: {SCALES} (default: laptop)"
    parser.add_argument("--scale", default="laptop", help=usual)


def add_demo(parser: ArgumentParser) -> None:
    """`demo`."""
    add, out = parser.add_argument, Path("out/demo")
    add("--out", type=Path, default=out, help=f"where to write (default: {out})")
    add("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    add("--jobs", type=int, default=cores, help="runs at a time (default: one per core)")
    add("--quiet", action="store_true", help="no progress")


def _add_columns(parser: ArgumentParser, labels: str) -> None:
    """How a data set of the user's is read; `labels` says what --labels is."""
    add = parser.add_argument
    add("--label", metavar="COLUMN", help="column of labels (default: label)")
    add("--clean-label", metavar="COLUMN", help="column of true labels (default: clean_label)")
    add("--text", metavar="COLUMN", help="column of texts to learn from")
    add("--image", metavar="COLUMN", help="column of pictures (default: path, or image)")
    features = "columns to learn from (default: numbers and categories)"
    add("--features", metavar="COLUMN,…", type=split_names, help=features)
    add("--labels", metavar="FILE", default=None, help=labels)
    _add_reading(parser)
    add("--encoder", help="plain, or a model's name or path (default: the best)")


def _add_reading(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--id", metavar="COLUMN", help="column of ids (default: id, else row numbers)")
    names = "classes in the order of their numbers"
    add("--class-names", metavar="NAME,…", type=split_names, help=names)
    add("--encoding", help="encoding of a CSV (default: detected: UTF-8, UTF-16 or cp1252)")


def split_names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_settings(
    parser: ArgumentParser, explanation: str, metavar: str = "SECTION.KEY=VALUE"
) -> None:
    parser.add_argument(
        "--set", dest="settings", metavar=metavar, action="append", default=[], help=explanation
    )


def _add_data_dir(parser: ArgumentParser) -> None:
    place = "where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    parser.add_argument("--data-dir", type=Path, help=place)


def _add_samples(parser: ArgumentParser) -> None:
    usual = "drawn from the posterior (default: the recipe's)"
    parser.add_argument("--samples", type=int, default=0, help=usual)


def _add_run(parser: ArgumentParser) -> None:
    """What every command that trains has."""
    _add_data_dir(parser)
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _add_training(parser: ArgumentParser) -> None:
    """What the commands of one run have."""
    _add_run(parser)
    add, board = parser.add_argument, "also write the figures for TensorBoard"
    add("--tensorboard", action="store_true", help=board)
    add("--save-steps", type=int, default=0, metavar="N", help="also save every N steps")
    often = "save every S seconds (default: 300)"
    add("--save-seconds", type=float, default=300, metavar="S", help=often)


def _add_grid(parser: ArgumentParser, values: str) -> None:
    add, axis = parser.add_argument, "SECTION.KEY=VALUES"
    add("recipe", help=RECIPE)
    add("--grid", metavar=axis, action="append", default=[], help=values)
    add("--out", type=Path, default=Path("runs"), help="where the runs go (default: runs)")


def _add_place(parser: ArgumentParser) -> None:
    """Where the runs of a command go, and how many at a time."""
    add = parser.add_argument
    _add_settings(parser, "change a key in every recipe; may be repeated")
    add("--jobs", type=int, default=1, help="runs at a time here (default: 1)")
    add("--cluster", choices=("ray",), help="run on a cluster instead of here")
    add("--address", help="Ray cluster to use; auto finds one (default: start one)")
    add("--cpus", type=int, help="CPUs per run on a cluster (default: 1)")
    add("--gpus", type=float, help="GPUs per run on a cluster (default: 0)")
    _add_run(parser)
