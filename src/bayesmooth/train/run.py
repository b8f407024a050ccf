"""A run is a directory: its recipe, its figures, one checkpoint, its status; and when it is finished, a report.

The checkpoint is replaced in one move, and all that a run needs to go on is in it. A lock tells a run that is being
trained from one whose process was killed.
"""

import io
import json
import os
import pickle
import platform
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal, Self

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import files
from bayesmooth.audit import Audit, audit
from bayesmooth.data import Corruption, Source
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.train.evaluate import Forecast, evaluate, probabilities, statistics_batches
from bayesmooth.train.loop import Checkpoint, make_model
from bayesmooth.train.recipe import Recipe, recipe_text
from bayesmooth.train.source import open_new
from bayesmooth.train.splits import Splits, prepare

RECIPE, STATUS, NOISE, DATA = "recipe.toml", "run.json", "noise.json", "data.json"
METRICS, REPORT, POSTERIOR = "metrics.jsonl", "report.json", "posterior.safetensors"
LAST, BEST, LOCK = "last.pt", "best.pt", "lock"
PACKAGES = ("bayesmooth", "torch", "numpy", "safetensors", "scikit-learn", "pandas")

Which = Literal["last", "best"]
Split = Literal["train", "validation", "test"]


class Run:
    """One directory: recipe, metrics, checkpoints, posterior, report.

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
        if not recipe_text(path / RECIPE).strip():
            raise InputError(f"{path / RECIPE}: is empty; put it back, or delete the run")
        return cls(path, Recipe.load(path / RECIPE))

    @classmethod
    def start(cls, path: Path, recipe: Recipe) -> Self:
        """Write the recipe, or find the same one there; a different one is an error that says what differs."""
        run, text = cls(path, recipe), recipe.to_toml()
        if (path / RECIPE).is_file():
            if recipe_text(path / RECIPE) == text:
                return run
            before = cls.open(path)
            if before.status != "failed" or (path / DATA).exists():
                before.must_be(recipe)
                return run
        files.write_atomically(path / RECIPE, text)  # it is new, or was refused before it began
        return run

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

    def record_data(self, splits: Splits) -> None:
        """Write down what the run is trained on; whoever reads its data again must find the same."""
        if not (self.path / DATA).exists():
            files.write_json(self.path / DATA, splits.facts())
            if splits.corruption is not None:
                splits.corruption.save(self.path / NOISE)

    def check_data(self, splits: Splits) -> None:
        """Refuse other data than those that the run was trained on."""
        if not (self.path / DATA).exists():
            return
        before, now = self.data(), json.loads(json.dumps(splits.facts()))
        if changed := [key for key in now if before.get(key) != now[key]]:
            differences = "; ".join(f"{key}: {before.get(key)} → {now[key]}" for key in changed)
            raise InputError(
                f"{self.path}: its data have changed: {differences}; bring back what it began with"
            )

    def write_end(self, posterior: Posterior | None, best_epoch: int) -> None:
        """Write the posterior and the report; written again, they are the same."""
        if posterior is not None:
            files.replace_with(self.path / POSTERIOR, posterior.save)
        report = {"title": self.recipe.title, **self.metrics()[-1], "best_epoch": best_epoch}
        files.write_json(self.path / REPORT, report)

    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        return files.records(self.path / METRICS)

    def report(self) -> dict[str, Any]:
        """The final figures."""
        if not (self.path / REPORT).exists():
            raise InputError(
                f"{self.path}: not finished ({self.status}); `bayesmooth resume {self.path}` goes on"
            )
        return files.read_json(self.path / REPORT)

    def seconds(self) -> float:
        """Time spent in training steps."""
        if not (self.path / STATUS).exists():
            return 0.0
        return float(files.read_json(self.path / STATUS).get("seconds", 0.0))

    def splits(self, data_dir: str | Path | None = None) -> Splits:
        """The data as the run saw it; data that have changed since are refused."""
        splits = prepare(self.recipe, data_dir)
        self.check_data(splits)
        return splits

    def examples(self, split: Split = "train", data_dir: str | Path | None = None) -> Source:
        """One split of it; `train` and `validation` have the noisy labels, and the clean ones beside them."""
        found: Source | None = getattr(self.splits(data_dir), split)
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

    def model(self, which: Which = "last") -> nn.Module:
        """The trained network, in eval mode, on the CPU."""
        saved, data = self.checkpoint(which), self.data()
        facts = {"num_classes": len(data["class_names"]), "input_shape": data["input_shape"]}
        model = make_model(self.recipe, pretrained=False, **facts)
        model.load_state_dict(saved["model"])
        return model.eval()

    def statistics(self, splits: Splits, model: nn.Module) -> list[Tensor] | None:
        """Training inputs for BatchNorm's statistics, as the run used them; see `statistics_batches`."""
        return statistics_batches(self.recipe, splits, model, torch.device("cpu"))

    def evaluate(
        self, which: Which = "last", *, samples: int = 0, data_dir: str | Path | None = None
    ) -> dict[str, float]:
        """The figures of a checkpoint, measured again; those of the last one also averaged over the posterior."""
        model, splits = self.model(which), self.splits(data_dir)
        how: dict[str, Any] = {"batchnorm": self.statistics(splits, model), "ood": True}
        record = evaluate(self.recipe, splits, model, **how)
        if which == "last" and (self.path / POSTERIOR).exists():
            how |= {"posterior": self.posterior(), "samples": samples}
            record |= evaluate(self.recipe, splits, model, **how)
        return record

    def audit(self, data_dir: str | Path | None = None, **how: Any) -> Audit:
        """The audit of its training labels; `how` goes to `bayesmooth.audit`."""
        model, posterior = self.model(), self.posterior()
        return audit(model, posterior, self.examples("train", data_dir), **how)

    def predict(
        self, given: Any, *, samples: int = 0, data_dir: str | Path | None = None
    ) -> Forecast:
        """The classes of new examples: a path, a data frame, a `Source`; they are read as the training data were.

        At the mean of the weights, and averaged over `samples` draws (0: the recipe's) of the posterior, if there is
        one.
        """
        examples = open_new(given, self.recipe, self.data())
        model, settings = self.model(), self.recipe.evaluate
        how: dict[str, Any] = {"batch_size": settings.batch_size}
        if any(isinstance(part, _BatchNorm) for part in model.modules()):
            how["batchnorm"] = self.statistics(self.splits(data_dir), model)
        mean, averaged = probabilities(model, examples, **how), None
        if (self.path / POSTERIOR).exists():
            how |= {"samples": samples or settings.samples, "seed": self.recipe.train.seed}
            averaged = probabilities(model, examples, posterior=self.posterior(), **how)
        return Forecast(examples, mean, averaged)

    def checkpoint(self, which: Which = "last") -> Checkpoint:
        """The last checkpoint, or that of the epoch with the best accuracy on the validation split."""
        path = self.path / (LAST if which == "last" else BEST)
        if not path.exists():
            raise InputError(
                f"{self.path}: has no checkpoint yet; `bayesmooth resume {self.path}` goes on"
            )
        saved = load_checkpoint(path)
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


def make_directory(path: Path) -> None:
    """Make the directory of a run; one that holds something else is not touched."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / RECIPE).is_file():
            for file in path.iterdir():
                # Another process may start the same run at this moment.
                if file.name != LOCK and file.suffix != ".tmp" and not (path / RECIPE).is_file():
                    raise InputError(
                        f"{path}: holds {file.name!r} and is not a run; choose another directory"
                    )
    except OSError as error:
        raise InputError(
            f"{path}: cannot be made: {error.strerror}; choose another directory"
        ) from None


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Put `state` in the place of the checkpoint before it, in one move."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    files.write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote."""
    try:
        state: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{path}: not a checkpoint ({reason}); put it back, or delete the run and train again"
        ) from None
    return state


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
