"""Settings that drown or freeze learning are found, early or late, with the number to change."""

import itertools
import re
import warnings

import pytest
import torch
from torch import nn

from bayesmooth import randomness
from bayesmooth.optim import IVON, diagnostics


def digits(count=600):
    """Ten overlapping clusters in 20 dimensions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    centres = torch.randn(10, 20, generator=generator)
    return centres[labels] + 0.5 * torch.randn(count, 20, generator=generator), labels


def net(norm=True):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        between = [nn.BatchNorm1d(64)] if norm else []
        return nn.Sequential(nn.Linear(20, 64), *between, nn.ReLU(), nn.Linear(64, 10))


def train(model, optimizer, steps):
    inputs, labels = digits()
    batches = itertools.cycle(torch.arange(len(inputs)).split(50))

    def closure():
        optimizer.zero_grad()
        rows = next(batches)
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


GOOD = {"lr": 0.1, "ess": 600.0, "hess_init": 0.5, "beta2": 1 - 2 / 400, "seed": 0}


def messages(norm=True, steps=400, **settings):
    model = net(norm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, IVON(model.parameters(), **(GOOD | settings)), steps)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("norm", [True, False])
def test_good_settings_are_left_in_peace(norm):
    assert messages(norm) == []


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({"lr": 0.0003}, 100, r"raise lr from 0\.0003 to about 0\.0"),
        ({"lr": 10.0}, 1, r"lower lr from 10 to about"),
        ({"weight_decay": 0.3}, 400, r"lower weight_decay from 0\.3 to about 0\.0"),
        ({"beta2": 0.9}, 100, r"raise beta2 from 0\.9 to about 0\.99"),
        ({"ess": 6.0}, 1, r"^the posterior's noise is .* times the weights.*raise hess_init to"),
    ],
    ids=str,
)
def test_what_spoils_training_is_named_with_the_number_to_change(settings, steps, expected):
    found = messages(steps=steps, **settings)
    assert [bool(re.search(expected, message)) for message in found].count(True) == 1


def test_a_network_with_normalisation_bears_more_noise():
    start = {"hess_init": 0.04}  # σ is about three times the weights
    assert messages(norm=True, steps=1, **start) == []
    (message,) = messages(norm=False, steps=1, **start)
    assert "times the weights" in message


def test_it_looks_at_steps_that_grow_apart():
    due = [step for step in range(1, 2000) if diagnostics.is_due(step)]
    assert due == [1, 100, 200, 400, 800, 1600]


def test_matrices_that_start_at_zero_are_no_reason_to_warn(task):
    model = task.net()
    with torch.no_grad():
        model[2].weight.zero_()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    assert optimizer.diagnostics()["steps"] == 1
    assert caught == []


def test_the_figures_tell_noise_from_weights_by_layer_and_whether_the_hessian_moved(task):
    model = task.net()
    settings = {"hess_init": 0.5, "weight_decay": 0.0, "beta2": 1.0, "seed": 3}
    optimizer = IVON(model.named_parameters(), 0.1, 400, **settings)
    closure = task.closure(model, optimizer, task.x, task.y)
    optimizer.step(closure)
    figures, std = optimizer.diagnostics(), (400 * 0.5) ** -0.5
    every = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert figures["std"] == pytest.approx(std, rel=1e-5)
    assert figures["noise_to_weight"] == pytest.approx(
        float(std / every.square().mean().sqrt()), rel=1e-4
    )
    assert figures["layers"] == {
        name: pytest.approx(
            float(std / model.get_parameter(name).detach().square().mean().sqrt()), rel=1e-4
        )
        for name in ("0.weight", "2.weight")
    }
    assert figures["hess_moved"] == 0.0
    assert figures["steps"] == 1
    optimizer.param_groups[0]["beta2"] = 0.5
    optimizer.step(closure)
    assert optimizer.diagnostics()["hess_moved"] > 0.9


def test_a_missing_compiler_is_told_once_and_only_to_large_models(monkeypatch):
    monkeypatch.setattr(randomness, "KERNELS", False)
    monkeypatch.setattr(diagnostics, "_said_slow", False)
    monkeypatch.setattr(diagnostics, "LARGE", 1000)

    def step(size):
        weight = nn.Parameter(torch.ones(size, 10))
        optimizer = IVON([weight], 0.01, 1000, seed=0)
        optimizer.step(lambda: weight.square().mean().backward())

    step(10)
    with pytest.warns(UserWarning, match=r"without a C compiler.*pip install"):
        step(100)
    step(100)
