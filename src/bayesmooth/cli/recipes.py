"""`recipes`."""

from argparse import ArgumentParser, Namespace

from bayesmooth.lab.shipped import about, find, shipped


def recipes(arguments: Namespace) -> int:
    """List the recipes that come with the package, or print one to start your own from.

    example:
      bayesmooth recipes digits-ivon > mine.toml
    """
    if arguments.name:
        print(find(arguments.name).read_text(), end="")
        return 0
    known = shipped()
    width = max(map(len, known))
    for name, path in known.items():
        print(f"{name:{width}}  {about(path)}")
    return 0


def recipes_arguments(parser: ArgumentParser) -> None:
    """The options of `recipes`."""
    parser.add_argument("name", nargs="?", help="print this one")
