"""One process at work on a run: the loop, and the files it leaves."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bayesmooth import files, progress
from bayesmooth.errors import InputError
from bayesmooth.lab import checkpoint
from bayesmooth.lab import run as place
from bayesmooth.lab.distributed import Team
from bayesmooth.lab.divergence import check_weights
from bayesmooth.lab.environment import environment
from bayesmooth.lab.interrupt import Interrupt
from bayesmooth.lab.loop import Loop, posterior_of
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.run import Run
from bayesmooth.lab.splits import Splits
from bayesmooth.lab.state import begin
from bayesmooth.lab.summary import shown, summary

Listener = Callable[[Mapping[str, Any]], None]
"""Called with every epoch's record, once it is on the disk."""


class StoppedError(KeyboardInterrupt):
    """Somebody asked the run to stop; it is saved."""


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
    """A run under way. It continues from the last checkpoint in the run's directory, if there is one."""

    def __init__(
        self,
        run: Run,
        splits: Splits,
        device: torch.device,
        crew: Team,
        interrupt: Interrupt,
        saving: Saving,
    ) -> None:
        self.run, self.crew, self.interrupt, self.saving = run, crew, interrupt, saving
        self.state = begin(run.recipe, splits, device)
        self.loop = Loop(run.recipe, splits, self.state, device, crew)
        self._restore()
        if crew.writes:
            self._describe()

    def go(self, quiet: bool, listeners: tuple[Listener, ...]) -> None:
        """Train to the end, and write the report."""
        epochs, state = self.run.recipe.train.epochs, self.state
        total = epochs * self.loop.batches
        with progress.bar(
            total, description="train", done=state.schedule.last_epoch, quiet=quiet
        ) as bar:
            while state.epoch < epochs:
                record = self.epoch(bar)
                bar.line(summary(record, epochs))
                for listener in listeners if self.crew.writes else ():
                    listener(record)
        self.finish()

    def epoch(self, bar: progress.Bar) -> dict[str, Any]:
        """The rest of an epoch, its figures, and a checkpoint."""
        state, start = self.state, time.monotonic()
        title = f"epoch {state.epoch + 1}/{self.run.recipe.train.epochs}, step"
        for _ in self.loop.steps():
            bar.update(state.schedule.last_epoch, title, lambda: shown(state.meter.numbers()))
            self._between_steps()
        trained = time.monotonic()
        self._settle()
        record = self.loop.measure(self._breathe)
        if state.epoch + 1 == self.run.recipe.train.epochs:
            self.loop.settle_statistics()
        self._commit(
            record,
            {"train_seconds": trained - start, "evaluate_seconds": time.monotonic() - trained},
        )
        return record

    def finish(self) -> None:
        """The posterior and the report; done again, they are the same."""
        foreign, posterior, path = (
            self.loop.measure_foreign(),
            posterior_of(self.state),
            self.run.path,
        )
        if self.crew.writes:
            if posterior is not None:
                files.replace_with(path / place.POSTERIOR, posterior.save)
            title, best = self.run.recipe.title, self.state.best_epoch
            report = {"title": title, **self.run.metrics()[-1], "best_epoch": best, **foreign}
            files.write_json(path / place.REPORT, report)
        self.crew.wait()

    def _between_steps(self) -> None:
        """Save where it is time to, and stop where somebody asked."""
        wishes = [self.interrupt.asked, self.saving.due(self.state.batch)]
        stop, save = self.crew.any(wishes, self.loop.device)
        if stop or save:
            self._settle()
            self._save()
        if stop:
            raise StoppedError

    def _breathe(self) -> None:
        """Between two batches of an evaluation; a team cannot stop there, its members would wait for each other."""
        if self.interrupt.asked and self.crew.size == 1:
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
        if self.crew.writes:
            if improved:
                best = {
                    "epoch": state.epoch,
                    "accuracy": accuracy,
                    "model": state.model.state_dict(),
                }
                checkpoint.save(path / place.CHECKPOINTS / place.BEST, best)
            files.append_line(path / place.METRICS, json.dumps(record))
            files.append_line(path / place.TIMING, json.dumps({"epoch": state.epoch, **timing}))
        self._save()

    def _settle(self) -> None:
        """Between steps: see that the weights are sound, bring the processes' counts and statistics together."""
        check_weights(self.state)
        self.state.meter.join(self.crew)
        self.crew.average_(self.state.model.buffers())

    def _save(self) -> None:
        if self.crew.writes:
            directory = self.run.path / place.CHECKPOINTS
            checkpoint.save_last(directory, self.state.capture(self.run.recipe))
        self.saving.last = time.monotonic()

    def _restore(self) -> None:
        saved, damaged = checkpoint.load_last(self.run.path / place.CHECKPOINTS)
        if saved is not None:
            self.run.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
            self.state.restore(saved)
        if self.crew.writes:
            for damage in damaged:
                print(f"{damage}; going on from epoch {self.state.epoch}", file=sys.stderr)
            files.keep_lines(self.run.path / place.METRICS, self.state.epoch)
            self.run.metrics()  # the report will need them: damage is told now, not after the training
        self.crew.wait()

    def _describe(self) -> None:
        """What the run is made of, and where; a run that goes on must find the same data."""
        path, splits = self.run.path, self.loop.splits
        here, facts = environment(self.loop.device), splits.facts()
        if not (path / place.ENVIRONMENT).exists():
            if splits.corruption is not None:
                files.replace_with(path / place.NOISE, splits.corruption.save)
            files.write_json(path / place.DATA, facts)
            files.write_json(path / place.ENVIRONMENT, here)
        if (before := files.read_json(path / place.DATA)) != facts:
            told = "; ".join(
                f"{key}: {before.get(key)} → {facts[key]}"
                for key in facts
                if before.get(key) != facts[key]
            )
            raise InputError(
                f"{path}: its data have changed: {told}; bring back what it began with"
            )
        before = files.read_json(path / place.ENVIRONMENT)
        for key in ("packages", "device", "threads", "processes"):
            if before[key] != here[key]:
                print(
                    f"{key}: {before[key]} before, {here[key]} now; the last bits may differ",
                    file=sys.stderr,
                )
