"""What becomes of a sample, also when the caller changes its mind or something breaks."""

import pytest
import torch
from torch import nn

from bayesmooth.optim import IVON, fused
from tests.conftest import weights_of

F = nn.functional
PATHS = {"fused": None, "plain": False}


@pytest.fixture(params=PATHS)
def made(task, request):
    """A model and its optimizer, anew at every call, on the kernels and on torch."""

    def make(**settings):
        model = task.net()
        settings = {"weight_decay": 0.0, "seed": 0, "fused": PATHS[request.param]} | settings
        return model, IVON(model.parameters(), 0.1, 40, **settings)

    return make


def take(task, model, optimizer, scale=1.0, rows=slice(None), fresh=True):
    """A sample with gradients."""
    with optimizer.sampled_params(train=True, fresh=fresh):
        (scale * F.cross_entropy(model(task.x[rows]), task.y[rows])).backward()


def after(task, model, optimizer):
    optimizer.step()
    return weights_of(model)


# ---- errors ----


def test_a_closure_that_skips_its_batch_leaves_the_mean(task, made):
    model, optimizer = made()
    mean = weights_of(model)
    assert optimizer.step(lambda: None) is None
    assert torch.equal(weights_of(model), mean)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_draw_that_fails_half_way_brings_every_mean_back(task, monkeypatch, failing):
    model, twin = task.net(), task.net()
    optimizer, control = (IVON(m.parameters(), 0.1, 40, seed=0, fused=False) for m in (model, twin))
    mean, real, calls = weights_of(model), fused.draw_noise, []

    def short_of_memory(*args, **kwargs):
        calls.append(1)
        if len(calls) == failing:
            raise MemoryError
        return real(*args, **kwargs)

    monkeypatch.setattr(fused, "draw_noise", short_of_memory)
    monkeypatch.setattr(fused, "CHUNK_ON_CPU", 1)
    with pytest.raises(MemoryError):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    assert torch.equal(weights_of(model), mean)
    for m, o in ((model, optimizer), (twin, control)):
        o.step(task.closure(m, o, task.x, task.y))
    assert torch.equal(weights_of(model), weights_of(twin))


@pytest.mark.parametrize("kernel", ["sample", "swap"])
def test_ctrl_c_while_a_kernel_runs_brings_every_mean_back(task, monkeypatch, kernel):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=0)
    mean, real = weights_of(model), fused.run_kernel

    def interrupted(name, *args):
        real(name, *args)
        if name == kernel:  # Python raises it once the C code returns
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fused, "run_kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            take(task, model, optimizer)
    assert torch.equal(weights_of(model), mean)
    optimizer.zero_grad()
    take(task, model, optimizer)
    assert not torch.equal(after(task, model, optimizer), mean)


def test_a_failing_update_brings_the_mean_back(task, monkeypatch):
    model = task.net(torch.float64)
    optimizer = IVON(model.parameters(), 0.1, 40, seed=0)
    mean = weights_of(model)

    def breaks(*args, **numbers):
        raise MemoryError

    monkeypatch.setattr(fused.Torch, "update", breaks)
    with pytest.raises(MemoryError):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    assert torch.equal(weights_of(model), mean)


# ---- what counts ----


@pytest.mark.parametrize("samples", [1, 3])
def test_a_gradient_that_the_caller_removes_does_not_move_its_weight(task, made, samples):
    model, optimizer = made()
    last = model[2].weight.detach().clone()
    for _ in range(samples):
        take(task, model, optimizer)
    model[2].weight.grad = None
    optimizer.step()
    assert torch.equal(model[2].weight, last)
    assert not torch.equal(model[0].weight, task.net()[0].weight)


def test_zero_grad_keeps_a_sample_that_is_finite(task, made):
    (model, optimizer), (twin, control) = made(), made()
    take(task, model, optimizer)
    optimizer.zero_grad()
    take(task, twin, control)
    torch.testing.assert_close(after(task, model, optimizer), after(task, twin, control))


@pytest.mark.parametrize("worth", [float("nan"), float("inf")])
def test_zero_grad_drops_a_sample_that_is_not(task, made, worth):
    (model, optimizer), (twin, control) = made(), made()
    take(task, model, optimizer, scale=worth)
    optimizer.zero_grad()
    for m, o in ((model, optimizer), (twin, control)):
        take(task, m, o)
    assert torch.equal(after(task, model, optimizer), after(task, twin, control))


def test_a_context_without_a_backward_pass_is_no_sample(task, made):
    (model, optimizer), (twin, control) = made(), made()
    for m, o in ((model, optimizer), (twin, control)):
        take(task, m, o)
    with optimizer.sampled_params(train=True):
        pass
    torch.testing.assert_close(after(task, model, optimizer), after(task, twin, control))


def test_micro_batches_of_a_sample_add_up_also_over_zero_grad(task, made):
    (model, optimizer), (twin, control) = made(), made()
    halves = slice(0, 20), slice(20, 40)
    take(task, model, optimizer, rows=halves[0])
    optimizer.zero_grad()
    take(task, model, optimizer, rows=halves[1], fresh=False)
    take(task, twin, control, scale=2.0)
    torch.testing.assert_close(after(task, model, optimizer), after(task, twin, control))


def halve_one_layer(model):
    for param in model[2].parameters():
        param.grad *= 0.5


def mask_rows(model):
    model[0].weight.grad[:5] = 0


def replace_by_a_copy(model):
    for param in model.parameters():
        param.grad = 0.1 * param.grad


@pytest.mark.parametrize("approx", ["price", "gradsq"])
@pytest.mark.parametrize("change", [halve_one_layer, mask_rows, replace_by_a_copy])
def test_what_is_done_to_the_average_of_several_samples_is_done_to_each(task, made, change, approx):
    (model, optimizer), (twin, control) = made(hess_approx=approx), made(hess_approx=approx)
    for _ in range(3):
        take(task, model, optimizer)
        with control.sampled_params(train=True):
            F.cross_entropy(twin(task.x), task.y).backward()
            change(twin)
    change(model)
    torch.testing.assert_close(after(task, model, optimizer), after(task, twin, control))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[ours]["hess"], control.state[theirs]["hess"])


def test_samples_whose_gradients_cancel_keep_their_curvature():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = IVON([weight], 0.1, 40, weight_decay=0.0, beta2=0.0, clip_radius=1e-9, seed=0)
    curvature = torch.zeros(4)
    for sign in (1.0, -1.0):
        with optimizer.sampled_params(train=True):
            weight.grad = torch.full((4,), sign)
            curvature += 0.5 * sign * weight.detach() * 40  # ĝ (θ − m)/σ², h = 1
    optimizer.step()
    expected = curvature + 0.5 * (1 - curvature).square()
    torch.testing.assert_close(optimizer.state[weight]["hess"], expected)


# ---- state that fits its parameter, whatever has happened to either ----


def run(task, model, optimizer, times=1):
    closure = task.closure(model, optimizer, task.x, task.y)
    for _ in range(times):
        optimizer.step(closure)


def fresh(task, dtype=torch.float32, **settings):
    model = task.net(dtype)
    return model, IVON(model.parameters(), 0.1, 40, seed=0, **settings)


@pytest.mark.parametrize("before", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("now", [torch.bfloat16, torch.float32, torch.float64])
def test_a_model_may_change_its_precision_in_mid_training(task, before, now):
    model, optimizer = fresh(task, before)
    run(task, model, optimizer, 2)
    model.to(now)
    mean = [p.detach().clone() for p in model.parameters()]
    with optimizer.sampled_params(train=True):
        assert not torch.equal(model[0].weight, mean[0])
    assert all(torch.equal(p, m) for p, m in zip(model.parameters(), mean, strict=True))
    run(task, model, optimizer, 3)
    posterior = optimizer.posterior(model)
    for name, param in model.named_parameters():
        assert torch.equal(posterior.mean[name].to(now), param)
        assert posterior.std[name].dtype == torch.promote_types(now, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_training_may_follow_an_evaluation_in_inference_mode(task, dtype):
    (model, optimizer), (twin, control) = fresh(task, dtype), fresh(task, dtype)
    with torch.inference_mode(), optimizer.sampled_params():
        model(task.x.to(dtype))
    for m, o in ((model, optimizer), (twin, control)):
        run(task, m, o, 2)
    assert torch.equal(model[0].weight, twin[0].weight)
