"""`data list`, `data check` and `data embed`."""

from argparse import Namespace
from typing import Any

from bayesmooth.cli import DATA_DIR, MANY, command, option
from bayesmooth.cli.sweeps import import_studies
from bayesmooth.errors import InputError

LOADED = ("bayesmooth.train", "sklearn.datasets")


@command(
    option("action", choices=("list", "check", "embed")),
    option("name", nargs="?", help="the data set to check or embed"),
    DATA_DIR,
    option("--set", dest="settings", metavar="KEY=VALUE", help="an option of the data set", **MANY),
)
def data(arguments: Namespace) -> int:
    """List the data sets and how to get them, check that one is whole, or embed its pictures.

    `embed` encodes the pictures with the frozen encoder of the extra `audit`; `reproduce --scale features` reads that.

    examples:
      bayesmooth data list
      bayesmooth data check cifar10 --data-dir ~/data
      bayesmooth data check source --set path=mine.csv
      bayesmooth data embed cifar10 --set limit=10000 --data-dir ~/data
    """
    from bayesmooth.data import data_root, datasets
    from bayesmooth.train.recipe import parse_value

    name = arguments.name
    if arguments.action == "list":
        root = data_root(None)
        for title, dataset in datasets().items():
            there = "" if dataset.is_found(root) else f" (not in {root})"
            print(f"{title:14} {dataset.about}")
            print(f"{'':14}   files  {dataset.files}{there}")
            how = dataset.say_how(root).replace(chr(10), chr(10) + " " * 22)
            print(f"{'':14}   get    {how}")
        return 0
    if name is None:
        raise InputError(f"data {arguments.action}: which one? `bayesmooth data list` has the names")
    pairs = [setting.partition("=") for setting in arguments.settings]
    if wrong := ["".join(pair) for pair in pairs if not pair[1]]:
        raise InputError(f"{wrong[0]!r}: not a setting; write key=value")
    options = {key: parse_value(text) for key, _, text in pairs}
    if arguments.action == "embed":
        for path in import_studies().embed_data(name, **options):
            print(path)
        return 0
    return check_data(name, options)


def check_data(name: str, options: dict[str, Any]) -> int:
    """Load every split with its checksums and its first input, and print what it holds, or its problem."""
    from bayesmooth.data.catalog import MissingError, find_dataset, load

    code = 0
    for split in find_dataset(name).splits:
        try:
            examples = load(name, split, **options)
            assert examples.input_shape  # which reads one
            print(f"{split:12} {examples}", *examples.notes, sep="\n" + " " * 13)
        except InputError as error:
            # Data of the user's own need no test split.
            if split == "train" or "path" not in options or not isinstance(error, MissingError):
                print(f"{split:12} {error}")
                code = 2
    return code
