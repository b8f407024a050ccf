"""BatchNorm's statistics are those of the weights that predict."""

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.optim import IVON
from bayesmooth.posterior import batchnorm, calling, recompute_batchnorm


def batchnorm_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_prediction_keeps_mode_statistics_and_gradients_as_they_were(gaussian):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    net[2].eval()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    averaged = gaussian(net).predict(net, x, 4, batchnorm=[x])
    assert not averaged.requires_grad
    assert net.training
    assert not net[2].training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(averaged, gaussian(net).predict(net, x, 4, batchnorm=[x]))  # dropout is off


def test_statistics_recomputed_at_the_mean_are_those_of_the_mean():
    """Under samples the running variance holds the noise too; recomputed it is the data's own."""
    net = batchnorm_network()
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    optimizer = IVON(net.parameters(), 0.0, 10, hess_init=0.5, seed=0)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(50):
        optimizer.step(closure)
    truth = net[0](x).var(0).detach()
    assert (net[1].running_var / truth).mean() > 1.5
    recompute_batchnorm(net, [x])
    assert torch.allclose(net[1].running_var, truth, rtol=1e-4)


def test_each_draw_can_have_its_own_statistics(gaussian):
    net = batchnorm_network()
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    posterior, by_hand = gaussian(net, 0.3), []
    for index in range(4):
        with posterior.sample(net, index), torch.no_grad():
            recompute_batchnorm(net, [x])
            by_hand.append(net.eval()(x).softmax(-1))
    own = posterior.predict(net, x, 4, antithetic=False, batchnorm=[x])
    assert torch.allclose(own, torch.stack(by_hand).mean(0), atol=1e-6)
    assert not torch.allclose(own, posterior.predict(net, x, 4, antithetic=False), atol=1e-2)


def test_batches_for_batchnorm_that_would_run_out_are_refused(gaussian):
    net, x = batchnorm_network(), torch.zeros(5, 4)
    with pytest.raises(InputError, match="a generator is empty after the first draw; give a list"):
        gaussian(net).predict(net, x, 4, batchnorm=(part for part in [x]))
    with pytest.raises(InputError, match="no batches"):
        gaussian(net).predict(net, [], 4)


def test_statistics_are_computed_once_per_draw_however_many_chunks(monkeypatch, gaussian):
    net, x = batchnorm_network(), torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    q, computed, real = gaussian(net, 0.3), [], recompute_batchnorm
    whole = q.predict(net, x, 4, batchnorm=[x])
    monkeypatch.setattr(calling, "CHUNK_BYTES", 1)
    monkeypatch.setattr(
        batchnorm, "recompute_batchnorm", lambda *given: [computed.append(1), real(*given)]
    )
    torch.testing.assert_close(q.predict(net, x.split(16), 4, batchnorm=[x]), whole)
    assert len(computed) == 4


def test_statistics_that_cannot_be_recomputed_stay_what_they_were():
    net = batchnorm_network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(InputError, match="no batch for BatchNorm"):
        recompute_batchnorm(net, [])
    with pytest.raises(RuntimeError):
        recompute_batchnorm(net, [torch.zeros(5, 4), torch.zeros(5, 3)])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net[1].momentum == 0.1
