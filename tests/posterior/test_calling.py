"""Any model on any batch."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.posterior import calling


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
    with pytest.raises(
        InputError, match=r"returned a tuple: must be logits, or an object .* \.logits"
    ):
        gaussian(tuples).predict(tuples, x, 4)
