"""`train` and `resume`: from a recipe to a finished run, however often the process is stopped on the way."""

import json
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.lab.compare import format_epoch
from bayesmooth.lab.distributed import Team, find_device, join_team
from bayesmooth.lab.loop import DivergedError, Loop, Record, seed_torch
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.run import (
    BEST,
    CHECKPOINTS,
    CHECKSUMS,
    DATA,
    ENVIRONMENT,
    METRICS,
    NOISE,
    POSTERIOR,
    REPORT,
    TIMING,
    Run,
    environment,
    load_last,
    make_directory,
    save_checkpoint,
    save_last,
)
from bayesmooth.lab.splits import prepare
from bayesmooth.optional import require
from bayesmooth.words import format_figure, format_percent

LONG_ENOUGH = 100  # steps, after which a model should know more than the most frequent label

Listener = Callable[[Mapping[str, Any]], None]
"""Called with every epoch's record, once it is on the disk."""


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
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is, once its checksums are
    found right. It is saved after every epoch, and within one after `save_steps` steps (0: not) and when the last time
    is `save_seconds` ago.
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
        scope.enter_context(seed_torch(recipe.train.seed))
        interrupt = Interrupt()
        scope.enter_context(handle_signals(interrupt, signal.SIGINT, signal.SIGTERM))
        scope.enter_context(keep_status(run, team))
        loop = Loop(recipe, prepare(recipe, data_dir), where, team)
        restore_checkpoint(run, loop)
        record_origin(run, loop)
        saving = Saving(run, loop, interrupt, save_steps, save_seconds)
        train_epochs(loop, saving, tuple(listeners), quiet or not team.writes)
        finish(run, loop)
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


class Interrupt:
    """Remembers that somebody asked to stop. The second time it is a plain KeyboardInterrupt.

    `asked` is looked at between two steps, never inside one, so what is saved is consistent.
    """

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


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
    """When to save a loop to its run: after every epoch, every so many steps or seconds (0: never), and to stop."""

    run: Run
    loop: Loop
    interrupt: Interrupt
    steps: int = 0
    seconds: float = 300.0
    last: float = field(default_factory=time.monotonic)

    def after_step(self) -> None:
        """Save where it is time to, and stop where somebody asked."""
        late = self.seconds and time.monotonic() - self.last > self.seconds
        due = bool(late or (self.steps and self.loop.batch % self.steps == 0))
        team, device = self.loop.team, self.loop.device
        stop, save = team.any([self.interrupt.asked, due], device)
        if stop or save:
            self.loop.settle()
            self.save()
        if stop:
            raise StoppedError

    def after_batch(self) -> None:
        """In an evaluation: stop where somebody asked. A team cannot, its members would wait for each other."""
        if self.interrupt.asked and self.loop.team.size == 1:
            self.save()
            raise StoppedError

    def after_epoch(self, record: Record, seconds: dict[str, float], improved: bool) -> None:
        """The lines go first: a crash before the checkpoint leaves one too many, and that is cut."""
        if self.loop.team.writes:
            path, epoch = self.run.path, record["epoch"]
            if improved:
                weights = self.loop.model.state_dict()
                best = {"epoch": epoch, "accuracy": self.loop.best, "model": weights}
                save_checkpoint(path / BEST, best)
            files.append_line(path / METRICS, json.dumps(record))
            files.append_line(path / TIMING, json.dumps({"epoch": epoch, **seconds}))
        self.save()

    def save(self) -> None:
        """Make this the last checkpoint."""
        if self.loop.team.writes:
            save_last(self.run.path / CHECKPOINTS, self.loop.capture())
        self.last = time.monotonic()


def train_epochs(loop: Loop, saving: Saving, listeners: tuple[Listener, ...], quiet: bool) -> None:
    """Train to the end, save, and show how it goes."""
    epochs, done = loop.recipe.train.epochs, loop.schedule.last_epoch

    def after_step() -> None:
        bar.update(loop.schedule.last_epoch, f"epoch {loop.epoch + 1}/{epochs}", show_meter)
        saving.after_step()

    def show_meter() -> dict[str, str]:
        return {name: format_figure(name, x) for name, x in loop.meter.numbers().items()}

    with (
        progress.bar(epochs * loop.batches, description="train", done=done, quiet=quiet) as bar,
        hear_warnings() as warned,
    ):
        for record, seconds, improved in loop.epochs(after_step, saving.after_batch):
            saving.after_epoch(record, seconds, improved)
            bar.line(format_epoch(record, epochs, find_worries(loop, record, warned)))
            warned.clear()
            for listener in listeners if loop.team.writes else ():
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


def finish(run: Run, loop: Loop) -> None:
    """Write the posterior and the report; written again, they are the same."""
    if loop.team.writes:
        if (posterior := loop.posterior()) is not None:
            files.replace_with(run.path / POSTERIOR, posterior.save)
        record = run.metrics()[-1]
        report = {"title": run.recipe.title, **record, "best_epoch": loop.best_epoch}
        files.write_json(run.path / REPORT, report)
    loop.team.wait()


def restore_checkpoint(run: Run, loop: Loop) -> None:
    """Go on from the last checkpoint in the run's directory, if there is one."""
    path = run.path
    saved, damaged = load_last(path / CHECKPOINTS)
    if saved is not None:
        run.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
        loop.restore(saved)
    if loop.team.writes:
        for damage in damaged:
            print(f"{damage}; going on from epoch {loop.epoch}", file=sys.stderr)
        files.keep_lines(path / METRICS, loop.epoch)
        # The end of a run is made anew; until then nothing of an earlier end is left to be mistaken for it.
        for name in (CHECKSUMS, REPORT, POSTERIOR):
            (path / name).unlink(missing_ok=True)
        run.metrics()  # the report will need them: damage is an error now, not after the training
    loop.team.wait()


def record_origin(run: Run, loop: Loop) -> None:
    """Write what the run is made of, and where; a run that goes on must find the same data."""
    if not loop.team.writes:
        return
    path, splits = run.path, loop.splits
    here, facts = environment(loop.device), splits.facts()
    before = _read_again(path / DATA, facts)
    if changed := [key for key in facts if before.get(key) != facts[key]]:
        differences = "; ".join(f"{key}: {before.get(key)} → {facts[key]}" for key in changed)
        raise InputError(
            f"{path}: its data have changed: {differences}; bring back what it began with"
        )
    if splits.corruption is not None:
        files.replace_with(path / NOISE, splits.corruption.save)
    before = _read_again(path / ENVIRONMENT, here)
    for key in ("packages", "device", "threads", "processes"):
        if before.get(key) != here[key]:
            print(
                f"{key}: {before.get(key)} before, {here[key]} now; the last bits may differ",
                file=sys.stderr,
            )


def _read_again(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """What an earlier session wrote; where there is nothing, or nothing that can be read, `content` is written."""
    if path.exists():
        try:
            return files.read_json(path)
        except InputError:
            print(f"{path}: was damaged, and is written again", file=sys.stderr)
    files.write_json(path, content)
    return content


@contextmanager
def tensorboard(directory: Path) -> Iterator[Listener]:
    """A listener for `train` that writes every figure of every epoch; `tensorboard --logdir runs` shows them."""
    require("tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer: list[Any] = []  # made with the first figure: a run begins in an empty directory

    def listen(record: Mapping[str, Any]) -> None:
        if not writer:
            writer.append(SummaryWriter(str(directory)))
        for name, value in record.items():
            if name != "epoch":
                writer[0].add_scalar(name.replace(".", "/"), value, record["epoch"])

    try:
        yield listen
    finally:
        for open_one in writer:
            open_one.close()
