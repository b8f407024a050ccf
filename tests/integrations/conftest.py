"""A small task, and IVON on it by hand: what every framework must come to as well."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesmooth import IVON

SETTINGS = {"lr": 0.3, "ess": 40, "beta2": 0.9, "seed": 3}


def make_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def assert_same(one, other, atol=1e-6):
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=atol, rtol=0)


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 5, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return SimpleNamespace(x=x, y=y, net=make_net, settings=SETTINGS, assert_same=assert_same)


@pytest.fixture
def quiet():
    """Frameworks warn about workers, loggers and devices; what is tested here is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def by_hand(task):
    """Weights after steps of a plain loop, each on these batches, whose gradients are averaged."""

    def train(steps, *, clip=None, **settings):
        model = task.net()
        optimizer = IVON(model.parameters(), **SETTINGS | settings)
        for batches in steps:

            def closure(batches=batches):
                optimizer.zero_grad()
                for x, y in batches:
                    (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)

            optimizer.step(closure)
        return model

    return train
