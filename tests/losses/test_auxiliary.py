import copy

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.losses import ALASCA
from bayesmooth.losses.auxiliary import AuxiliaryHead, Tap, declared_shape, observed_shapes

X = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def stages(model):
    return {name: getattr(model, name) for name in ("layer1", "layer2", "layer3")}


def test_the_head_of_the_papers_first_stage():
    """64 channels → 128 → 128 (8×8, stride 8) → 512 → K."""
    head = AuxiliaryHead(64, 512, 8, 10, torch.Generator().manual_seed(0))
    shapes = [m.weight.shape for m in head if isinstance(m, nn.Conv2d | nn.Linear)]
    assert shapes == [(128, 64, 1, 1), (128, 128, 8, 8), (512, 128, 1, 1), (10, 512)]
    assert head[3].stride == (8, 8)
    assert head(torch.randn(2, 64, 32, 32)).shape == (2, 10)


def test_strides_are_8_4_2_and_the_width_twice_that_of_the_last_stage(tiny_model):
    loss = ALASCA(10, 5)
    loss.attach(tiny_model())
    assert [head.stride for head in loss.heads] == [8, 4, 2]
    assert [head.channels for head in loss.heads] == [4, 6, 8]
    assert all(head[-1].in_features == 16 for head in loss.heads)


def test_kernels_fit_small_images(tiny_model):
    loss = ALASCA(10, 5)
    loss.attach(tiny_model(), X[..., :6, :6])
    assert [head.stride for head in loss.heads] == [6, 3, 2]


def test_heads_follow_their_seed(tiny_model):
    def weights(seed):
        loss = ALASCA(10, 5, seed=seed)
        loss.attach(tiny_model())
        return loss.heads[0][0].weight

    assert weights(0).equal(weights(0))
    assert not weights(0).equal(weights(1))


def test_declared_channels_are_the_observed_ones(tiny_model):
    model = tiny_model()
    observed = observed_shapes(model, stages(model), X)
    assert [channels for channels, _ in observed] == [
        declared_shape(name, stage)[0] for name, stage in stages(model).items()
    ]
    assert [side for _, side in observed] == [16, 8, 4]


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


def test_a_tap_forgets_in_a_pass_without_gradients():
    features = {}
    tap = Tap("a", features)
    tap(None, None, X)
    assert features["a"] is X
    with torch.no_grad():
        tap(None, None, X)
    assert not features


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
