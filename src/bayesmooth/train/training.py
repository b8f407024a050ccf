"""`train` and `resume`: from a recipe to a finished run, however often the process is stopped on the way."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from filelock import Timeout

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.train.compare import format_epoch
from bayesmooth.train.distributed import Team, find_device, join_team
from bayesmooth.train.loop import Checkpoint, DivergedError, Loop
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.run import (
    BEST,
    LAST,
    METRICS,
    POSTERIOR,
    REPORT,
    Run,
    describe_environment,
    make_directory,
    save_checkpoint,
)
from bayesmooth.words import format_figure

SAVE_SECONDS = 300.0  # between two checkpoints
PATIENCE = 1.0  # seconds; a process that looks whether the lock is held takes it for an instant

Listener = Callable[[Mapping[str, Any]], None]  # gets every epoch's record, once it is on the disk


class LockedError(InputError):
    """Another process is at work in the directory."""


class StoppedError(KeyboardInterrupt):
    """Somebody asked the run to stop; it is saved."""


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    quiet: bool = False,
    listeners: Iterable[Listener] = (),
    save_steps: int = 0,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
    patience: float = PATIENCE,
) -> Run:
    """Train a recipe in the directory `out`, or go on where a run of the same recipe stopped there.

    The run is a function of the recipe: stopped and resumed, at whatever moment, it ends with the same bits. Without
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is. It is saved when the
    last time is `save_seconds` ago, and after every `save_steps` steps of an epoch (0: not). `listeners` are called
    with every epoch's record; `tensorboard` adds one that writes all figures to a folder of the run. Where another
    process trains the same run, this one waits for so many seconds of `patience` (−1: until it can go on).
    """
    where = find_device(device)
    with ExitStack() as scope:
        team = scope.enter_context(join_team(where))
        run = Run(Path(out) if out is not None else Path("runs") / recipe.title, recipe)
        if team.writes:
            make_directory(run.path)
            scope.enter_context(hold(run, patience))  # before anything is written that counts
            Run.start(run.path, recipe)
        team.wait()
        if run.status == "finished":
            return run
        scope.enter_context(torch.random.fork_rng())  # dropout draws there; restored at the end
        torch.manual_seed(recipe.train.seed)
        saving = Saving(run, save_steps, save_seconds)
        scope.enter_context(handle_signals(saving.ask_to_stop, signal.SIGINT, signal.SIGTERM))
        facts = describe_environment(where)
        scope.enter_context(keep_status(run, team, facts))
        listening = list(listeners) if team.writes else []
        if tensorboard and team.writes:
            listening.append(scope.enter_context(open_tensorboard(run.path / "tensorboard")))
        saved = run.checkpoint() if (run.path / LAST).exists() else None
        loop = Loop(recipe, run.splits(data_dir), where, team)
        facts["chosen"] = loop.chosen()
        restore(run, loop, saved)
        train_epochs(loop, saving, listening, quiet or not team.writes)
        facts["seconds"] = round(loop.seconds, 3)
        if team.writes:
            run.write_end(loop.posterior(), loop.best_epoch)
        team.wait()
        return run


def resume(path: str | Path, **how: Any) -> Run:
    """Go on with the run in a directory; `how` is that of `train`."""
    return train(Run.open(path).recipe, path, **how)


@contextmanager
def hold(run: Run, patience: float) -> Iterator[None]:
    """Keep the directory for this process alone."""
    try:
        with run.lock.acquire(timeout=patience):
            yield
    except Timeout:
        raise LockedError(
            f"{run.path}: another process is at work in it; wait for it, stop it, or choose another directory"
        ) from None


@contextmanager
def keep_status(run: Run, team: Team, facts: Mapping[str, Any]) -> Iterator[None]:
    """Keep `run.json` true: it says how the run ended, unless the process was killed."""
    write = run.set_status if team.writes else lambda *words, **facts: None
    write("running", **facts)
    try:
        yield
        write("finished", **facts)
    except BaseException as error:
        ends = {KeyboardInterrupt: "interrupted", DivergedError: "diverged"}
        word = next((word for kind, word in ends.items() if isinstance(error, kind)), "failed")
        with suppress(InputError):  # a full disk has been reported already
            write(word, str(error), **facts)
        raise


@contextmanager
def handle_signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Within the context `handler` gets these signals, if this is the main thread: Python gives them to no other."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Saving:
    """When a run is saved: every so many seconds, every so many steps (0: never), at its end, when asked to stop."""

    run: Run
    steps: int
    seconds: float
    stop: bool = False  # looked at between two steps, so that what is saved is consistent
    last: float = field(default_factory=time.monotonic)

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. The second time it is a plain KeyboardInterrupt."""
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def after_step(self, loop: Loop) -> None:
        """Save where it is time to, and stop where somebody asked."""
        late = self.seconds and time.monotonic() - self.last > self.seconds
        due = bool(late or (self.steps and loop.batch % self.steps == 0))
        stop, save = loop.team.any([self.stop, due], loop.device)
        if stop or save:
            loop.settle()
            self.save(loop)
        if stop:
            raise StoppedError

    def after_batch(self, loop: Loop) -> None:
        """In an evaluation: stop where somebody asked. A team cannot, its members would wait for each other."""
        if self.stop and loop.team.size == 1:
            self.save(loop)
            raise StoppedError

    def save(self, loop: Loop) -> None:
        """Make this the last checkpoint."""
        if loop.team.writes:
            state = loop.capture()
            if loop.best_weights is not None:
                best = {"epoch": loop.best_epoch, "accuracy": loop.best, "recipe": state["recipe"]}
                save_checkpoint(self.run.path / BEST, {**best, "model": loop.best_weights})
                loop.best_weights = None
            save_checkpoint(self.run.path / LAST, state)
        self.last = time.monotonic()


def train_epochs(loop: Loop, saving: Saving, listeners: Sequence[Listener], quiet: bool) -> None:
    """Train to the end, save, and show how it goes."""
    epochs, done = loop.recipe.train.epochs, loop.schedule.last_epoch

    def after_step() -> None:
        bar.update(loop.schedule.last_epoch, f"epoch {loop.epoch + 1}/{epochs}", show_figures)
        saving.after_step(loop)

    def show_figures() -> dict[str, str]:
        return {name: format_figure(name, x) for name, x in loop.figures().items()}

    with progress.bar(epochs * loop.batches, description="train", done=done, quiet=quiet) as bar:
        for record in loop.epochs(after_step, partial(saving.after_batch, loop)):
            if loop.team.writes:
                files.append_line(saving.run.path / METRICS, json.dumps(record))
            bar.line(format_epoch(record, epochs))
            for listener in listeners:
                listener(record)
    saving.save(loop)


def restore(run: Run, loop: Loop, saved: Checkpoint | None) -> None:
    """Go on from the checkpoint, if there is one; figures after it, and an earlier end of the run, are taken back."""
    if saved is not None:
        loop.restore(saved)
    if loop.team.writes:
        run.record_data(loop.splits)
        lines = "".join(f"{json.dumps(record)}\n" for record in loop.records)
        files.write_atomically(run.path / METRICS, lines)
        for name in (REPORT, POSTERIOR):
            (run.path / name).unlink(missing_ok=True)
    loop.team.wait()


@contextmanager
def open_tensorboard(directory: Path) -> Iterator[Listener]:
    """A listener that writes every figure of every epoch; `tensorboard --logdir runs` shows them."""
    require("tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory)) as writer:

        def listen(record: Mapping[str, Any]) -> None:
            for name, value in record.items():
                if name != "epoch":
                    writer.add_scalar(name.replace(".", "/"), value, record["epoch"])

        yield listen
