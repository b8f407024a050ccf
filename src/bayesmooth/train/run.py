"""A run is a directory that can be read, or is reported as damaged, whatever happened to the process that made it.

Checkpoints carry their digest, and the one before the last is kept beside it. A finished run has a file of checksums
that covers all the others, in the format of `sha256sum`; whoever reads a file of it checks that file first.
"""

import hashlib
import io
import json
import os
import pickle
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import files
from bayesmooth.audit import Audit, audit
from bayesmooth.data import Corruption, Examples
from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior
from bayesmooth.train.evaluate import Forecast, evaluate, probabilities, statistics_batches
from bayesmooth.train.loop import Checkpoint, make_model
from bayesmooth.train.recipe import Recipe, recipe_text
from bayesmooth.train.source import open_new
from bayesmooth.train.splits import Splits, prepare

RECIPE, STATUS, NOISE, ENVIRONMENT = "recipe.toml", "run.json", "noise.json", "environment.json"
METRICS, TIMING, REPORT = "metrics.jsonl", "timing.jsonl", "report.json"
CHECKPOINTS, POSTERIOR, DATA = "checkpoints", "posterior.safetensors", "data.json"
LAST, BEST = f"{CHECKPOINTS}/last.pt", f"{CHECKPOINTS}/best.pt"
CHECKSUMS = "SHA256SUMS"

FILES = (RECIPE, STATUS, NOISE, ENVIRONMENT, DATA, METRICS, TIMING, REPORT, POSTERIOR, LAST, BEST)
BIG = (".pt", ".safetensors")  # checked when they are read; the others whenever the status is read
FOR_GOOD = (METRICS, TIMING, BEST)  # only training from the start would make these again
PACKAGES = ("bayesmooth", "torch", "numpy", "safetensors", "scikit-learn", "pandas")

Which = Literal["last", "best"]
Split = Literal["train", "validation", "test"]


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
        """Read a run's directory; a recipe that was edited after the run is refused."""
        path = Path(path)
        if not (path / RECIPE).is_file():
            raise InputError(f"{path}: not a run (no {RECIPE} in it); `bayesmooth train` makes one")
        if not recipe_text(path / RECIPE).strip():
            raise InputError(f"{path / RECIPE}: is empty; put it back, or delete the run")
        run = cls(path, Recipe.load(path / RECIPE))
        if run.damaged(RECIPE):
            run.checkpoint()  # it knows what the run was trained with, and refuses anything else
        return run

    @classmethod
    def start(cls, path: str | Path, recipe: Recipe) -> Self:
        """Make the directory, or find the same recipe in it; a different one is an error that says what differs."""
        path = Path(path)
        make_directory(path)
        if (path / RECIPE).is_file():
            run = cls.open(path)
            if run.status != "failed" or any((path / name).exists() for name in (DATA, METRICS)):
                run.must_be(recipe)
                return run
        # It is new, or was refused before it began.
        files.write_atomically(path / RECIPE, recipe.to_toml())
        return cls(path, recipe)

    def must_be(self, recipe: Recipe, whose: str = "the run's") -> None:
        """Refuse to go on under another recipe."""
        if changes := self.recipe.changes(recipe):
            raise InputError(
                f"{self.path}: {whose} recipe differs: {'; '.join(changes)}; go back to it, or choose another directory"
            )

    @property
    def status(self) -> str:
        """finished, running, interrupted, diverged or failed; "killed" if its process ended without writing its status.

        "damaged" is a run whose `run.json` cannot be read, or that finished and whose files have changed since.
        """
        if not (self.path / STATUS).exists():
            return "new"
        try:
            status: str = files.read_json(self.path / STATUS)["status"]
            if status == "finished":
                files.read_json(self.path / REPORT)
                small = {name for name in self.checksums() if not name.endswith(BIG)}
                if self.damaged(*small - {RECIPE}):  # `open` has compared what the recipe says
                    return "damaged"
        except (InputError, KeyError, TypeError):
            return "damaged"
        return "killed" if status == "running" and not files.is_locked(self.path) else status

    def set_status(self, status: str, message: str = "") -> None:
        """Write `run.json`."""
        content = {"status": status, "hash": self.recipe.hash, "seed": self.recipe.train.seed}
        files.write_json(self.path / STATUS, content | ({"message": message} if message else {}))

    def checksums(self) -> dict[str, str]:
        """The SHA-256 of every file, as the finished run wrote them down; empty before."""
        path = self.path / CHECKSUMS
        if not path.exists():
            return {}
        lines = path.read_text("utf-8", errors="replace").splitlines()
        pairs = [line.split("  ") for line in lines]
        if not lines or not all(len(pair) == 2 and pair[1] in FILES for pair in pairs):
            raise InputError(f"{path}: damaged; delete it to read the run without checks")
        return {name: digest for digest, name in pairs}

    def write_checksums(self) -> None:
        """Write down what every file of the run holds; `sha256sum -c SHA256SUMS` in its directory agrees."""
        lines = [f"{digest}  {name}\n" for name in FILES if (digest := digest_of(self.path / name))]
        files.write_atomically(self.path / CHECKSUMS, "".join(lines))

    def damaged(self, *names: str) -> list[str]:
        """Those of the files (default: of all) that are not what the finished run wrote."""
        known = self.checksums()
        chosen = [name for name in known if not names or name in names]
        return [name for name in chosen if digest_of(self.path / name) != known[name]]

    def checked(self, name: str) -> Path:
        """The path of one of the run's files, unless that was damaged since the run finished."""
        if self.damaged(name):
            raise InputError(
                f"{self.path / name}: was changed after the run (see {CHECKSUMS}); {self._way_out(name)}"
            )
        return self.path / name

    def check_repairable(self) -> None:
        """Refuse to go on where a file is damaged that cannot be made again."""
        for name in FOR_GOOD:
            self.checked(name)

    def record_origin(self, splits: Splits, device: torch.device) -> None:
        """Write what the run is made of, and where; a run that goes on must find the same data."""
        here, facts = environment(device), splits.facts()
        before = _read_again(self.path / DATA, facts)
        if changed := [key for key in facts if before.get(key) != facts[key]]:
            differences = "; ".join(f"{key}: {before.get(key)} → {facts[key]}" for key in changed)
            raise InputError(
                f"{self.path}: its data have changed: {differences}; bring back what it began with"
            )
        if splits.corruption is not None:
            files.replace_with(self.path / NOISE, splits.corruption.save)
        before = _read_again(self.path / ENVIRONMENT, here)
        for key in ("packages", "device", "threads", "processes"):
            if (then := before.get(key)) != (now := here[key]):
                print(f"{key}: {then} before, {now} now; the last bits may differ", file=sys.stderr)

    def add_epoch(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        """Add the figures of an epoch, and how long it took."""
        files.append_line(self.path / METRICS, json.dumps(record))
        files.append_line(self.path / TIMING, json.dumps({"epoch": record["epoch"], **seconds}))

    def cut_back(self, epoch: int) -> None:
        """Take back the figures after an epoch, and an earlier end of the run: no one may take it for the new one."""
        files.keep_lines(self.path / METRICS, epoch)
        for name in (CHECKSUMS, REPORT, POSTERIOR):
            (self.path / name).unlink(missing_ok=True)
        self.metrics()  # the report will need them: damage is an error now, not after the training

    def write_end(self, posterior: Posterior | None, best_epoch: int) -> None:
        """Write the posterior and the report; written again, they are the same."""
        if posterior is not None:
            files.replace_with(self.path / POSTERIOR, posterior.save)
        report = {"title": self.recipe.title, **self.metrics()[-1], "best_epoch": best_epoch}
        files.write_json(self.path / REPORT, report)

    def _way_out(self, name: str) -> str:
        if name in FOR_GOOD:
            return "put it back, or delete the run and train it again"
        return f"`bayesmooth resume {self.path}` makes it again"

    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        return files.records(self.checked(METRICS))

    def report(self) -> dict[str, Any]:
        """The final figures."""
        if not (self.path / REPORT).exists():
            raise InputError(
                f"{self.path}: not finished ({self.status}); `bayesmooth resume {self.path}` goes on"
            )
        path = self.checked(REPORT)
        try:
            return files.read_json(path)
        except InputError as error:
            raise InputError(f"{error}; `bayesmooth resume {self.path}` writes it again") from None

    def seconds(self) -> float:
        """Time spent in training steps, interrupted epochs left out."""
        lines = files.records(self.checked(TIMING))
        epochs = {line["epoch"]: line["train_seconds"] for line in lines}  # a crash may repeat one
        return sum(map(float, epochs.values()))

    def splits(self, data_dir: str | Path | None = None) -> Splits:
        """The data as the run saw it."""
        return prepare(self.recipe, data_dir)

    def examples(self, split: Split = "train", data_dir: str | Path | None = None) -> Examples:
        """One split of it; `train` and `validation` have the noisy labels, and the clean ones beside them."""
        found: Examples | None = getattr(self.splits(data_dir), split)
        if found is None:
            raise InputError(f"{self.path}: this run has no {split} split; see its {RECIPE}")
        return found

    def data(self) -> dict[str, Any]:
        """What the run wrote down about its data: the names of the classes, the shape of an input."""
        facts = files.read_json(self.checked(DATA))
        if not {"class_names", "input_shape"} <= facts.keys():
            raise InputError(
                f"{self.path / DATA}: has no class_names and input_shape; {self._way_out(DATA)}"
            )
        return facts

    def corruption(self) -> Corruption | None:
        """Which labels were made wrong; None where the run left them alone."""
        path = self.checked(NOISE)
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
        examples = self.examples("train", data_dir)
        return audit(self.model(), self.posterior(), examples, **how)

    def predict(
        self, given: Any, *, samples: int = 0, data_dir: str | Path | None = None
    ) -> Forecast:
        """The classes of new examples: a path, a data frame, an `Examples`; they are read as the training data were.

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
        if which == "best":
            return load_checkpoint(self.checked(BEST))
        saved, wrong = load_last(self.path / CHECKPOINTS)
        if wrong:
            raise InputError(f"{wrong[0]}; {self._way_out(LAST)}")
        if saved is None:
            raise InputError(
                f"{self.path}: has no checkpoint yet; `bayesmooth resume {self.path}` goes on"
            )
        self.must_be(Recipe.from_dict(saved["recipe"]), "the checkpoint's")
        self.checked(LAST)
        return saved

    def posterior(self) -> Posterior:
        """The Gaussian over the weights at the end of the run."""
        path = self.checked(POSTERIOR)
        if not path.exists():
            raise InputError(
                f"{self.path}: no {POSTERIOR}: the run is not finished, or its optimizer "
                f"({self.recipe.optimizer.name}) has none; ivon and bsam have one"
            )
        return Posterior.load(path)


def _read_again(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """What the file said before; where there is nothing, or nothing that can be read, `content` is written."""
    if path.exists():
        try:
            return files.read_json(path)
        except InputError:
            print(f"{path}: was damaged, and is written again", file=sys.stderr)
    files.write_json(path, content)
    return content


def make_directory(path: Path) -> None:
    """Make the directory of a run; one that holds something else is not touched.

    Two processes may do this at once, so what either makes before it has the lock counts as part of a run.
    """
    own = ("lock", CHECKPOINTS)
    if path.is_dir() and not (path / RECIPE).is_file():
        for file in path.iterdir():
            if file.name not in own and file.suffix != ".tmp" and not (path / RECIPE).is_file():
                raise InputError(
                    f"{path}: holds {file.name!r} and is not a run; choose another directory"
                )
    try:
        (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from None


def digest_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits; empty where there is no file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


DIGEST = hashlib.sha256().digest_size


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Write `state`, with the SHA-256 of it as the last 32 bytes; `torch.load` does not mind those."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    files.write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote; a file that was cut or changed is an `InputError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    body, digest = content[:-DIGEST], content[-DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise InputError(f"{path}: damaged ({len(content)} bytes, the digest does not match)")
    try:
        state: Checkpoint = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not a checkpoint: {error}") from None
    return state


def save_last(directory: Path, state: Checkpoint) -> None:
    """Make `state` the last checkpoint, and the one that was last the previous."""
    save_checkpoint(directory / "next.pt", state)
    if (directory / "last.pt").exists():
        os.replace(directory / "last.pt", directory / "previous.pt")
    os.replace(directory / "next.pt", directory / "last.pt")


def load_last(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint (None where none was written yet), and what was wrong with those passed over."""
    wrong: list[str] = []
    # `next.pt` is whole: it stands alone only when a crash came between the two renames of `save_last`.
    found = [directory / f"{name}.pt" for name in ("next", "last", "previous")]
    for path in filter(Path.exists, found):
        try:
            return load_checkpoint(path), wrong
        except InputError as damage:
            wrong.append(str(damage))
    if wrong:
        raise InputError(
            f"{directory}: no whole checkpoint is left: {'; '.join(wrong)}; start again"
        )
    return None, wrong


def environment(device: torch.device) -> dict[str, Any]:
    """Where a run happens: what another person needs to know to get the same bits."""
    cpu = platform.processor() or "cpu"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {p: found[0].version for p in PACKAGES if (found := [*distributions(name=p)])},
        "torch_build": torch.__config__.show().strip().splitlines(),
        "git": _git_commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv,
    }


def _git_commit() -> str | None:
    """The commit of the source tree, with `+` where it was changed; None for an installed package."""
    source = Path(__file__).resolve().parents[1]
    if "site-packages" in source.parts:
        return None  # a repository around it would be another project's
    command = ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            [*command, "--dirty=+"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
