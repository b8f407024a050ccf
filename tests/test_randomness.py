"""Noise is a pure function of its name, and standard normal."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesmooth import _kernels, randomness
from bayesmooth.optim import IVON
from bayesmooth.randomness import standard_normal


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (0, (0x531C7E4F, 0x39491EE5, 0x2C855A92, 0x3D6ABF9A)),
        (0xFFFFFFFF, (0xC4189358, 0x1C9CC83A, 0xD5881C67, 0x6A0A89E0)),
    ],
)
def test_threefry_gives_the_published_known_answers(word, answer):
    assert _kernels.threefry((word,) * 4, (word,) * 4) == answer


def test_moments_and_tails_are_those_of_a_standard_normal():
    n = 4_000_000
    z = standard_normal(torch.empty(n), seed=5, stream=1)
    # each bound is 4.5 standard errors of the moment's own estimate
    assert abs(z.double().mean()) < 4.5 * n**-0.5
    assert abs(z.double().square().mean() - 1) < 4.5 * (2 / n) ** 0.5
    assert abs(z.double().pow(3).mean()) < 4.5 * (15 / n) ** 0.5
    assert abs(z.double().pow(4).mean() - 3) < 4.5 * (96 / n) ** 0.5
    for edge, tail in ((1.0, 0.317311), (3.0, 0.0026998), (4.5, 6.795e-6)):
        assert abs((z.abs() > edge).double().mean() - tail) < 4.5 * (tail / n) ** 0.5


def test_neighbours_and_their_squares_are_uncorrelated():
    z = standard_normal(torch.empty(1 << 20), seed=9, stream=0).double()
    for values in (z, z.square()):
        rows = values.view(-1, 64).T
        off = torch.corrcoef(rows) - torch.eye(64, dtype=torch.float64)
        assert off.abs().max() < 5.0 * rows.shape[1] ** -0.5


@given(n=st.integers(1, 5000), cut=st.integers(0, 5000), seed=st.integers(0, 2**63 - 1))
def test_a_shard_draws_its_slice_of_the_whole(n, cut, seed):
    cut = min(cut, n)
    whole = standard_normal(torch.empty(n), seed=seed, stream=3, step=7)
    slice_ = standard_normal(torch.empty(n - cut), seed=seed, stream=3, step=7, offset=cut)
    assert torch.equal(whole[cut:], slice_)


@pytest.mark.parametrize("other", [{"seed": 1}, {"stream": 1}, {"step": 1}, {"draw": 1}])
def test_every_part_of_the_name_changes_the_noise(other):
    name = {"seed": 0, "stream": 0, "step": 0, "draw": 0}
    one = standard_normal(torch.empty(1000), **name)
    two = standard_normal(torch.empty(1000), **(name | other))
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 0.15
    assert not (one == two).any()


def test_threads_do_not_change_the_noise(monkeypatch):
    like = torch.empty(randomness.PARALLEL_FROM * 3 + 17)
    alone = standard_normal(like, seed=0, stream=0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(alone, standard_normal(like, seed=0, stream=0))
    assert any(t.name.startswith("bayesmooth") for t in threading.enumerate())


def test_without_a_compiler_noise_is_still_named_and_sliceable(monkeypatch):
    monkeypatch.setattr(randomness, "KERNELS", False)
    whole = standard_normal(torch.empty(100_000), seed=0, stream=0)
    assert abs(whole.std() - 1) < 0.02
    part = standard_normal(torch.empty(99_990), seed=0, stream=0, offset=10)
    assert torch.equal(whole[10:], part)


def test_a_posterior_draws_nothing_that_training_or_evaluation_drew():
    """The same seed everywhere, as the lab's loop gives it: 8 draws of each kind, all uncorrelated."""
    model = nn.Linear(100, 50, bias=False)
    optimizer = IVON(model.parameters(), 0.0, 100, seed=4)
    mean, drawn = model.weight.detach().clone(), []
    for _ in range(8):
        for train in (True, False):
            with optimizer.sampled_params(train=train):
                drawn.append(model.weight.detach() - mean)
                if train:
                    model.weight.grad = torch.zeros_like(mean)
        optimizer.step()
    posterior = optimizer.posterior(model)
    drawn += [posterior.deviations(model, index, seed=4)["weight"] for index in range(8)]
    off = torch.corrcoef(torch.stack(drawn).flatten(1)) - torch.eye(24)
    assert off.abs().max() < 5 * mean.numel() ** -0.5
