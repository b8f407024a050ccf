"""`train` and `resume`: from a recipe to a finished run, however often the process is stopped on the way."""

import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.optional import require
from bayesmooth.train.compare import format_epoch
from bayesmooth.train.distributed import Team, find_device, join_team
from bayesmooth.train.loop import DivergedError, Loop, Record
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.run import (
    BEST,
    CHECKPOINTS,
    Run,
    load_last,
    make_directory,
    save_checkpoint,
    save_last,
)
from bayesmooth.train.splits import prepare
from bayesmooth.words import format_figure, format_percent

LONG_ENOUGH = 100  # steps, after which a model should know more than the most frequent label

Listener = Callable[[Mapping[str, Any]], None]  # gets every epoch's record, once it is on the disk


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
    tensorboard: bool = False,
) -> Run:
    """Train a recipe in the directory `out`, or go on where a run of the same recipe stopped there.

    The run is a function of the recipe: stopped and resumed, at whatever moment, it ends with the same bits. Without
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is, once its checksums are
    found right. It is saved after every epoch, and within one after `save_steps` steps (0: not) and when the last time
    is `save_seconds` ago. `listeners` are called with every epoch's record; `tensorboard` adds one that writes all
    figures to a folder of the run.
    """
    where = find_device(device)
    with ExitStack() as scope:
        team = scope.enter_context(join_team(where))
        path = Path(out) if out is not None else Path("runs") / recipe.title
        if team.writes:
            make_directory(path)
            scope.enter_context(files.locked(path))  # before anything is written that counts
            Run.start(path, recipe)
        team.wait()
        run = Run.open(path)
        if run.status == "finished" and not run.damaged():
            return run
        run.check_repairable()
        scope.enter_context(torch.random.fork_rng())  # dropout draws there; restored at the end
        torch.manual_seed(recipe.train.seed)
        saving = Saving(run, save_steps, save_seconds)
        scope.enter_context(handle_signals(saving.ask_to_stop, signal.SIGINT, signal.SIGTERM))
        scope.enter_context(keep_status(run, team))
        listening = list(listeners) if team.writes else []
        if tensorboard and team.writes:
            listening.append(scope.enter_context(open_tensorboard(path / "tensorboard")))
        loop = Loop(recipe, prepare(recipe, data_dir), where, team)
        restore_checkpoint(run, loop)
        if team.writes:
            run.record_origin(loop.splits, where)
        train_epochs(loop, saving, listening, quiet or not team.writes)
        if team.writes:
            run.write_end(loop.posterior(), loop.best_epoch)
        team.wait()
        return run


def resume(path: str | Path, **how: Any) -> Run:
    """Go on with the run in a directory; `how` is that of `train`."""
    return train(Run.open(path).recipe, path, **how)


@contextmanager
def keep_status(run: Run, team: Team) -> Iterator[None]:
    """Keep `run.json` true: it says how the run ended, unless the process was killed. A finished run gets checksums."""
    write = run.set_status if team.writes else lambda *words: None
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
    if team.writes:
        run.write_checksums()


class StoppedError(KeyboardInterrupt):
    """Somebody asked the run to stop; it is saved."""


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
    """When a run is saved: after every epoch, every so many steps or seconds (0: never), and when asked to stop."""

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

    def after_epoch(self, loop: Loop, record: Record, seconds: Record, improved: bool) -> None:
        """The lines go first: a crash before the checkpoint leaves one too many, and that is cut."""
        if loop.team.writes:
            if improved:
                best = {"epoch": record["epoch"], "accuracy": loop.best}
                save_checkpoint(self.run.path / BEST, {**best, "model": loop.model.state_dict()})
            self.run.add_epoch(record, seconds)
        self.save(loop)

    def save(self, loop: Loop) -> None:
        """Make this the last checkpoint."""
        if loop.team.writes:
            save_last(self.run.path / CHECKPOINTS, loop.capture())
        self.last = time.monotonic()


def train_epochs(loop: Loop, saving: Saving, listeners: Sequence[Listener], quiet: bool) -> None:
    """Train to the end, save, and show how it goes."""
    epochs, done = loop.recipe.train.epochs, loop.schedule.last_epoch

    def after_step() -> None:
        bar.update(loop.schedule.last_epoch, f"epoch {loop.epoch + 1}/{epochs}", show_figures)
        saving.after_step(loop)

    def show_figures() -> dict[str, str]:
        return {name: format_figure(name, x) for name, x in loop.figures().items()}

    with (
        progress.bar(epochs * loop.batches, description="train", done=done, quiet=quiet) as bar,
        hear_warnings() as warned,
    ):
        after_batch = partial(saving.after_batch, loop)
        for record, seconds, improved in loop.epochs(after_step, after_batch):
            saving.after_epoch(loop, record, seconds, improved)
            bar.line(format_epoch(record, epochs, find_worries(loop, record, warned)))
            warned.clear()
            for listener in listeners:
                listener(record)


@contextmanager
def hear_warnings() -> Iterator[list[str]]:
    """Warnings inside are shown as ever, and remembered for the line of their epoch."""
    heard: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def remember(message: Warning | str, *where: Any, **how: Any) -> None:
            heard.append(str(message))
            show(message, *where, **how)

        warnings.showwarning = remember
        yield heard


def find_worries(loop: Loop, record: Record, warned: Iterable[str]) -> list[str]:
    """What should worry whoever watches: the warnings of the epoch, and a model that has learned nothing so far."""
    worries = [re.split(r" \(|[:;]", text)[0] for text in warned]
    accuracy = record.get("train.accuracy", 1.0)
    if record["epoch"] > 1 and record["step"] >= LONG_ENOUGH and accuracy < loop.guessing:
        worries.append(
            f"nothing is learned so far: accuracy {format_percent(accuracy)}, no better than guessing"
        )
    return list(dict.fromkeys(worries))


def restore_checkpoint(run: Run, loop: Loop) -> None:
    """Go on from the last checkpoint in the run's directory, if there is one."""
    saved, damaged = load_last(run.path / CHECKPOINTS)
    if saved is not None:
        run.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
        loop.restore(saved)
    if loop.team.writes:
        for damage in damaged:
            print(f"{damage}; going on from epoch {loop.epoch}", file=sys.stderr)
        run.cut_back(loop.epoch)
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
