import pytest
import torch
from torch.utils._pytree import tree_flatten

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
        for file in ("metrics.jsonl", "report.json", "recipe.toml"):
            assert (one.path / file).read_bytes() == (other.path / file).read_bytes(), file
        assert (one.path / "posterior.safetensors").exists() == (other.path / "posterior.safetensors").exists()
        if (one.path / "posterior.safetensors").exists():
            for kind in ("mean", "std"):
                ours, theirs = (getattr(run.posterior(), kind) for run in (one, other))
                assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
        (ours, shape), (theirs, other_shape) = (tree_flatten(run.checkpoint()) for run in (one, other))
        assert shape == other_shape
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

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
