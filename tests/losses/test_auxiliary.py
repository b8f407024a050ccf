import copy

import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.losses import ALASCA
from bayesmooth.losses.alasca import observed_shapes

X = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def stages(model):
    return {name: getattr(model, name) for name in ("layer1", "layer2", "layer3")}


def test_strides_are_8_4_2_and_the_width_twice_that_of_the_last_stage(tiny_model):
    loss = ALASCA(10, 5)
    loss.attach(tiny_model())
    assert [head.stride for head in loss.heads] == [8, 4, 2]
    assert [head.channels for head in loss.heads] == [4, 6, 8]
    assert all(head[-1].in_features == 16 for head in loss.heads)


def test_a_dry_run_leaves_no_trace(tiny_model):
    """Neither modes, nor running statistics, nor hooks, also when the model raises."""
    model = tiny_model()
    model.layer2.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    observed_shapes(model, stages(model), X)
    with pytest.raises(RuntimeError):
        observed_shapes(model, stages(model), torch.randn(1, 7, 16, 16))
    assert {name: module.training for name, module in model.named_modules()} == modes
    torch.testing.assert_close(model.state_dict(), state)
    assert not any(stage._forward_hooks for stage in stages(model).values())


def test_stages_that_give_no_images_are_refused(tiny_model):
    model = tiny_model()
    with pytest.raises(InputError, match=r"stage 'fc' gives .*\[1, 10\].*: must be images"):
        ALASCA(10, 10, stages=("fc",)).attach(model, X)
    with pytest.raises(InputError, match=r"stage 'fc' holds no Conv2d: .* example_input"):
        ALASCA(10, 10, stages=("fc",)).attach(model)


def test_features_that_do_not_fit_the_heads_are_refused(tiny_model):
    model, loss = tiny_model(), ALASCA(10, 10)
    loss.attach(model)
    extra = {"index": torch.arange(4), "epoch": 0.0}
    small = X[..., :6, :6]
    with pytest.raises(InputError, match=r"'layer1' gives 4 channels of side 6: .* side ≥ 8; pass"):
        loss(model(small), torch.arange(4), **extra)
