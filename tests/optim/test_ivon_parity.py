"""Given the same noise, the trajectory is the public package's, to float64 rounding."""

from unittest import mock

import pytest
import torch
from torch import nn

from bayesmooth.optim import IVON
from bayesmooth.randomness import standard_normal

public = pytest.importorskip("ivon", reason="ivon-opt is installed for tests only")

OPTIONS = [
    {},
    {"mc_samples": 3},
    {"hess_approx": "gradsq"},
    {"hess_approx": "gradsq", "mc_samples": 2},
    {"clip_radius": 0.3},
    {"debias": False},
    {"rescale_lr": False},
    {"weight_decay": 0.0},
    {"beta1": 0.0},
    {"beta2": 1.0},
]


def by_hand(theirs, model, x, y, noise):
    """One sample of the public package, at the noise given."""
    with mock.patch.object(torch, "randn", return_value=noise):
        context = theirs.sampled_params(train=True)
        context.__enter__()
    theirs.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    context.__exit__(None, None, None)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fifty_steps_agree_with_the_public_package(task, options):
    x = task.x.double()
    ours, other = task.net(torch.float64), task.net(torch.float64)
    # 0.75 is exact in float32, to which that package rounds hess_init
    settings = {"lr": 0.1, "ess": 40, "hess_init": 0.75, "beta2": 0.95, "weight_decay": 1e-2} | options
    a, b = IVON(ours.parameters(), seed=3, **settings), public.IVON(other.parameters(), **settings)
    closure = task.closure(ours, a, x, task.y)
    for step in range(50):
        a.step(closure)
        for draw in range(options.get("mc_samples", 1)):
            noise = [
                standard_normal(p.detach(), seed=3, stream=i, step=step, draw=draw).flatten()
                for i, p in enumerate(other.parameters())
            ]
            by_hand(b, other, x, task.y, torch.cat(noise))
        b.step()
    for p, q in zip(ours.parameters(), other.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-11)
    hess = torch.cat([a.state[p]["hess"].flatten() for p in ours.parameters()])
    assert torch.allclose(hess, b.param_groups[0]["hess"], rtol=1e-9, atol=1e-11)
