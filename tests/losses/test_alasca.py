import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from bayesmooth.errors import InputError
from bayesmooth.losses import ALASCA, CrossEntropy

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
    with pytest.raises(
        InputError, match=r"features of 0 of the stages .* call attach\(model\), then"
    ):
        loss(z, Y, index=INDEX, epoch=1.0)
    model(X[:2])  # features of another batch
    with pytest.raises(InputError, match=r"features of 0 of the stages"):
        loss(z, Y, index=INDEX, epoch=1.0)
    assert loss.ema.equal(average)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"epoch": 1.0}, r"index of None for 6 examples: ALASCA needs one per example"),
        ({"index": INDEX}, r"epoch=None: ALASCA needs it; pass epoch="),
        ({"index": INDEX[:2], "epoch": 1.0}, r"index of shape \(2,\)"),
        ({"index": INDEX.float(), "epoch": 1.0}, r"index of shape \(6,\) and torch.float32"),
        ({"index": INDEX + 5, "epoch": 1.0}, r"index 24: must be in 0…19; build .* num_examples"),
    ],
)
def test_missing_or_wrong_extras_are_refused(rig, extra, message):
    model, loss = rig
    before = copy.deepcopy(loss.state_dict())
    with pytest.raises(InputError, match=message):
        loss(model(X), Y, **extra)
    torch.testing.assert_close(loss.state_dict(), before, rtol=0, atol=0)


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
