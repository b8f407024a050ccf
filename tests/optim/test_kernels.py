"""C kernels, compiled torch and plain torch take the same steps from the same noise."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bayesmooth.models import MODELS
from bayesmooth.optim import IVON, ivon, weights

OPTIONS = [
    {},
    {"hess_approx": "gradsq"},
    {"clip_radius": 0.1, "debias": False},
    {"mc_samples": 2, "antithetic": True},
]


def trained(task, fused, steps=3, **options):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, fused=fused, **options)
    for _ in range(steps):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    return [t for p in model.parameters() for t in (p.detach(), optimizer.state[p]["hess"])]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_kernels_take_the_steps_of_the_lines_in_torch(task, options):
    for ours, lines in zip(
        trained(task, True, **options), trained(task, False, **options), strict=True
    ):
        torch.testing.assert_close(ours, lines, rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor, about torch's own parts
def test_compiled_by_inductor_they_are_the_same_lines(task, monkeypatch):
    monkeypatch.setattr(ivon, "_compilable", True)
    for compiled, lines in zip(trained(task, "compile"), trained(task, False), strict=True):
        torch.testing.assert_close(compiled, lines, rtol=2e-5, atol=2e-6)
    assert ivon._compilable  # it did not fall back


@pytest.mark.parametrize("size", [1, 50, 1 << 24])
def test_chunks_and_slices_do_not_change_the_steps(task, monkeypatch, size):
    expected = trained(task, False)
    monkeypatch.setattr(weights, "CHUNK_IN_CACHE", size)
    for ours, theirs in zip(trained(task, False), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_where_nothing_compiles_there_is_one_warning_and_the_same_steps(task, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no compiler\nand a long story")

    monkeypatch.setattr(ivon, "_compiled", lambda lines: fails)
    monkeypatch.setattr(ivon, "_compilable", True)
    with pytest.warns(UserWarning, match=r"RuntimeError: no compiler\);.*fused=False") as caught:
        ours = trained(task, "compile")
    assert len(caught) == 1
    for compiled, lines in zip(ours, trained(task, False), strict=True):
        assert torch.equal(compiled, lines)


def test_a_step_of_resnet34_is_at_most_100_operator_calls(monkeypatch):
    """As on an accelerator, where calls are what small tensors cost: no call per tensor, 110 of them."""
    monkeypatch.setattr(weights, "CHUNK_IN_CACHE", weights.CHUNK)
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
