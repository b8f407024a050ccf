import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from bayesmooth.errors import InputError
from bayesmooth.losses import ALASCA, CrossEntropy
from bayesmooth.losses.alasca import observed_shapes

K, N, B = 10, 20, 6
Y = torch.arange(B)
INDEX = torch.tensor([3, 0, 19, 7, 8, 11])
X = torch.randn(B, 1, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def rig(tiny_model):
    """A model and a loss that is attached to it."""
    model, loss = tiny_model(), ALASCA(N, K)
    loss.attach(model, X)
    return model, loss


def step(model, loss, epoch=100.0, index=INDEX, x=X):
    return loss(model(x), Y, index=index, epoch=epoch)


def test_confidence_is_that_of_the_average_logits_and_grows_from_one():
    """e ← 0.7·0 + 0.3z; a = softmax(e/0.333)_y; at epoch 15 of 30 half of it, half of 1."""
    z = torch.tensor([[2.0, 1.0, 0.0]])
    loss = ALASCA(5, 3)
    expected = (0.3 * z / 0.333).softmax(1)[0, 0]
    kept = loss._kept_confidence(z, Y[:1], torch.tensor([4]), 15.0)
    torch.testing.assert_close(kept, (0.5 * expected + 0.5)[None])
    torch.testing.assert_close(loss.ema[4], 0.3 * z[0])
    assert not loss.ema[:4].any()
    again = loss._kept_confidence(z, Y[:1], torch.tensor([4]), 30.0)
    torch.testing.assert_close(loss.ema[4], 0.51 * z[0])
    torch.testing.assert_close(again, (0.51 * z / 0.333).softmax(1)[:, 0])
    assert ALASCA(5, 3)._kept_confidence(z, Y[:1], torch.tensor([4]), 0.0).item() == 1.0


def test_features_are_trained_by_the_heads_and_the_heads_by_themselves(rig):
    model, loss = rig
    step(model, loss).backward()
    through_heads = model.layer1[0].weight.grad.clone()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    model.zero_grad()
    CrossEntropy()(model(X), Y).backward()
    assert not torch.allclose(through_heads, model.layer1[0].weight.grad)
    assert len(loss.heads) == 3


def test_evaluation_is_cross_entropy_needs_no_index_and_changes_nothing(rig):
    model, loss = rig
    model.eval()
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    z = model(X)
    torch.testing.assert_close(loss(z, Y), F.cross_entropy(z, Y))
    torch.testing.assert_close(loss.state_dict(), before)
    assert not loss._features


def test_a_loss_without_fresh_features_refuses_and_keeps_its_state(rig):
    model, loss = rig
    z = model(X).detach()
    loss(z, Y, index=INDEX, epoch=1.0)
    average = loss.ema.clone()
    with pytest.raises(InputError, match=r"features of 0 of the stages .* call attach\(model, inputs\), then"):
        loss(z, Y, index=INDEX, epoch=1.0)
    model(X[:2])  # features of another batch
    with pytest.raises(InputError, match=r"features of 0 of the stages"):
        loss(z, Y, index=INDEX, epoch=1.0)
    assert loss.ema.equal(average)


def test_the_epoch_must_be_given(rig):
    with pytest.raises(InputError, match="epoch=None: ALASCA needs it; pass epoch="):
        step(*rig, epoch=None)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_the_loss_and_of_the_model_are_detached_until_attached(rig, duplicate):
    model, loss = rig
    z = model(X)
    twin, ghost = duplicate(loss), copy.deepcopy(model.eval())
    ghost(X[:2])  # a copy of the model does not feed the loss
    assert len(loss._features["layer1"]) == B
    with pytest.raises(InputError, match="features of 0"):
        twin(z, Y, index=INDEX, epoch=1.0)
    heads = [parameter.clone() for parameter in twin.heads.parameters()]
    twin.attach(ghost)
    torch.testing.assert_close(list(twin.heads.parameters()), heads)
    assert step(ghost, twin).isfinite()


def test_a_saved_run_goes_on_where_it_was(rig, tiny_model):
    model, loss = rig
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)

    def train(model, loss, optimizer):
        optimizer.zero_grad()
        value = step(model, loss, epoch=5.0)
        value.backward()
        optimizer.step()
        return value.item()

    train(model, loss, optimizer)
    model2, loss2 = tiny_model(), ALASCA(N, K)
    loss2.attach(model2, X)
    optimizer2 = torch.optim.SGD([*model2.parameters(), *loss2.parameters()], lr=0.1)
    model2.load_state_dict(model.state_dict())
    loss2.load_state_dict(loss.state_dict())
    for _ in range(3):
        assert train(model, loss, optimizer) == train(model2, loss2, optimizer2)


# ---- the heads ----


def stages(model):
    return {name: getattr(model, name) for name in ("layer1", "layer2", "layer3")}


def test_strides_are_8_4_2_and_the_width_twice_that_of_the_last_stage(tiny_model):
    loss = ALASCA(N, K)
    loss.attach(tiny_model(), X)
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
        ALASCA(N, K, stages=("fc",)).attach(model, X)
    with pytest.raises(InputError, match=r"no heads yet; call attach\(model, example_input\)"):
        ALASCA(N, K).attach(model)


def test_features_that_do_not_fit_the_heads_are_refused(rig):
    message = r"'layer1' gives 4 channels of side 6: .* side ≥ 8; attach"
    with pytest.raises(InputError, match=message):
        step(*rig, x=X[..., :6, :6])
