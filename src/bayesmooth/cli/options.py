"""Options that several commands share."""

from argparse import ArgumentParser
from pathlib import Path

RECIPE = "a TOML file, or a name that `bayesmooth recipes` lists"
LABELS_FILE = "a .npy of labels, beside a .npy of embeddings"


def add_columns(parser: ArgumentParser, labels: str) -> None:
    """How a data set of the user's is read; `labels` says what --labels is."""
    add = parser.add_argument
    add("--label", metavar="COLUMN", help="column of labels (default: label)")
    add("--clean-label", metavar="COLUMN", help="column of true labels (default: clean_label)")
    add("--text", metavar="COLUMN", help="column of texts to learn from")
    add("--image", metavar="COLUMN", help="column of pictures (default: path, or image)")
    features = "columns to learn from (default: numbers and categories)"
    add("--features", metavar="COLUMN,…", type=split_names, help=features)
    add("--labels", metavar="FILE", default=None, help=labels)
    add_reading(parser)
    add("--encoder", help="plain, or a model's name or path (default: the best)")


def add_reading(parser: ArgumentParser) -> None:
    """What every command that reads a table has."""
    add = parser.add_argument
    add("--id", metavar="COLUMN", help="column of ids (default: id, else row numbers)")
    names = "classes in the order of their numbers"
    add("--class-names", metavar="NAME,…", type=split_names, help=names)
    add("--encoding", help="encoding of a CSV or JSON (default: detected, or refused)")


def split_names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def add_settings(
    parser: ArgumentParser, explanation: str, metavar: str = "SECTION.KEY=VALUE"
) -> None:
    """`--set`, as often as it is needed."""
    parser.add_argument(
        "--set", dest="settings", metavar=metavar, action="append", default=[], help=explanation
    )


def add_data_dir(parser: ArgumentParser) -> None:
    """Where public data sets lie."""
    place = "where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    parser.add_argument("--data-dir", type=Path, help=place)


def add_prediction(parser: ArgumentParser) -> None:
    """What every command that predicts with a run has."""
    add_device(parser)
    usual = "drawn from the posterior (default: the recipe's)"
    parser.add_argument("--samples", type=int, default=0, help=usual)


def add_device(parser: ArgumentParser) -> None:
    """What every command that trains or predicts has."""
    add_data_dir(parser)
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_place(parser: ArgumentParser) -> None:
    """Where the runs of a command go, and how many at a time."""
    add = parser.add_argument
    add_settings(parser, "change a key in every recipe; may be repeated")
    add("--jobs", type=int, default=1, help="runs at a time here (default: 1)")
    add("--cluster", choices=("ray",), help="run on a cluster instead of here")
    add("--address", help="Ray cluster to use; auto finds one (default: start one)")
    add("--cpus", type=int, help="CPUs per run on a cluster (default: 1)")
    add("--gpus", type=float, help="GPUs per run on a cluster (default: 0)")
    add_device(parser)
