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

import torch

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.lab.compare import format_epoch
from bayesmooth.lab.distributed import Team, device_of, join_team
from bayesmooth.lab.loop import DivergedError, Loop, begin, check_weights, posterior_of, seeded
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
from bayesmooth.lab.splits import Splits, prepare
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
    where = device_of(device)
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
        scope.enter_context(seeded(recipe.train.seed))
        interrupt = scope.enter_context(interruptible())
        scope.enter_context(keep_status(run, team))
        saving = Saving(save_steps, save_seconds)
        session = Session(run, prepare(recipe, data_dir), where, team, interrupt, saving)
        session.go(quiet or not team.writes, tuple(listeners))
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
    """Remembers that somebody asked to stop. The second time it is a plain KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within the context Ctrl-C and SIGTERM only set `asked`, which is looked at between two steps, never inside one.

    So what is saved is consistent. Python hands signals to its main thread alone.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Saving:
    """When to save within an epoch: every so many steps, or seconds; 0 is never."""

    steps: int = 0
    seconds: float = 300.0
    last: float = field(default_factory=time.monotonic)

    def due(self, batch: int) -> bool:
        """Whether it is time, after so many batches of the epoch."""
        late = self.seconds and time.monotonic() - self.last > self.seconds
        return bool(late or (self.steps and batch % self.steps == 0))


class Session:
    """One process at work on a run. It continues from the last checkpoint in the run's directory, if there is one."""

    def __init__(
        self,
        run: Run,
        splits: Splits,
        device: torch.device,
        team: Team,
        interrupt: Interrupt,
        saving: Saving,
    ) -> None:
        self.run, self.team, self.interrupt, self.saving = run, team, interrupt, saving
        self.warned: list[str] = []  # in this epoch
        self.state = begin(run.recipe, splits, device)
        self.loop = Loop(run.recipe, splits, self.state, device, team)
        self._restore()
        if team.writes:
            self._describe()

    def go(self, quiet: bool, listeners: tuple[Listener, ...]) -> None:
        """Train to the end, and write the report."""
        epochs, state = self.run.recipe.train.epochs, self.state
        total, done = epochs * self.loop.batches, state.schedule.last_epoch
        with (
            progress.bar(total, description="train", done=done, quiet=quiet) as bar,
            self._hear_warnings(),
        ):
            while state.epoch < epochs:
                record = self.epoch(bar)
                bar.line(format_epoch(record, epochs, self.notes(record)))
                self.warned.clear()
                for listener in listeners if self.team.writes else ():
                    listener(record)
        self.finish()

    def epoch(self, bar: progress.Bar) -> dict[str, Any]:
        """The rest of an epoch, its figures, and a checkpoint."""
        state, start = self.state, time.monotonic()
        title = f"epoch {state.epoch + 1}/{self.run.recipe.train.epochs}"
        for _ in self.loop.steps():
            bar.update(state.schedule.last_epoch, title, self._numbers)
            self._between_steps()
        trained = time.monotonic()
        self._settle()
        record = self.loop.measure(self._between_batches)
        if state.epoch + 1 == self.run.recipe.train.epochs:
            self.loop.settle_statistics()
        self._commit(
            record,
            {"train_seconds": trained - start, "evaluate_seconds": time.monotonic() - trained},
        )
        return record

    def finish(self) -> None:
        """The posterior and the report; done again, they are the same."""
        foreign, posterior = self.loop.measure_foreign(), posterior_of(self.state)
        if self.team.writes:
            path, best = self.run.path, self.state.best_epoch
            if posterior is not None:
                files.replace_with(path / POSTERIOR, posterior.save)
            record = self.run.metrics()[-1]
            report = {"title": self.run.recipe.title, **record, "best_epoch": best, **foreign}
            files.write_json(path / REPORT, report)
        self.team.wait()

    def notes(self, record: Mapping[str, Any]) -> list[str]:
        """What should worry whoever watches: the warnings of the epoch, and a model that has learned nothing so far."""
        notes = [re.split(r" \(|[:;]", text)[0] for text in self.warned]
        accuracy, guess = record.get("train.accuracy", 1.0), self.loop.guessing
        if record["epoch"] > 1 and record["step"] >= LONG_ENOUGH and accuracy < guess:
            notes.append(
                f"nothing is learned so far: accuracy {format_percent(accuracy)}, guessing has as much"
            )
        return list(dict.fromkeys(notes))

    @contextmanager
    def _hear_warnings(self) -> Iterator[None]:
        """Warnings inside are shown as ever, and remembered for the line of their epoch."""
        with warnings.catch_warnings():
            show = warnings.showwarning

            def remember(message: Warning | str, *where: Any, **how: Any) -> None:
                self.warned.append(str(message))
                show(message, *where, **how)

            warnings.showwarning = remember
            yield

    def _numbers(self) -> dict[str, str]:
        numbers = self.state.meter.numbers()
        return {name: format_figure(name, value) for name, value in numbers.items()}

    def _between_steps(self) -> None:
        """Save where it is time to, and stop where somebody asked."""
        wishes = [self.interrupt.asked, self.saving.due(self.state.batch)]
        stop, save = self.team.any(wishes, self.loop.device)
        if stop or save:
            self._settle()
            self._save()
        if stop:
            raise StoppedError

    def _between_batches(self) -> None:
        """In an evaluation: stop where somebody asked. A team cannot, its members would wait for each other."""
        if self.interrupt.asked and self.team.size == 1:
            self._save()
            raise StoppedError

    def _commit(self, record: dict[str, Any], timing: dict[str, float]) -> None:
        """Close the epoch. The line goes first: a crash before the checkpoint leaves one too many, and that is cut."""
        state, path = self.state, self.run.path
        state.loss.end_epoch()
        accuracy = record.get("validation.accuracy", -1.0)
        improved = accuracy > state.best
        if improved:
            state.best, state.best_epoch = accuracy, record["epoch"]
            if "past" in state.loss.needs:
                state.remember()
        state.epoch, state.batch = record["epoch"], 0
        state.meter.clear()
        if self.team.writes:
            if improved:
                weights = state.model.state_dict()
                best = {"epoch": state.epoch, "accuracy": accuracy, "model": weights}
                save_checkpoint(path / BEST, best)
            files.append_line(path / METRICS, json.dumps(record))
            files.append_line(path / TIMING, json.dumps({"epoch": state.epoch, **timing}))
        self._save()

    def _settle(self) -> None:
        """Between steps: see that the weights are sound, bring the processes' counts and statistics together."""
        check_weights(self.state)
        self.state.meter.join(self.team)
        self.team.average_(self.state.model.buffers())

    def _save(self) -> None:
        if self.team.writes:
            save_last(self.run.path / CHECKPOINTS, self.state.capture(self.run.recipe))
        self.saving.last = time.monotonic()

    def _restore(self) -> None:
        path = self.run.path
        saved, damaged = load_last(path / CHECKPOINTS)
        if saved is not None:
            self.run.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
            self.state.restore(saved)
        if self.team.writes:
            for damage in damaged:
                print(f"{damage}; going on from epoch {self.state.epoch}", file=sys.stderr)
            files.keep_lines(path / METRICS, self.state.epoch)
            # The end of a run is made anew; until then nothing of an earlier end is left to be mistaken for it.
            for name in (CHECKSUMS, REPORT, POSTERIOR):
                (path / name).unlink(missing_ok=True)
            self.run.metrics()  # the report will need them: damage is an error now, not after the training
        self.team.wait()

    def _describe(self) -> None:
        """What the run is made of, and where; a run that goes on must find the same data."""
        path, splits = self.run.path, self.loop.splits
        here, facts = environment(self.loop.device), splits.facts()
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
            before = files.read_json(path)
            if isinstance(before, dict):
                return before
        except InputError:
            pass
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
