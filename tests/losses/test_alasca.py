import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from bayesmooth.errors import InputError
from bayesmooth.losses import ALASCA, CrossEntropy
from bayesmooth.theory import effective_labels

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


def step(model, loss, epoch=100.0):
    return loss(model(X), Y, index=INDEX, epoch=epoch)


def test_the_heads_learn_labels_that_keep_the_confidence_of_the_average_logits(rig):
    """e ← 0.7e + 0.3z from 0; a = softmax(e/0.333)_y, at epoch 15 of 30 half of it and half of 1."""
    model, loss = rig
    z = model(X).detach()
    x = X
    features = [x := stage(x) for stage in (model.layer1, model.layer2, model.layer3)]
    for epoch, ready, average in ((0.0, 0.0, 0.3 * z), (15.0, 0.5, 0.51 * z), (30.0, 1.0, 0.657 * z)):
        model(X)
        value = loss(z, Y, index=INDEX, epoch=epoch)
        torch.testing.assert_close(loss.ema[INDEX], average)
        kept = ready * (average / 0.333).softmax(1).gather(1, Y[:, None]) + 1 - ready
        label = torch.where(F.one_hot(Y, K) == 1, kept, (1 - kept) / (K - 1))
        heads = [F.cross_entropy(head(f), label) for head, f in zip(loss.heads, features, strict=True)]
        torch.testing.assert_close(value, F.cross_entropy(z, Y) + 2 * sum(heads))
    assert int(loss.ema.any(1).sum()) == B


def test_features_are_trained_by_the_heads_and_the_heads_by_themselves(rig):
    model, loss = rig
    step(model, loss).backward()
    through_heads = model.layer1[0].weight.grad.clone()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    model.zero_grad()
    CrossEntropy()(model(X), Y).backward()
    assert not torch.allclose(through_heads, model.layer1[0].weight.grad)


def test_strides_are_8_4_2_and_the_width_twice_that_of_the_last_stage(rig):
    heads = rig[1].heads
    assert [head[0].in_channels for head in heads] == [4, 6, 8]
    assert [head[3].stride for head in heads] == [(8, 8), (4, 4), (2, 2)]
    assert all(head[-1].in_features == 16 for head in heads)


def test_evaluation_is_cross_entropy_needs_no_index_and_changes_nothing(rig):
    model, loss = rig
    model.eval()
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    z = model(X)
    torch.testing.assert_close(loss(z, Y), F.cross_entropy(z, Y))
    torch.testing.assert_close(loss.state_dict(), before)


def test_a_loss_without_features_of_the_batch_refuses_and_keeps_its_state(rig):
    model, loss = rig
    z = model(X).detach()
    loss(z, Y, index=INDEX, epoch=1.0)
    average = loss.ema.clone()
    model(X[:2])  # features of another batch
    with pytest.raises(InputError, match=r"features of 0 of the stages .* call attach\(model, inputs\), then"):
        loss(z, Y, index=INDEX, epoch=1.0)
    with pytest.raises(InputError, match="epoch=None: ALASCA needs it; pass epoch="):
        step(model, loss, epoch=None)
    assert loss.ema.equal(average)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_the_loss_and_of_the_model_are_detached_until_attached(rig, duplicate):
    model, loss = rig
    z = model(X)
    twin, ghost = duplicate(loss), copy.deepcopy(model.eval())
    ghost(X[:2])  # a copy of the model does not feed the loss
    loss(z, Y, index=INDEX, epoch=1.0)
    with pytest.raises(InputError, match="features of 0"):
        twin(z, Y, index=INDEX, epoch=1.0)
    heads = [parameter.clone() for parameter in twin.heads.parameters()]
    twin.attach(ghost)
    torch.testing.assert_close(list(twin.heads.parameters()), heads)
    assert step(ghost, twin).isfinite()


def test_a_look_at_the_effective_labels_leaves_the_features_for_the_step(rig):
    model, loss = rig
    z = model(X)
    labels = effective_labels(loss, z, Y, index=INDEX, epoch=1.0)
    torch.testing.assert_close(labels, F.one_hot(Y, K).float())
    assert not loss.ema.any()
    loss(z, Y, index=INDEX, epoch=1.0)


def test_building_the_heads_leaves_modes_and_statistics_of_the_model_as_they_were(tiny_model):
    model = tiny_model()
    model.layer2.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    ALASCA(N, K).attach(model, X)
    assert {name: module.training for name, module in model.named_modules()} == modes
    torch.testing.assert_close(model.state_dict(), state)


def test_what_cannot_be_attached_is_refused(tiny_model):
    model = tiny_model()
    with pytest.raises(InputError, match=r"'fc': .*\[1, 10\].*: must be images"):
        ALASCA(N, K, stages=("fc",)).attach(model, X)
    with pytest.raises(InputError, match=r"stage 'layer9': the model has no such module, only layer1"):
        ALASCA(N, K, stages=("layer9",)).attach(model, X)
    with pytest.raises(InputError, match=r"no heads yet; call attach\(model, example_input\)"):
        ALASCA(N, K).attach(model)
