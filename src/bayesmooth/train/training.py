"""`train`: from a recipe to a finished run, however often the process is stopped; and settings that labels choose."""

import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.optim.choose import IVON_GRID, fit
from bayesmooth.optim.linear import fit_linear
from bayesmooth.optim.schedule import ENOUGH
from bayesmooth.train.distributed import find_device, join_team
from bayesmooth.train.evaluate import SOURCE, prepare
from bayesmooth.train.loop import DivergedError, Loop
from bayesmooth.train.networks import make_model
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.run import BEST, LAST, METRICS, Run, describe_environment, save_checkpoint
from bayesmooth.words import format_epoch, format_figure

SAVE_SECONDS = 300.0  # between two checkpoints
PATIENCE = 1.0  # seconds; a process that looks whether the lock is held takes it for an instant


class StoppedError(KeyboardInterrupt):
    """Somebody asked the run to stop; it is saved."""


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    device: str | None = None,
    quiet: bool = False,
    save_seconds: float = SAVE_SECONDS,
    patience: float = PATIENCE,
) -> Run:
    """Train a recipe in the directory `out`, or go on where a run of the same recipe stopped there.

    The run is a function of the recipe: stopped and resumed, at whatever moment, it ends with the same bits. Without
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is. It is saved when the
    last time is `save_seconds` ago (0: after every step).
    Where another process trains the same run, this one waits for so many seconds of `patience` (−1: until it can go
    on).
    """
    where = find_device(device)
    with ExitStack() as scope:
        team = scope.enter_context(join_team(where))
        scope.enter_context(progress.silence(quiet or not team.writes))
        run = Run(Path(out) if out is not None else Path("runs") / recipe.title, recipe)
        if team.writes:
            scope.enter_context(run.hold(patience))
        team.wait()
        if run.status == "finished":
            return run
        scope.enter_context(torch.random.fork_rng())  # dropout draws there; restored at the end
        torch.manual_seed(recipe.train.seed)
        saving = Saving(run, save_seconds)
        scope.enter_context(handle_signals(saving.ask_to_stop, signal.SIGINT, signal.SIGTERM))
        facts = describe_environment(where)
        if team.writes:
            scope.enter_context(keep_status(run, facts))
        saved = run.checkpoint() if (run.path / LAST).exists() else None
        loop = Loop(recipe, run.splits(), where, team)
        group = loop.optimizer.param_groups[0]  # settings that rules have chosen are among them
        facts["chosen"] = {key: value for key, value in group.items() if type(value) is float}
        if saved is not None:
            loop.restore(saved)
        if team.writes:
            run.go_on(loop.splits, loop.records)
        team.wait()
        train_epochs(loop, saving)
        facts["seconds"] = round(loop.seconds, 3)
        if team.writes:
            saving.save_best(loop)
            run.write_end(loop)
            run.set_status("finished", **facts)
            (run.path / LAST).unlink(missing_ok=True)  # a finished run needs no optimizer
        team.wait()
        return run


@contextmanager
def keep_status(run: Run, facts: Mapping[str, Any]) -> Iterator[None]:
    """`run.json` says that the run is at work, and how it failed, unless the process was killed."""
    run.set_status("running", **facts)
    try:
        yield
    except BaseException as error:
        ends = {KeyboardInterrupt: "interrupted", DivergedError: "diverged"}
        word = next((word for kind, word in ends.items() if isinstance(error, kind)), "failed")
        with suppress(InputError):  # a full disk has been reported already
            run.set_status(word, str(error), **facts)
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
    """When a run is saved: every so many seconds, and when somebody asks it to stop."""

    run: Run
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
        late = time.monotonic() - self.last >= self.seconds
        stop, save = loop.team.any([self.stop, late], loop.device)
        if stop:
            raise StoppedError
        if save:
            self.save(loop)

    def within_evaluation(self, loop: Loop) -> None:
        """Stop where somebody asked. A team cannot, its members would wait for each other."""
        if self.stop and loop.team.size == 1:
            raise StoppedError

    def save(self, loop: Loop) -> None:
        """Make this the last checkpoint."""
        loop.settle()
        if loop.team.writes:
            self.save_best(loop)
            save_checkpoint(self.run.path / LAST, loop.capture())
        self.last = time.monotonic()

    def save_best(self, loop: Loop) -> None:
        """Write the weights of the best epoch, if they are not written yet."""
        if loop.best_weights is not None:
            best = {"epoch": loop.best_epoch, "accuracy": loop.best, "model": loop.best_weights}
            save_checkpoint(self.run.path / BEST, best | {"recipe": loop.recipe.to_dict()})
            loop.best_weights = None


def train_epochs(loop: Loop, saving: Saving) -> None:
    """Train to the end, save, and show how it goes."""
    epochs, done = loop.recipe.train.epochs, loop.schedule.last_epoch

    def show_figures() -> dict[str, str]:
        return {name: format_figure(name, x) for name, x in loop.figures().items()}

    def after_step() -> None:
        bar.update(loop.schedule.last_epoch, f"epoch {loop.epoch + 1}/{epochs}", show_figures)
        saving.after_step(loop)

    with progress.bar(epochs * loop.batches, description="train", done=done) as bar:
        try:
            for record in loop.epochs(after_step, lambda: saving.within_evaluation(loop)):
                if loop.team.writes:
                    files.append_line(saving.run.path / METRICS, json.dumps(record))
                bar.line(format_epoch(record, epochs))
        except StoppedError:  # here every context has put the weights and statistics back
            saving.save(loop)
            raise


def choose_settings(recipe: Recipe) -> Recipe:
    """The recipe with what the held-out given labels choose: lr and noise of the network, or a linear model's prior.

    The network is taken where it predicts them better than the linear model by a standard error: it is measured at its
    best of many looks. What is chosen stands in the recipe of the run, and so in its hash.
    """
    splits = prepare(recipe)
    if splits.validation is None or len(splits.validation) < ENOUGH:
        return recipe
    parts = splits.train, splits.validation
    (inputs, labels), held = (
        (part.batch(torch.arange(len(part), device="cpu")), part.labels.numbers) for part in parts
    )
    classes, shape = splits.train.num_classes, splits.train.input_shape
    found = fit(
        lambda: make_model(recipe, num_classes=classes, input_shape=shape),
        (inputs, labels),
        recipe.train.epochs,
        batch_size=recipe.train.batch_size,
        validation=held,
        grid=IVON_GRID,
        teach=False,
        seed=recipe.train.seed,
        quiet=progress.SILENT.get(),
    )
    tree, best = recipe.to_dict(), max(row["accuracy"] for row in found.table)
    tree["optimizer"] |= found.setting
    if len(shape) == 1:
        rows = torch.cat([inputs, held[0]])
        last = torch.arange(len(rows), device="cpu") >= len(inputs)
        line = fit_linear(rows, torch.cat([labels, held[1]]), last, classes)
        if line.accuracy >= best - math.sqrt(best * (1 - best) / len(held[1])):
            decay = line.precision / len(inputs)
            tree["model"]["hidden"] = []
            tree["optimizer"] = {"name": "ivon", "lr": 0.3, "hess_init": 0.1, "weight_decay": decay}
    return Recipe.from_dict(tree, SOURCE)
