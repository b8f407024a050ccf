"""`reproduce`, `studies` and `demo`: the paper's code lies beside the package in a clone, and is called from here."""

import os
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from bayesmooth.cli.options import add_place
from bayesmooth.errors import InputError

LOADED = ("bayesmooth.train", "pandas", "matplotlib.figure", "sklearn.datasets")
SCALES = "smoke, demo, laptop, overnight, features, day or full"


def add_reproduce(parser: ArgumentParser) -> None:
    """The options of `reproduce`."""
    add = parser.add_argument
    add("name", help="a study that `bayesmooth studies` lists, or all")
    add_studies(parser)
    add("--out", type=Path, help="where figures go (default: results/SCALE)")
    add("--runs", type=Path, help="where runs go (default: runs/SCALE)")
    noises = "these noises alone: 0.4 (κ), symmetric 40, … (default: all of the scale)"
    add("--noises", nargs="+", default=[], metavar="NOISE", help=noises)
    add("--seeds", type=int, default=0, help="so many seeds (default: those of the scale)")
    add_place(parser)


def reproduce(arguments: Namespace) -> int:
    """Reproduce a figure of the paper, or all of them: train, draw, and judge its claims.

    example:
      bayesmooth reproduce data-dependent --scale laptop --jobs 2 --data-dir ~/data
    """
    code: int = import_studies().reproduce(arguments)
    return code


def add_studies(parser: ArgumentParser) -> None:
    """The options of `studies`."""
    usual = f"how much to train: {SCALES} (default: laptop)"
    parser.add_argument("--scale", default="laptop", help=usual)


def studies(arguments: Namespace) -> int:
    """List the studies: what each shows, how many runs it needs, how long that takes.

    example:
      bayesmooth studies --scale full
    """
    code: int = import_studies().studies(arguments)
    return code


def add_demo(parser: ArgumentParser) -> None:
    """The options of `demo`."""
    add, out = parser.add_argument, Path("out/demo")
    add("--out", type=Path, default=out, help=f"where to write (default: {out})")
    add("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    add("--jobs", type=int, default=cores, help="runs at a time (default: one per core)")
    add("--quiet", action="store_true", help="no progress")


def demo(arguments: Namespace) -> int:
    """See it work: five ways to train on digits of which 30 % have a wrong label, in about a minute.

    example:
      bayesmooth demo --out out/demo
    """
    code: int = import_studies().demo(arguments)
    return code


def import_studies() -> Any:
    """The module `reproduce.commands` of the clone that the package or the current directory belongs to."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "reproduce" / "commands.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return import_module("reproduce.commands")
    addresses = dict(line.split(", ") for line in metadata("bayesmooth").get_all("Project-URL", []))
    raise InputError(
        f"the paper's studies are not part of the installed package; git clone {addresses['Homepage']}, "
        "and start the command in that folder"
    )
