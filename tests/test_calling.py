"""Any model on any batch, and BatchNorm's statistics at the weights that predict."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesmooth import calling
from bayesmooth.calling import recompute_batchnorm
from bayesmooth.errors import InputError
from bayesmooth.optim import IVON
from tests.conftest import make_closure


def test_batches_are_read_once_and_no_more_than_a_chunk_ahead(model, monkeypatch, gaussian):
    x, read, held = torch.zeros(2, 4), [], []
    monkeypatch.setattr(calling, "CHUNK_BYTES", 3 * x.nbytes)

    def batches():
        for number in range(8):
            read.append(number)
            yield x

    averaged = gaussian(model).predict(model, batches(), 2, tick=lambda: held.append(len(read)))
    assert averaged.shape == (16, 3)
    assert held == [3, 3, 6, 6, 8, 8]
    assert read == list(range(8))


class Wordy(nn.Module):
    """Calls like Hugging Face's: keywords in, an object out."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, features, scale=1.0):
        return SimpleNamespace(logits=self.inner(features * scale))


def test_dicts_go_in_and_objects_with_logits_come_out(model, gaussian):
    net, x = Wordy(model), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    plain = gaussian(model).predict(model, 2 * x, 4)
    batch = {"features": x, "scale": 2.0, "labels": torch.zeros(6)}
    assert torch.equal(gaussian(net).predict(net, batch, 4), plain)
    halves = [{"features": half, "scale": 2.0} for half in x.split(3)]
    torch.testing.assert_close(gaussian(net).predict(net, halves, 4), plain)


def test_a_loaders_batches_will_do_and_what_is_no_batch_is_named(model, gaussian):
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    q = gaussian(model)
    torch.testing.assert_close(q.predict(model, loader, 4), q.predict(model, x, 4))
    with pytest.raises(InputError, match="a batch is a str"):
        q.predict(model, ["x"], 4)
    tuples = nn.Sequential(nn.Linear(4, 3), nn.AdaptiveMaxPool1d(2, return_indices=True))
    with pytest.raises(InputError, match=r"returned a tuple: must be logits, or have them as \.logits"):
        gaussian(tuples).predict(tuples, x, 4)


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
    closure = make_closure(optimizer, lambda: net(x).square().mean())
    for _ in range(50):
        optimizer.step(closure)
    truth = net[0](x).var(0).detach()
    assert (net[1].running_var / truth).mean() > 1.5
    recompute_batchnorm(net, [x])
    assert torch.allclose(net[1].running_var, truth, rtol=1e-4)


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
    monkeypatch.setattr(calling, "recompute_batchnorm", lambda *given: [computed.append(1), real(*given)])
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
