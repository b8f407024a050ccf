"""A small task that every optimizer test trains on."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.conftest import make_closure


def make_net(dtype=torch.float32, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def close_over(model, optimizer, x, y):
    def compute():
        logits = model(x.to(next(model.parameters()).dtype))
        return nn.functional.cross_entropy(logits if logits.dtype == x.dtype else logits.float(), y)

    return make_closure(optimizer, compute)


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 5, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return SimpleNamespace(x=x, y=y, net=make_net, closure=close_over)
