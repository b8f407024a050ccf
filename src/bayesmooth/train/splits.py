"""From a recipe to examples: load, take a part, corrupt the labels, hold some back."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bayesmooth.data import Corruption, Source, corrupt, label_hash, load, split
from bayesmooth.errors import InputError
from bayesmooth.train.options import FILE, NONE
from bayesmooth.train.recipe import Recipe

WRONG_LIMIT = 5000  # the share that is memorised is then known to 1.4 % (two standard errors)


@dataclass(frozen=True)
class Splits:
    """What a run trains on, chooses by and is tested on."""

    train: Source
    validation: Source | None  # its labels are as noisy as those of the training set
    test: Source | None
    corruption: Corruption | None
    ood: Source | None = None  # another data set, to be distinguished from the test set

    @cached_property
    def wrong(self) -> Source | None:
        """Training examples whose label is known to be wrong: `WRONG_LIMIT` of them at most."""
        if self.train.clean is None:
            return None
        wrong = (self.train.labels.numbers != self.train.clean).nonzero().flatten()[:WRONG_LIMIT]
        return self.train.subset(wrong) if len(wrong) else None

    def facts(self) -> dict[str, Any]:
        """What `data.json` says about them."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        facts: dict[str, Any] = {
            "class_names": list(self.train.class_names),
            "input_shape": list(self.train.input_shape),
            "labels": label_hash(self.train)[:12],
            "summary": {name: repr(part) for name, part in parts.items() if part is not None},
        }
        if self.train.mean and self.train.std and len(self.train.input_shape) == 1:
            # The columns of a table, by its training rows; those of a public set are in its loader.
            facts |= {"mean": list(self.train.mean), "std": list(self.train.std)}
        if self.train.reading is not None:
            facts["reading"] = {k: v for k, v in asdict(self.train.reading).items() if v}
        notes = [note.text for note in self.train.notes]
        return facts | ({"notes": notes} if notes else {})


def prepare(recipe: Recipe, data_dir: str | Path | None = None) -> Splits:
    """The recipe decides everything: `data.seed` draws the part and what is held back, `corruption.seed` the flips."""
    data, noise, settings = recipe.data, recipe.corruption, recipe.evaluate
    examples = _take(_load(recipe, "train", data_dir), data.limit, "[data] limit", data.seed)
    corruption = validation = test = None
    if noise.name == FILE:
        corruption = Corruption.load(**noise.options)
        examples = corruption.apply(examples)
    elif noise.name != NONE:
        seed = recipe.train.seed if noise.seed == "run" else noise.seed
        examples, corruption = corrupt(examples, noise.name, seed=seed, **noise.options)
    if data.validation:
        examples, validation = split(examples, data.validation, data.seed)
    if settings.test:
        test = _load(recipe, "test", data_dir)
        test = _take(test, settings.test_limit, "[evaluate] test_limit")
    ood = load(settings.ood, "test", data_dir) if settings.ood else None
    return Splits(examples, validation, test, corruption, ood)


def _load(recipe: Recipe, split: str, data_dir: str | Path | None) -> Source:
    return load(recipe.data.name, split, data_dir, **recipe.data.options)


def _take(examples: Source, count: int, setting: str, seed: int | None = None) -> Source:
    """So many examples (0: all), the first ones, or with a seed any."""
    if count > len(examples):
        raise InputError(f"{setting} = {count}: {examples.name} has {len(examples)}; 0 takes all")
    order = torch.arange(len(examples), device="cpu")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(examples), generator=generator, device="cpu")
    return examples.subset(order[:count].sort().values) if count else examples
