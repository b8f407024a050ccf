"""`data list`, `data check` and `data embed`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bayesmooth.cli import add_data_dir, add_settings
from bayesmooth.errors import InputError

LOADED = ("bayesmooth.lab.features",)


def data(arguments: Namespace) -> int:
    """List the data sets and how to get them, check that one is whole, or embed its pictures.

    `embed` puts the pictures through the frozen encoder of the extra `audit`, for the scale `features` of `reproduce`.

    examples:
      bayesmooth data list
      bayesmooth data check cifar10 --data-dir ~/data
      bayesmooth data check table --set path=mine.csv
      bayesmooth data embed cifar10 --set limit=10000 --data-dir ~/data
    """
    if arguments.action == "list":
        return _list(arguments.data_dir)
    if arguments.name is None:
        raise InputError(
            f"data {arguments.action}: which one? `bayesmooth data list` has the names"
        )
    options = dict(map(_option, arguments.settings))
    if arguments.action == "embed":
        from bayesmooth.lab.features import embed_data

        for path in embed_data(arguments.name, arguments.data_dir, **options):
            print(path)
        return 0
    return _check(arguments.name, arguments.data_dir, options)


def data_arguments(parser: ArgumentParser) -> None:
    """The options of `data`."""
    parser.add_argument("action", choices=("list", "check", "embed"))
    parser.add_argument("name", nargs="?", help="the data set to check or embed")
    add_data_dir(parser)
    add_settings(parser, "an option of the data set", "KEY=VALUE")


def _list(data_dir: Path | None) -> int:
    from bayesmooth.data import describe_datasets

    for row in describe_datasets(data_dir):
        print(f"{row['name']:14} {row['about']}")
        print(f"{'':14}   files  {row['files']}")
        print(f"{'':14}   get    {row['bring'].replace(chr(10), chr(10) + ' ' * 22)}")
    return 0


def _check(name: str, data_dir: Path | None, options: dict[str, Any]) -> int:
    from bayesmooth.data import check

    results = check(name, data_dir, **options)
    for result in results:
        print(f"{result['split']:12} {result['summary'] if result['ok'] else result['problem']}")
        for note in result.get("notes", ()):
            print(f"{'':12} {note}")
    return 0 if all(result["ok"] for result in results) else 2


def _option(setting: str) -> tuple[str, Any]:
    from bayesmooth.lab.recipe import parse_value

    key, equals, text = setting.partition("=")
    if not equals:
        raise InputError(f"{setting!r}: not a setting; write key=value")
    return key, parse_value(text)
