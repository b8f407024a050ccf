"""A run is a directory: its recipe, its figures, its status, a checkpoint; when it is finished, weights and a report.

The checkpoint is replaced in one move, and all that a run needs to go on is in it; a finished run has none. A lock
tells a run that is being trained from one whose process was killed.
"""

import io
import json
import os
import pickle
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal, Self

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import files
from bayesmooth.audit import Audit, audit_network
from bayesmooth.data import Corruption, Source
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.train.distributed import find_device
from bayesmooth.train.evaluate import Forecast, Splits, evaluate, open_new, prepare, probabilities, statistics_batches
from bayesmooth.train.loop import Checkpoint, Loop
from bayesmooth.train.networks import make_model
from bayesmooth.train.recipe import Recipe
from bayesmooth.train.recipe_files import recipe_text

RECIPE, STATUS, NOISE, DATA = "recipe.toml", "run.json", "noise.json", "data.json"
METRICS, REPORT, POSTERIOR = "metrics.jsonl", "report.json", "posterior.safetensors"
LAST, BEST, MODEL, LOCK = "last.pt", "best.pt", "model.pt", "lock"
PACKAGES = ("bayesmooth", "torch", "numpy", "safetensors", "scikit-learn", "pandas")

Which = Literal["last", "best"]
Split = Literal["train", "validation", "test"]


@dataclass(eq=False)
class Run:
    """One directory: recipe, metrics, checkpoints, posterior, report."""

    path: Path
    recipe: Recipe

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run's directory."""
        path = Path(path)
        if not (path / RECIPE).is_file():
            raise InputError(f"{path}: not a run (no {RECIPE} in it); `bayesmooth train` makes one")
        if not recipe_text(path / RECIPE).strip():
            raise InputError(f"{path / RECIPE}: is empty; put it back, or delete the run")
        return cls(path, Recipe.load(path / RECIPE))

    @contextmanager
    def hold(self, patience: float) -> Iterator[None]:
        """Make the directory, with the recipe in it, and keep it for this process alone.

        A directory that holds something else is not touched, and one with another recipe is an error that says what
        differs.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for file in [] if (self.path / RECIPE).is_file() else self.path.iterdir():
                # Another process may start the same run at this moment.
                ours = file.name == LOCK or file.suffix == ".tmp"
                if not ours and not (self.path / RECIPE).is_file():
                    raise InputError(f"{self.path}: holds {file.name!r} and is not a run; choose another directory")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be made: {error.strerror}; choose another directory") from None
        try:
            with self.lock.acquire(timeout=patience):
                self.start()  # nothing is written before it is held
                yield
        except Timeout:
            raise InputError(
                f"{self.path}: another process is at work in it; wait for it, stop it, or choose another directory"
            ) from None

    def start(self) -> None:
        """Write the recipe, or find the same one there."""
        if (self.path / RECIPE).is_file():
            if recipe_text(self.path / RECIPE) == self.recipe.to_toml():
                return
            before = Run.open(self.path)
            if before.status != "failed" or (self.path / DATA).exists():
                before.must_be(self.recipe)
                return
        # It is new, or was refused before it began.
        files.write_atomically(self.path / RECIPE, self.recipe.to_toml())

    def must_be(self, recipe: Recipe, whose: str = "the run's") -> None:
        """Refuse to go on under another recipe."""
        if changes := self.recipe.changes(recipe):
            raise InputError(
                f"{self.path}: {whose} recipe differs: {'; '.join(changes)}; go back to it, or choose another directory"
            )

    @property
    def lock(self) -> FileLock:
        """Held by the process that trains; the system releases it when that process ends, however it ends."""
        return FileLock(self.path / LOCK, thread_local=False)

    def is_locked(self) -> bool:
        """Whether a living process trains here."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with self.lock.acquire(timeout=0):
                return False
        except (Timeout, PermissionError):
            return True

    @property
    def status(self) -> str:
        """new, running, finished, interrupted, diverged or failed; "killed" if its process could not say how it ended.

        "damaged" is a run whose `run.json` cannot be read; training goes on from its checkpoint.
        """
        if not (self.path / STATUS).exists():
            return "new"
        try:
            status = str(files.read_json(self.path / STATUS)["status"])
        except (InputError, KeyError):
            return "damaged"
        return "killed" if status == "running" and not self.is_locked() else status

    def set_status(self, status: str, message: str = "", **facts: Any) -> None:
        """Write `run.json`; `facts` are what else it says."""
        content: dict[str, Any] = {"status": status, "hash": self.recipe.hash}
        content |= {"seed": self.recipe.train.seed, **facts}
        files.write_json(self.path / STATUS, content | ({"message": message} if message else {}))

    def go_on(self, splits: Splits, records: list[dict[str, Any]]) -> None:
        """Write down what the run is trained on; figures after its checkpoint, and an earlier end, are taken back."""
        if not (self.path / DATA).exists():
            if splits.corruption is not None:
                splits.corruption.save(self.path / NOISE)
            files.write_json(self.path / DATA, splits.facts())
        if (self.path / METRICS).exists():
            lines = "".join(f"{json.dumps(record)}\n" for record in records)
            files.write_atomically(self.path / METRICS, lines)
        for name in (REPORT, POSTERIOR, MODEL):
            (self.path / name).unlink(missing_ok=True)

    def write_end(self, loop: Loop) -> None:
        """Write the weights and the report; written again, they are the same."""
        posterior, weights = loop.posterior(), loop.model.state_dict()
        if posterior is not None:
            files.replace_with(self.path / POSTERIOR, posterior.save)
            # Its mean are the weights: only what it does not name is kept beside it.
            weights = {k: v for k, v in weights.items() if k not in posterior.mean}
        state = {"recipe": self.recipe.to_dict(), "model": weights, "loss": loop.loss.state_dict()}
        save_checkpoint(self.path / MODEL, state)
        end = {"best_epoch": loop.best_epoch}
        files.write_json(self.path / REPORT, {"title": self.recipe.title, **loop.records[-1], **end})

    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        return files.records(self.path / METRICS)

    def report(self) -> dict[str, Any]:
        """The final figures."""
        if not (self.path / REPORT).exists():
            raise InputError(f"{self.path}: not finished ({self.status}); `bayesmooth resume {self.path}` goes on")
        return files.read_json(self.path / REPORT)

    def seconds(self) -> float:
        """Time spent in training steps."""
        if not (self.path / STATUS).exists():
            return 0.0
        return float(files.read_json(self.path / STATUS).get("seconds", 0.0))

    def splits(self) -> Splits:
        """The data as the run saw it; data that have changed since are refused."""
        splits = prepare(self.recipe)
        if (self.path / DATA).exists():
            before, now = self.data(), json.loads(json.dumps(splits.facts()))
            if changed := [key for key in now if before.get(key) != now[key]]:
                differences = "; ".join(f"{key}: {before.get(key)} → {now[key]}" for key in changed)
                raise InputError(f"{self.path}: its data have changed: {differences}; bring back what it began with")
        return splits

    def examples(self, split: Split = "train") -> Source:
        """One split of it; `train` and `validation` have the noisy labels, and the clean ones beside them."""
        found: Source | None = getattr(self.splits(), split)
        if found is None:
            raise InputError(f"{self.path}: this run has no {split} split; see its {RECIPE}")
        return found

    def data(self) -> dict[str, Any]:
        """What the run wrote down about its data: the names of the classes, the shape of an input."""
        facts = files.read_json(self.path / DATA)
        if not {"class_names", "input_shape"} <= facts.keys():
            raise InputError(
                f"{self.path / DATA}: has no class_names and input_shape; delete it, and "
                f"`bayesmooth resume {self.path}` makes it again"
            )
        return facts

    def corruption(self) -> Corruption | None:
        """Which labels were made wrong; None where the run left them alone."""
        path = self.path / NOISE
        return Corruption.load(path) if path.exists() else None

    def model(self, which: Which = "last", device: str | None = "cpu") -> nn.Module:
        """The trained network, in eval mode, on a device; None: a GPU if there is one."""
        saved, data = self.checkpoint(which), self.data()
        facts = {"num_classes": len(data["class_names"]), "input_shape": data["input_shape"]}
        model = make_model(self.recipe, pretrained=False, **facts)
        weights = saved["model"]
        if which == "last" and (self.path / POSTERIOR).exists():
            weights = {**self.posterior().mean, **weights}
        model.load_state_dict(weights)
        return model.eval().to(find_device(device))

    def evaluate(self, which: Which = "last", *, samples: int = 0, device: str | None = None) -> dict[str, float]:
        """The figures of a checkpoint, measured again; those of the last one also averaged over the posterior."""
        model, splits = self.model(which, device), self.splits()
        how: dict[str, Any] = {"batchnorm": statistics_batches(self.recipe, splits, model), "ood": True}
        record = evaluate(self.recipe, splits, model, **how)
        if which == "last" and (self.path / POSTERIOR).exists():
            how |= {"posterior": self.posterior(), "samples": samples}
            record |= evaluate(self.recipe, splits, model, **how)
        return record

    def audit(self, *, device: str | None = None, **how: Any) -> Audit:
        """The audit of its training labels; `how` goes to `bayesmooth.audit_network`."""
        model = self.model(device=device)
        return audit_network(model, self.posterior(), self.examples("train"), **how)

    def predict(self, given: Any, *, samples: int = 0, device: str | None = None) -> Forecast:
        """The classes of new examples: a path, a data frame, a `Source`; they are read as the training data were.

        At the mean of the weights, and averaged over `samples` draws (0: the recipe's) of the posterior, if there is
        one.
        """
        examples = open_new(given, self.recipe, self.data())
        model, settings = self.model(device=device), self.recipe.evaluate
        how: dict[str, Any] = {"batch_size": settings.batch_size}
        if any(isinstance(part, _BatchNorm) for part in model.modules()):
            how["batchnorm"] = statistics_batches(self.recipe, self.splits(), model)
        mean, averaged = probabilities(model, examples, **how), None
        if (self.path / POSTERIOR).exists():
            how |= {"samples": samples or settings.samples, "seed": self.recipe.train.seed}
            averaged = probabilities(model, examples, posterior=self.posterior(), **how)
        return Forecast(examples, mean, averaged)

    def checkpoint(self, which: Which = "last") -> Checkpoint:
        """The last checkpoint, or that of the epoch with the best accuracy on the validation split."""
        last = MODEL if (self.path / MODEL).exists() else LAST
        path = self.path / (last if which == "last" else BEST)
        if not path.exists():
            raise InputError(f"{self.path}: has no checkpoint yet; `bayesmooth resume {self.path}` goes on")
        try:
            saved: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path}: not a checkpoint ({reason}); put it back, or delete the run and train again"
            ) from None
        self.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
        return saved

    def posterior(self) -> Posterior:
        """The Gaussian over the weights at the end of the run."""
        path = self.path / POSTERIOR
        if not path.exists():
            raise InputError(
                f"{self.path}: no {POSTERIOR}: the run is not finished, or its optimizer "
                f"({self.recipe.optimizer.name}) has none; ivon and bsam have one"
            )
        return Posterior.load(path)


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Put `state` in the place of the checkpoint before it, in one move."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    files.write_atomically(path, buffer.getvalue())


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Where a run happens: what another person needs to know to get the same bits."""
    cpu = platform.processor() or "cpu"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {p: found[0].version for p in PACKAGES if (found := [*distributions(name=p)])},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "process": os.getpid(),
        "command": sys.argv,
    }
