"""`train` and `resume`."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from bayesmooth.lab import Recipe, Run
from bayesmooth.lab import train as train_recipe
from bayesmooth.lab.distributed import writes_here
from bayesmooth.lab.session import StoppedError
from bayesmooth.lab.shipped import find
from bayesmooth.lab.summary import final
from bayesmooth.lab.tensorboard import tensorboard


def train(arguments: Namespace) -> int:
    """Train a recipe, or go on with it where it stopped.

    example:
      bayesmooth train digits-ivon --set corruption.rate=0.4 --out runs/first
    """
    recipe = Recipe.load(find(arguments.recipe), arguments.settings)
    return _go(recipe, arguments.out or Path("runs") / recipe.title, arguments)


def train_arguments(parser: ArgumentParser) -> None:
    """The options of `train`."""
    parser.add_argument("recipe", help="a TOML file, or a name that `bayesmooth recipes` lists")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="change a key of the recipe; as often as you like",
    )
    parser.add_argument(
        "--out", type=Path, help="the run's directory (default: runs/ and its title)"
    )
    _shared(parser)


def resume(arguments: Namespace) -> int:
    """Go on with an interrupted run; the result is the same to the bit.

    example:
      bayesmooth resume runs/first
    """
    return _go(Run.open(arguments.run).recipe, arguments.run, arguments)


def resume_arguments(parser: ArgumentParser) -> None:
    """The options of `resume`."""
    parser.add_argument("run", type=Path, help="the run's directory")
    _shared(parser)


def _shared(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, help="where data sets are (default: $BAYESMOOTH_DATA, ./data)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
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
        help="also save after S seconds (default: 300)",
    )


def _go(recipe: Recipe, out: Path, arguments: Namespace) -> int:
    with ExitStack() as scope:
        board = (
            [scope.enter_context(tensorboard(out / "tensorboard"))] if arguments.tensorboard else []
        )
        try:
            run = train_recipe(
                recipe,
                out,
                data_dir=arguments.data_dir,
                device=arguments.device,
                quiet=arguments.quiet,
                listeners=board,
                save_steps=arguments.save_steps,
                save_seconds=arguments.save_seconds,
            )
        except StoppedError:
            raise KeyboardInterrupt(f" and saved; `bayesmooth resume {out}` goes on") from None
    if writes_here():
        print(final(run.report(), out))
    return 0
