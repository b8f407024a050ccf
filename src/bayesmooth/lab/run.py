"""A run is a directory. Whatever happened to the process that made it, this reads it."""

from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from bayesmooth.audit import Audit, audit
from bayesmooth.data import Corruption, Examples
from bayesmooth.errors import InputError
from bayesmooth.files import is_locked, read_json, records, write_atomically, write_json
from bayesmooth.lab import checkpoint
from bayesmooth.lab.evaluate import statistics_batches
from bayesmooth.lab.recipe import Recipe
from bayesmooth.lab.splits import Splits, prepare
from bayesmooth.lab.state import make
from bayesmooth.posterior import Posterior

RECIPE, STATUS, NOISE, ENVIRONMENT = "recipe.toml", "run.json", "noise.json", "environment.json"
METRICS, TIMING, REPORT = "metrics.jsonl", "timing.jsonl", "report.json"
CHECKPOINTS, BEST, POSTERIOR, DATA = "checkpoints", "best.pt", "posterior.safetensors", "data.json"


class Run:
    """One directory: recipe, metrics, checkpoints, posterior, environment, report.

    Attributes:
        path: the directory.
        recipe: the resolved recipe.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run's directory."""
        path = Path(path)
        if not (path / RECIPE).is_file():
            raise InputError(f"{path}: not a run (no {RECIPE} in it); `bayesmooth train` makes one")
        return cls(path, Recipe.load(path / RECIPE))

    @classmethod
    def start(cls, path: str | Path, recipe: Recipe) -> Self:
        """Make the directory, or find the same recipe in it; a different one is an error that says what differs."""
        path = Path(path)
        if (path / RECIPE).is_file():
            run = cls.open(path)
            if run.status != "failed" or any((path / name).exists() for name in (DATA, METRICS)):
                run.must_be(recipe)
                return run
            write_atomically(path / RECIPE, recipe.to_toml())  # it was refused before it began
            return cls(path, recipe)
        foreign = [
            file.name for file in path.glob("*") if file.name != "lock" and file.suffix != ".tmp"
        ]
        if foreign:
            raise InputError(
                f"{path}: holds {foreign[0]!r} and is not a run; choose another directory"
            )
        try:
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be made: {error.strerror}") from None
        write_atomically(path / RECIPE, recipe.to_toml())
        return cls(path, recipe)

    def must_be(self, recipe: Recipe, whose: str = "the run's") -> None:
        """Refuse to go on under another recipe."""
        if changes := self.recipe.changes(recipe):
            raise InputError(
                f"{self.path}: {whose} recipe differs: {'; '.join(changes)}; go back to it, or choose another directory"
            )

    @property
    def status(self) -> str:
        """finished, running, interrupted, diverged or failed; "killed" where a run ended without a word.

        "damaged" is a run whose `run.json`, or whose report though it finished, cannot be read: `resume` mends both.
        """
        if not (self.path / STATUS).exists():
            return "new"
        try:
            status: str = read_json(self.path / STATUS)["status"]
            if status == "finished":
                read_json(self.path / REPORT)
        except (InputError, KeyError, TypeError):
            return "damaged"
        return "killed" if status == "running" and not is_locked(self.path) else status

    def set_status(self, status: str, message: str = "") -> None:
        """Write `run.json`."""
        content = {"status": status, "hash": self.recipe.hash, "seed": self.recipe.train.seed}
        write_json(self.path / STATUS, content | ({"message": message} if message else {}))

    def metrics(self) -> list[dict[str, Any]]:
        """One record an epoch."""
        return records(self.path / METRICS)

    def report(self) -> dict[str, Any]:
        """The final figures."""
        if not (self.path / REPORT).exists():
            raise InputError(
                f"{self.path}: not finished ({self.status}); `bayesmooth resume {self.path}` goes on"
            )
        try:
            report: dict[str, Any] = read_json(self.path / REPORT)
        except InputError as error:
            raise InputError(f"{error}; `bayesmooth resume {self.path}` writes it again") from None
        return report

    def seconds(self) -> float:
        """Time spent in training steps, interrupted epochs left out."""
        # An epoch that a crash took back has two lines.
        epochs = {
            record["epoch"]: record["train_seconds"] for record in records(self.path / TIMING)
        }
        return sum(map(float, epochs.values()))

    def splits(self, data_dir: str | Path | None = None) -> Splits:
        """The data as the run saw it."""
        return prepare(self.recipe, data_dir)

    def examples(
        self,
        split: Literal["train", "validation", "test"] = "train",
        data_dir: str | Path | None = None,
    ) -> Examples:
        """One split of it; `train` and `validation` have the noisy labels, and the clean ones beside them."""
        found: Examples | None = getattr(self.splits(data_dir), split)
        if found is None:
            raise InputError(f"{self.path}: this run has no {split} split; see its {RECIPE}")
        return found

    def data(self) -> dict[str, Any]:
        """What the run knew of its data: the names of the classes, the shape of an input."""
        facts: dict[str, Any] = read_json(self.path / DATA)
        return facts

    def corruption(self) -> Corruption | None:
        """Which labels were made wrong; None where the run left them alone."""
        path = self.path / NOISE
        return Corruption.load(path) if path.exists() else None

    def model(self, which: Literal["last", "best"] = "last") -> nn.Module:
        """The trained network, in eval mode, on the CPU."""
        saved, data = self.checkpoint(which), self.data()
        facts = {"num_classes": len(data["class_names"]), "input_shape": data["input_shape"]}
        model: nn.Module = make(self.recipe, "model", **facts)
        model.load_state_dict(saved["model"])
        return model.eval()

    def statistics(self, splits: Splits) -> list[Tensor] | None:
        """Training inputs from which each draw of the posterior computes its BatchNorm statistics, as in training."""
        settings = self.recipe.evaluate
        if not settings.batchnorm:
            return None
        device = torch.device("cpu")
        return statistics_batches(splits.train, settings.batchnorm, settings.batch_size, device)

    def audit(self, data_dir: str | Path | None = None, **how: Any) -> Audit:
        """The audit of its training labels; `how` goes to `bayesmooth.audit`."""
        examples = self.examples("train", data_dir)
        return audit(self.model(), self.posterior(), examples, **how)

    def checkpoint(self, which: Literal["last", "best"] = "last") -> checkpoint.Checkpoint:
        """The last whole checkpoint, or that of the epoch with the best accuracy on the validation split."""
        if which == "best":
            return checkpoint.load(self.path / CHECKPOINTS / BEST)
        saved, _ = checkpoint.load_last(self.path / CHECKPOINTS)
        if saved is None:
            raise InputError(
                f"{self.path}: has no checkpoint yet; `bayesmooth resume {self.path}` goes on"
            )
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
