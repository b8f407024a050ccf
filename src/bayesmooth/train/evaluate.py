"""The splits of a run and new examples like them, the predictions of a model on these, and their quality.

Predictions are made at the mean of the weights, and averaged over samples of the posterior.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth import metrics
from bayesmooth.audit.table import write_csv
from bayesmooth.calling import statistics_kept
from bayesmooth.data import Corruption, Source, batches, corrupt, label_hash, load, split
from bayesmooth.data.draws import read_ahead
from bayesmooth.data.features import Reading
from bayesmooth.data.opening import open_like
from bayesmooth.data.source import Kind
from bayesmooth.data.tables import guard
from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically
from bayesmooth.fitting.predicted import find_contradicted
from bayesmooth.posterior import Posterior
from bayesmooth.train.recipe import NONE, Recipe, find_builder

SOURCE = "source"
READABLE = (SOURCE, "folder")  # files of the user's: there can be more alike
RESIDENT = 2**30  # bytes of a split that an accelerator keeps whole; CIFAR-10 has a seventh of it
WRONG_LIMIT = 5000  # the share that is memorised is then known to 1.4 % (two standard errors)
MEASURES = ("accuracy", "nll", "brier", "ece", "adaptive_ece")  # of the test set, in `metrics`


@dataclass(frozen=True)
class Splits:
    """The examples that a run trains on, chooses by and is tested on."""

    train: Source
    validation: Source | None  # its labels are as noisy as those of the training set
    test: Source | None
    corruption: Corruption | None

    def to(self, device: torch.device) -> "Splits":
        """With the inputs that memory holds, and an accelerator can, on the device: batches are cut there."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: replace(part, inputs=part.inputs.to(device))
            for name, part in vars(self).items()
            if isinstance(part, Source) and isinstance(part.inputs, Tensor) and part.inputs.nbytes <= RESIDENT
        }
        return replace(self, **moved)

    def facts(self) -> dict[str, Any]:
        """The facts about them in `data.json`."""
        train = self.train
        scaled = train if len(train.input_shape) == 1 else None  # a table's columns; a public set's are in its loader
        facts: dict[str, Any] = {
            "class_names": list(train.class_names),
            "input_shape": list(train.input_shape),
            "labels": label_hash(train)[:12],
            "sizes": {name: len(part) for name, part in vars(self).items() if isinstance(part, Source)},
            "mean": list(scaled.mean or ()) if scaled else [],
            "std": list(scaled.std or ()) if scaled else [],
            "reading": {k: v for k, v in asdict(train.reading).items() if v} if train.reading else {},
            "notes": [note.text for note in train.notes],
        }
        return {name: value for name, value in facts.items() if value}


def prepare(recipe: Recipe) -> Splits:
    """The recipe decides everything: `data.seed` draws the part and the one held back, `corruption.seed` the flips."""
    data, noise, settings = recipe.data, recipe.corruption, recipe.evaluate
    examples = load(data.name, "train", **data.options)
    examples = _take(examples, data.limit, "[data] limit", data.seed)
    corruption = validation = test = None
    if noise.name != NONE:
        seed = recipe.train.seed if noise.seed == "run" else noise.seed
        examples, corruption = corrupt(examples, noise.name, seed=seed, **noise.options)
    if data.validation:
        examples, validation = split(examples, data.validation, data.seed)
    if data.audit == "drop":
        rows = examples.batch(torch.arange(len(examples), device="cpu")).flatten(1)
        wrong = find_contradicted(rows, examples.labels.numbers, examples.num_classes)
        text = f"{int(wrong.sum()):,} of {len(examples):,} labels are not learned: the audit contradicts them"
        examples = examples.subset(~wrong).note(Kind.NOT_LEARNED, text)
    if settings.test:
        test = load(data.name, "test", **data.options)
        test = _take(test, settings.test_limit, "[evaluate] test_limit")
    return Splits(examples, validation, test, corruption)


def _take(examples: Source, count: int, setting: str, seed: int | None = None) -> Source:
    """So many examples (0: all), the first ones, or with a seed any."""
    if count > len(examples):
        raise InputError(f"{setting} = {count}: {examples.name} has {len(examples)}; 0 takes all")
    order = torch.arange(len(examples), device="cpu")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(examples), generator=generator, device="cpu")
    return examples.subset(order[:count].sort().values) if count else examples


def open_new(what: Any, recipe: Recipe, facts: dict[str, Any]) -> Source:
    """New inputs, read as the training inputs of a run were; `facts` are those of its `data.json`.

    No labels are needed and none are read: all have that of the first class.
    """
    if recipe.data.name not in READABLE:
        raise InputError(f"a run on {recipe.data.name}, which is no file of yours; Run.open(path).model() predicts")
    reading, shape = Reading(**facts.get("reading", {})), tuple(facts["input_shape"])
    options, names = recipe.data.options, tuple(facts["class_names"])
    pixels = None
    if len(shape) == 3:
        pixels = options.get("size", shape[1]), options.get("crop")
    source = open_like(what, reading, names, options.get("encoding"), options.get("id"), pixels=pixels)
    if source.input_shape != shape:
        raise InputError(f"{source.name}: inputs of shape {source.input_shape}; the run was trained on {shape}")
    mean, std = (tuple(facts[key]) if key in facts else None for key in ("mean", "std"))
    return replace(source, mean=mean, std=std)


@torch.no_grad()
def probabilities(
    model: nn.Module,
    examples: Source,
    batch_size: int = 256,
    *,
    posterior: Posterior | None = None,
    samples: int = 16,
    seed: int = 0,
    batchnorm: Sequence[Tensor] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Tensor:
    """(N, K) class probabilities, in the order of the examples.

    With a posterior they are averaged over its samples, else they are those of the weights as they stand. BatchNorm's
    statistics are computed from `batchnorm`, batches of training inputs, for the weights that predict; without it
    they are those that training left. `tick` is called after every batch, or with a posterior after every draw.
    """
    model.eval()
    device = next(model.parameters()).device
    # Of one call over all batches, each draw computes its BatchNorm statistics once.
    rows = (inputs for _, inputs, _ in read_ahead(batches(examples, batch_size), device))
    if posterior is not None:
        return posterior.predict(model, rows, samples, seed=seed, batchnorm=batchnorm, tick=tick).float().cpu()
    probs = []
    with statistics_kept(model, batchnorm) as use_statistics:
        use_statistics(None)
        for inputs in rows:
            probs.append(model(inputs).float().softmax(-1))
            tick()
    return torch.cat(probs).cpu()


def is_frozen(part: nn.Module) -> bool:
    """Whether a part has parameters, and none of them is trained."""
    own = list(part.parameters())
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def statistics_batches(recipe: Recipe, splits: Splits, model: nn.Module) -> list[Tensor] | None:
    """Training inputs from which BatchNorm's statistics are computed for the weights that predict.

    None where those of training are right: without BatchNorm, where it is frozen, and where no weights were sampled.
    """
    settings = recipe.evaluate
    sampled = hasattr(find_builder("optimizer", recipe.optimizer.name), "posterior")
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if not sampled or not settings.batchnorm or all(map(is_frozen, norms)):
        return None
    some = splits.train.subset(torch.arange(min(settings.batchnorm, len(splits.train)), device="cpu"))
    device, least = next(model.parameters()).device, 1 + any(isinstance(part, nn.BatchNorm1d) for part in norms)
    return [rows.to(device) for _, rows, _ in batches(some, settings.batch_size) if len(rows) >= least]


def evaluate(
    recipe: Recipe, splits: Splits, model: nn.Module, posterior: Posterior | None = None, **more: Any
) -> dict[str, float]:
    """The figures that a recipe asks for: at the weights as they stand, and averaged over a posterior.

    The validation split is scored against its noisy labels. `memorised` is the share of the examples known to be
    mislabelled on which the model repeats the wrong label. `more` goes to `probabilities`, before the recipe's.
    """
    own = {"samples": recipe.evaluate.samples, "seed": recipe.train.seed, "batch_size": recipe.evaluate.batch_size}
    more = own | more
    record: dict[str, float] = {}
    for name, prefix, drawn in [("test", "", None), ("averaged", "averaged.", posterior)]:
        if prefix and drawn is None:
            continue
        predict: Callable[[Source], Tensor] = partial(probabilities, model, posterior=drawn, **more)
        if (test := splits.test) is not None:
            probs, labels = predict(test), test.labels.numbers
            record |= {f"{name}.{key}": getattr(metrics, key)(probs, labels) for key in MEASURES}
        if (validation := splits.validation) is not None:
            probs, labels = predict(validation), validation.labels.numbers
            record[f"{prefix}validation.accuracy"] = metrics.accuracy(probs, labels)
            record[f"{prefix}validation.nll"] = metrics.nll(probs, labels)
        if (train := splits.train).clean is not None and drawn is None:
            wrong = train.subset((train.labels.numbers != train.clean).nonzero().flatten()[:WRONG_LIMIT])
            if len(wrong):
                record["memorised"] = metrics.accuracy(predict(wrong), wrong.labels.numbers)
    return record


@dataclass(frozen=True)
class Forecast:
    """The class probabilities (N, K) of new examples: at the mean of the weights, and averaged over the posterior."""

    examples: Source
    at_mean: Tensor
    averaged: Tensor | None

    def columns(self) -> dict[str, list[Any]]:
        """One row per example: the likeliest class and its probability, then those of all classes."""
        names = self.examples.class_names
        columns: dict[str, list[Any]] = {"id": list(self.examples.ids)}
        kinds = {"at_mean": self.at_mean} | ({} if self.averaged is None else {"averaged": self.averaged})
        for kind, rows in kinds.items():
            best, place = rows.max(1)
            columns[kind] = [names[k] for k in place.tolist()]
            columns[f"{kind}_probability"] = best.tolist()
        for kind, rows in kinds.items():
            columns |= {f"{kind}_{name}": rows[:, k].tolist() for k, name in enumerate(names)}
        return columns

    def save(self, path: str | Path) -> None:
        """Write them as CSV."""
        write_atomically(Path(path), write_csv({guard(name): column for name, column in self.columns().items()}))
