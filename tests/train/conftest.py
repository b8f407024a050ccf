import pytest
import torch

from bayesmooth.train import Recipe, prepare
from bayesmooth.train.loop import Loop

TINY = {
    "data": {"name": "digits", "limit": 120, "validation": 0.2},
    "corruption": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [16]},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "schedule": {"name": "cosine"},
    "train": {"epochs": 2, "batch_size": 20},
    "evaluate": {"samples": 2},
}


@pytest.fixture(scope="session")
def tiny():
    """Make a recipe of seconds on the digits: 96 examples, 5 batches per epoch; `section={…}` adds to it."""

    def make(**sections):
        tree = {name: dict(content) for name, content in TINY.items()}
        for name, content in sections.items():
            start = {} if "name" in content else tree.get(name, {})
            tree[name] = start | content
        return Recipe.from_dict(tree)

    return make


@pytest.fixture
def loop():
    """A recipe's loop, ready to take steps, without a directory."""

    def make(recipe):
        return Loop(recipe, prepare(recipe), torch.device("cpu"))

    return make


@pytest.fixture
def same_run():
    """Assert that two runs ended with the same bits: weights, optimizer, metrics, report, posterior."""

    def compare(one, other):
        for file in ("metrics.jsonl", "report.json", "noise.json", "recipe.toml"):
            assert (one.path / file).read_bytes() == (other.path / file).read_bytes(), file
        assert (one.path / "posterior.safetensors").exists() == (other.path / "posterior.safetensors").exists()
        if (one.path / "posterior.safetensors").exists():
            first, second = one.posterior(), other.posterior()
            equal(first.mean, second.mean, "mean")
            equal(first.std, second.std, "std")
        last = [run.checkpoint() for run in (one, other)]
        equal(*last, "last")
        equal(one.checkpoint("best"), other.checkpoint("best"), "best")

    def equal(one, other, where):
        assert type(one) is type(other), where
        if isinstance(one, dict):
            assert one.keys() == other.keys(), where
            for key in one:
                equal(one[key], other[key], f"{where}.{key}")
        elif isinstance(one, list | tuple):
            for i, (a, b) in enumerate(zip(one, other, strict=True)):
                equal(a, b, f"{where}[{i}]")
        elif isinstance(one, torch.Tensor):
            assert torch.equal(one, other), where
        else:
            assert one == other, where

    return compare


@pytest.fixture
def before_step(monkeypatch):
    """Do something before step number n (from 0) of the next run."""

    def arrange(number, action):
        real, calls = Loop.step, iter(range(10**6))

        def step(loop, batch):
            if next(calls) == number:
                action()
            real(loop, batch)

        monkeypatch.setattr(Loop, "step", step)

    return arrange
