"""A run is a directory, and `train` fills it: from a recipe to a finished run, however often the process is stopped.

It holds the recipe, the figures, a status and a checkpoint; when the run is finished, weights and a report. The
checkpoint is replaced in one move, and all that a run needs to go on is in it; a finished run has none. A lock tells a
run that is being trained from one whose process was killed.
"""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import files, progress
from bayesmooth.audit import Audit, audit_network
from bayesmooth.calling import find_device
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.progress import format_epoch, format_figure
from bayesmooth.train.evaluate import Forecast, Splits, evaluate, open_new, prepare, probabilities, statistics_batches
from bayesmooth.train.loop import Checkpoint, DivergedError, Loop, make_model
from bayesmooth.train.recipe import Recipe, find_builder, find_differences

RECIPE, STATUS, DATA = "recipe.toml", "run.json", "data.json"
METRICS, REPORT, POSTERIOR = "metrics.jsonl", "report.json", "posterior.safetensors"
LAST, MODEL, LOCK = "last.pt", "model.pt", "lock"
PACKAGES = ("bayesmooth", "torch", "numpy", "safetensors", "scikit-learn", "pandas")
SAVE_SECONDS = 300.0  # between two checkpoints
PATIENCE = 1.0  # seconds; a process that looks whether the lock is held takes it for an instant


class StoppedError(KeyboardInterrupt):
    """Somebody asked the run to stop; it is saved."""


@dataclass(eq=False)
class Run:
    """One directory: recipe, metrics, checkpoints, posterior, report."""

    path: Path
    recipe: Recipe

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run's directory."""
        place = Path(path) / RECIPE
        if not place.is_file():
            raise InputError(f"{path}: not a run (no {RECIPE} in it); `bayesmooth train` makes one")
        return cls(Path(path), Recipe.load(place))

    # ---- its contents ----

    @property
    def status(self) -> str:
        """new, running, finished, interrupted, diverged or failed; killed, if its process could not say more."""
        if not (self.path / STATUS).exists():
            return "new"
        status = str(files.read_json(self.path / STATUS).get("status"))
        if status == "running":
            with suppress(Timeout, PermissionError), FileLock(self.path / LOCK, timeout=0):
                return "killed"
        return status

    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        return files.records(self.path / METRICS)

    def report(self) -> dict[str, Any]:
        """The final figures."""
        if not (self.path / REPORT).exists():
            raise self.missing(REPORT)
        return files.read_json(self.path / REPORT)

    def missing(self, name: str) -> InputError:
        """The error about a file that is not there."""
        if self.status == "finished":
            return InputError(f"{self.path}: finished, but has no {name}; put it back, or delete {STATUS} and train it")
        return InputError(f"{self.path}: no {name}, unfinished ({self.status}); `bayesmooth train {self.path}` goes on")

    def seconds(self) -> float:
        """Time spent in training steps."""
        record = files.read_json(self.path / STATUS) if (self.path / STATUS).exists() else {}
        return float(record.get("seconds", 0.0))

    def data(self) -> dict[str, Any]:
        """The facts about its data: the names of the classes, the shape of an input, and others."""
        if not (self.path / DATA).exists():
            raise self.missing(DATA)
        return files.read_json(self.path / DATA)

    def splits(self) -> Splits:
        """The data as the run saw it; data that have changed since are refused."""
        splits = prepare(self.recipe)
        if (self.path / DATA).exists():
            before, now = self.data(), json.loads(json.dumps(splits.facts()))
            if changed := [key for key in now if before.get(key) != now[key]]:
                differences = "; ".join(f"{key}: {before.get(key)} → {now[key]}" for key in changed)
                raise InputError(f"{self.path}: its data have changed: {differences}; bring back what it began with")
        return splits

    def checkpoint(self) -> Checkpoint:
        """The last checkpoint, or the part of it that a finished run keeps."""
        path = self.path / (MODEL if (self.path / MODEL).exists() else LAST)
        if not path.exists():
            raise self.missing(MODEL)
        with files.name_errors(path, "checkpoint", "; put it back, or delete the run and train again"):
            saved: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        self.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
        return saved

    def posterior(self) -> Posterior:
        """The Gaussian over the weights at the end of the run."""
        path, name = self.path / POSTERIOR, self.recipe.optimizer.name
        if not hasattr(find_builder("optimizer", name), "posterior"):
            raise InputError(f"{self.path}: no {POSTERIOR}, as its optimizer is {name}; ivon and bsam have one")
        if not path.exists():
            raise self.missing(POSTERIOR)
        return Posterior.load(path)

    def model(self, device: str | None = "cpu") -> nn.Module:
        """The trained network, in eval mode, on a device; None: a GPU if there is one."""
        weights, data = self.checkpoint()["model"], self.data()
        facts = {"num_classes": len(data["class_names"]), "input_shape": data["input_shape"]}
        model = make_model(self.recipe, pretrained=False, **facts)
        if model.state_dict().keys() - weights.keys():
            weights = {**self.posterior().mean, **weights}
        model.load_state_dict(weights)
        return model.eval().to(find_device(device))

    # ---- its uses ----

    def evaluate(self, *, samples: int = 0, device: str | None = None) -> dict[str, float]:
        """The figures of the last checkpoint, measured again; averaged, too, where there is a posterior."""
        model, splits = self.model(device), self.splits().to(find_device(device))
        posterior = self.posterior() if (self.path / POSTERIOR).exists() else None
        more: dict[str, Any] = {"batchnorm": statistics_batches(self.recipe, splits, model)}
        return evaluate(self.recipe, splits, model, posterior, **more, **({"samples": samples} if samples else {}))

    def audit(self, *, device: str | None = None, **options: Any) -> Audit:
        """The audit of its training labels; the options are those of `bayesmooth.audit_network`."""
        model = self.model(device=device)
        return audit_network(model, self.posterior(), self.splits().train, **options)

    def predict(self, given: Any, *, samples: int = 0, device: str | None = None) -> Forecast:
        """The classes of new examples: a path, a data frame, a `Source`; they are read as the training data were.

        At the mean of the weights, and averaged over `samples` draws (0: the recipe's) of the posterior, if there is
        one.
        """
        examples = open_new(given, self.recipe, self.data())
        model, recipe = self.model(device=device), self.recipe
        settings: dict[str, Any] = {"batch_size": recipe.evaluate.batch_size}
        if any(isinstance(part, _BatchNorm) for part in model.modules()):
            settings["batchnorm"] = statistics_batches(recipe, self.splits(), model)
        mean, averaged = probabilities(model, examples, **settings), None
        if (self.path / POSTERIOR).exists():
            settings |= {"samples": samples or recipe.evaluate.samples, "seed": recipe.train.seed}
            averaged = probabilities(model, examples, posterior=self.posterior(), **settings)
        return Forecast(examples, mean, averaged)

    # ---- writing it ----

    @contextmanager
    def hold(self, patience: float) -> Iterator[None]:
        """Make the directory, with the recipe in it, and keep it for this process alone.

        A directory that holds something else is not touched, and one with another recipe is an error that names
        the differences.
        """
        place = self.path / RECIPE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Another process may start the same run at this moment.
            others = [file.name for file in self.path.iterdir() if file.name != LOCK and file.suffix != ".tmp"]
        except OSError as error:
            raise InputError(f"{self.path}: cannot be made: {error.strerror}; choose another directory") from None
        if others and not place.is_file():
            raise InputError(f"{self.path}: holds {others[0]!r} and is not a run; choose another directory")
        try:
            # The system releases it when this process ends, however it ends.
            with FileLock(self.path / LOCK, timeout=patience):
                if not place.is_file() or (self.status == "failed" and not (self.path / DATA).exists()):
                    files.write_atomically(place, self.recipe.to_toml())  # new, or refused before it began
                elif place.read_text("utf-8") != self.recipe.to_toml():
                    Run.open(self.path).must_be(self.recipe)
                yield
        except Timeout:
            raise InputError(
                f"{self.path}: another process is at work in it; wait for it, stop it, or choose another directory"
            ) from None

    def must_be(self, recipe: Recipe, whose: str = "the run's") -> None:
        """Refuse to go on under another recipe."""
        ours, theirs = find_differences([self.recipe, recipe])
        if changes := [f"{key}: {ours.get(key, 'unset')} → {theirs.get(key, 'unset')}" for key in ours | theirs]:
            raise InputError(
                f"{self.path}: {whose} recipe differs: {'; '.join(changes)}; go back to it, or choose another directory"
            )

    def set_status(self, status: str, message: str = "", **facts: Any) -> None:
        """Write `run.json`, with `facts` beside the status."""
        content = {"status": status, "hash": self.recipe.hash, "seed": self.recipe.train.seed, **facts}
        files.write_json(self.path / STATUS, content | ({"message": message} if message else {}))


# ---- training ----


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

    The run is a function of the recipe: stopped and resumed, at any moment, it ends with the same bits. Without
    `out` the directory is `runs/` and the recipe's title. A finished run is returned as it is. It is saved when the
    last time is `save_seconds` ago (0: after every step).
    Where another process trains the same run, this one waits `patience` seconds (−1: until it can go on).
    """
    run, where = Run(Path(out or Path("runs") / recipe.title), recipe), find_device(device)
    with progress.silence(quiet), run.hold(patience), torch.random.fork_rng():  # dropout draws there
        if run.status == "finished":
            return run
        torch.manual_seed(recipe.train.seed)
        facts: dict[str, Any] = {  # another person needs these to get the same bits
            "platform": platform.platform(),
            "packages": {p: installed[0].version for p in PACKAGES if (installed := [*distributions(name=p)])},
            "device": str(where),
            "threads": torch.get_num_threads(),
            "process": os.getpid(),
        }
        run.set_status("running", **facts)
        try:
            seconds = _train_to_end(run, where, save_seconds, facts)
        except BaseException as error:
            with suppress(InputError):  # a full disk has been reported already
                run.set_status(name_end(error), str(error), **facts)
            raise
        run.set_status("finished", seconds=round(seconds, 3), **facts)
        (run.path / LAST).unlink(missing_ok=True)  # a finished run needs no optimizer
    return run


def name_end(error: BaseException) -> str:
    """The status of a run that ends with this error."""
    ends = {KeyboardInterrupt: "interrupted", DivergedError: "diverged", BaseException: "failed"}
    return next(ends[kind] for kind in ends if isinstance(error, kind))


def _train_to_end(run: Run, device: torch.device, save_seconds: float, facts: dict[str, Any]) -> float:
    """Start or go on, save, show the progress, and write the weights and the report; the seconds of its steps.

    `facts` get the settings that rules have chosen.
    """
    saving, metrics = Saving(run.path / LAST, save_seconds), run.path / METRICS
    with handle_signals(saving.ask_to_stop, signal.SIGINT, signal.SIGTERM):
        saved = run.checkpoint() if (run.path / LAST).exists() else None
        loop = Loop(run.recipe, run.splits(), device)
        group = loop.optimizer.param_groups[0]
        facts["chosen"] = {key: value for key, value in group.items() if type(value) is float}
        if saved is not None:
            loop.restore(saved)
        if not (run.path / DATA).exists():
            files.write_json(run.path / DATA, loop.splits.facts())
        if metrics.exists():  # figures after the checkpoint, and an earlier end, are taken back
            files.write_atomically(metrics, "".join(f"{json.dumps(r)}\n" for r in loop.records))
        for name in (REPORT, POSTERIOR, MODEL):
            (run.path / name).unlink(missing_ok=True)
        with progress.bar(loop.total, description="train", done=loop.schedule.last_epoch) as bar:
            try:
                for record in loop.epochs(partial(saving.check, loop, bar)):
                    files.append_line(metrics, json.dumps(record))
                    bar.line(format_epoch(record, run.recipe.train.epochs))
            except StoppedError:  # here every context has put the weights and statistics back
                saving.save(loop)
                raise
    posterior, weights = loop.posterior(), loop.model.state_dict()
    if posterior is not None:
        posterior.save(run.path / POSTERIOR)
        # Its mean are the weights: only those that it does not name are kept beside it.
        weights = {k: v for k, v in weights.items() if k not in posterior.mean}
    kept = {"model": weights, "loss": loop.loss.state_dict(), "recipe": run.recipe.to_dict()}
    files.save_checkpoint(run.path / MODEL, kept)
    report = {"title": run.recipe.title, **loop.records[-1], "best_epoch": loop.best["epoch"]}
    files.write_json(run.path / REPORT, report)
    return loop.seconds


@dataclass
class Saving:
    """The times at which a run is saved: every so many seconds, and when somebody asks it to stop."""

    path: Path
    seconds: float
    stop: bool = False  # looked at between two steps, so that the saved state is consistent
    last: float = field(default_factory=time.monotonic)

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. The second time it is a plain KeyboardInterrupt."""
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def check(self, loop: Loop, bar: progress.Bar, between_steps: bool = False) -> None:
        """Show the progress of the loop, and stop if somebody asked; between two steps, save it if it is time to."""
        bar.update(
            loop.schedule.last_epoch,
            f"epoch {loop.epoch + 1}/{loop.recipe.train.epochs}",
            lambda: {name: format_figure(name, x) for name, x in loop.figures().items()},
        )
        if self.stop:
            raise StoppedError
        if between_steps and time.monotonic() - self.last >= self.seconds:
            self.save(loop)

    def save(self, loop: Loop) -> None:
        """Make this the last checkpoint."""
        loop.check_weights()
        files.save_checkpoint(self.path, loop.capture())
        self.last = time.monotonic()


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
