"""State that fits its parameter, whatever has happened to either."""

import pytest
import torch
from torch import nn

from bayesmooth.optim import IVON


def step(task, model, optimizer, times=1):
    closure = task.closure(model, optimizer, task.x, task.y)
    for _ in range(times):
        optimizer.step(closure)


def made(task, dtype=torch.float32, **settings):
    model = task.net(dtype)
    return model, IVON(model.parameters(), 0.1, 40, seed=0, **settings)


@pytest.mark.parametrize("before", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("now", [torch.bfloat16, torch.float32, torch.float64])
def test_a_model_may_change_its_precision_in_mid_training(task, before, now):
    model, optimizer = made(task, before)
    step(task, model, optimizer, 2)
    model.to(now)
    mean = [p.detach().clone() for p in model.parameters()]
    with optimizer.sampled_params(train=True):
        assert not torch.equal(model[0].weight, mean[0])
    assert all(torch.equal(p, m) for p, m in zip(model.parameters(), mean, strict=True))
    step(task, model, optimizer, 3)
    posterior = optimizer.posterior(model)
    for name, param in model.named_parameters():
        assert torch.equal(posterior.mean[name].to(now), param)
        assert posterior.std[name].dtype == torch.promote_types(now, torch.float32)


def test_the_posterior_believes_a_sixteen_bit_parameter_that_somebody_sets(task):
    model, optimizer = made(task, torch.bfloat16)
    step(task, model, optimizer)
    with torch.no_grad():
        model[0].weight.fill_(3)
    assert bool((optimizer.posterior(model).mean["0.weight"] == 3).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_training_may_follow_an_evaluation_in_inference_mode(task, dtype):
    (model, optimizer), (twin, control) = made(task, dtype), made(task, dtype)
    with torch.inference_mode(), optimizer.sampled_params():
        model(task.x.to(dtype))
    for m, o in ((model, optimizer), (twin, control)):
        step(task, m, o, 2)
    assert torch.equal(model[0].weight, twin[0].weight)


def test_a_gradient_of_another_dtype_is_converted(task):
    (model, optimizer), (twin, control) = made(task), made(task)
    for m, o in ((model, optimizer), (twin, control)):
        with o.sampled_params(train=True):
            nn.functional.cross_entropy(m(task.x), task.y).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        rounded = ours.grad.bfloat16()
        ours.grad, ours.grad_dtype = None, None
        ours.grad = rounded
        theirs.grad = rounded.float()
    optimizer.step()
    control.step()
    assert torch.equal(model[0].weight, twin[0].weight)
