"""C kernels and plain torch take the reference's steps from the same noise."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bayesmooth.models import MODELS
from bayesmooth.optim import IVON, fused
from bayesmooth.optim.reference import ReferenceIVON

OPTIONS = [
    {},
    {"hess_approx": "gradsq"},
    {"clip_radius": 0.1, "debias": False},
    {"mc_samples": 2},
    {"mc_samples": 3, "hess_approx": "gradsq"},
    {"rescale_lr": False, "weight_decay": 0.0, "beta1": 0.0},
]
BACKENDS = {"kernels": True, "torch": False}


def trained(task, fused, steps=3, dtype=torch.float32, **options):
    model = task.net(dtype)
    optimizer = IVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, fused=fused, **options)
    for _ in range(steps):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    return [t for p in model.parameters() for t in (p.detach(), optimizer.state[p]["hess"])]


def trained_by_the_reference(task, dtype=torch.float32, steps=3, **options):
    model = task.net(dtype)
    optimizer = ReferenceIVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, **options)
    closure = task.closure(model, model, task.x, task.y)  # the model clears the gradients
    for _ in range(steps):
        optimizer.step(closure)
    return [t for p, h in zip(optimizer.params, optimizer.hess, strict=True) for t in (p.detach(), h)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_a_backend_takes_the_steps_of_the_reference(task, backend, options):
    expected = trained_by_the_reference(task, **options)
    for ours, plain in zip(trained(task, BACKENDS[backend], **options), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_in_float64_the_reference_is_met_to_rounding(task, options):
    model = task.net(torch.float64)
    optimizer = IVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, **options)
    for _ in range(20):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    expected = trained_by_the_reference(task, torch.float64, steps=20, **options)
    for ours, plain in zip(model.parameters(), expected[::2], strict=True):
        torch.testing.assert_close(ours.detach(), plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 50, 1 << 24])
def test_chunks_do_not_change_the_steps(task, monkeypatch, size):
    expected = trained(task, False, dtype=torch.float64)
    monkeypatch.setattr(fused, "CHUNK_ON_CPU", size)
    for ours, theirs in zip(trained(task, False, dtype=torch.float64), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_step_of_resnet34_is_at_most_100_operator_calls_and_reads_no_value(monkeypatch):
    """As on an accelerator, where calls are what small tensors cost, and reading a value waits for all of them."""
    monkeypatch.setattr(fused, "on_cpu", lambda device: False)
    params = [nn.Parameter(torch.ones_like(p)) for p in MODELS["resnet34"](10).parameters()]
    assert len(params) == 110
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    optimizer = IVON(params, 0.1, 5e4, seed=0, fused=False)
    optimizer.step(lambda: None)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        optimizer.step(lambda: None)
    calls = [e for e in seen.events() if e.name.startswith("aten::")]
    issued = [e for e in calls if not (e.cpu_parent and e.cpu_parent.name.startswith("aten::"))]
    assert len(issued) <= 100
    assert not any(e.name == "aten::_local_scalar_dense" for e in calls)
