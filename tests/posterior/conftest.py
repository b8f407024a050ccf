"""A small model, and a Gaussian around the weights of any."""

import pytest
import torch
from torch import nn

from bayesmooth.posterior import Posterior


def make_gaussian(model, std=0.1):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


@pytest.fixture
def gaussian():
    return make_gaussian


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)
