"""`train` and `resume`: from a recipe to a finished run, however often the process is stopped on the way."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesmooth import files
from bayesmooth.errors import InputError
from bayesmooth.lab.distributed import Team, device_of, team
from bayesmooth.lab.divergence import DivergedError
from bayesmooth.lab.interrupt import interruptible
from bayesmooth.lab.memory import keep_freed_memory
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.run import Run
from bayesmooth.lab.session import Listener, Saving, Session
from bayesmooth.lab.splits import prepare
from bayesmooth.lab.state import seeded


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    quiet: bool = False,
    listeners: Iterable[Listener] = (),
    save_steps: int = 0,
    save_seconds: float = 300.0,
) -> Run:
    """Train a recipe in the directory `out`, or go on where a run of the same recipe stopped there.

    The run is a function of the recipe: stopped and resumed, at whatever moment, it ends with the same bits. Without
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is. It is saved after every
    epoch, and within one after `save_steps` steps (0: not) and when the last time is `save_seconds` ago.
    """
    where = device_of(device)
    keep_freed_memory()
    with ExitStack() as scope:
        crew = scope.enter_context(team(where))
        path = Path(out) if out is not None else Path("runs") / recipe.title
        if crew.writes:
            Run.start(path, recipe)
            scope.enter_context(files.locked(path))
        crew.wait()
        run = Run.open(path)
        if run.status == "finished":
            return run
        scope.enter_context(seeded(recipe.train.seed))
        interrupt = scope.enter_context(interruptible())
        scope.enter_context(status(run, crew))
        saving = Saving(save_steps, save_seconds)
        session = Session(run, prepare(recipe, data_dir), where, crew, interrupt, saving)
        session.go(quiet or not crew.writes, tuple(listeners))
        return run


def resume(path: str | Path, **how: Any) -> Run:
    """Go on with the run in a directory; `how` is that of `train`."""
    return train(Run.open(path).recipe, path, **how)


@contextmanager
def status(run: Run, crew: Team) -> Iterator[None]:
    """Keep `run.json` true: it says how the run ended, unless the process was killed."""
    write = run.set_status if crew.writes else lambda *words: None
    write("running")
    try:
        yield
        write("finished")
    except BaseException as error:
        ends = {KeyboardInterrupt: "interrupted", DivergedError: "diverged"}
        word = next((word for kind, word in ends.items() if isinstance(error, kind)), "failed")
        with suppress(InputError):  # a full disk has been reported already
            write(word, str(error))
        raise
