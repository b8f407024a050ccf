import math
from operator import setitem

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bayesmooth import IVON, InputError
from bayesmooth.optim import settings as rules
from tests.conftest import make_closure

X = torch.randn(240, 12, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(12, 3, generator=torch.Generator().manual_seed(1))).argmax(1)


def net(norm=True, width=16):
    torch.manual_seed(0)
    inner = [nn.LayerNorm(width)] if norm else []
    return nn.Sequential(nn.Linear(12, width), *inner, nn.ReLU(), nn.Linear(width, 3))


def train(model, steps=60, inputs=X, labels=Y, **settings):
    """The optimizer after some steps on all examples."""
    given = {"lr": 0.03, "ess": len(Y), "noise": 0.5, "seed": 0} | settings
    optimizer = IVON(model.named_parameters(), **given)
    closure = make_closure(optimizer, lambda: nn.functional.cross_entropy(model(inputs), labels))
    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


def accuracy(model, inputs=X, labels=Y):
    return float((model(inputs).argmax(1) == labels).double().mean())


# ---- noise and step are relative ----


def test_every_matrix_has_the_same_noise_relative_to_its_weights_and_keeps_it_as_they_grow():
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 3))
    nn.init.normal_(model[0].weight, std=40.0)
    optimizer = train(model, steps=1)
    relative = pytest.approx(0.5 / math.sqrt(2), rel=0.1)
    assert optimizer.diagnostics()["layers"] == {"0.weight": relative, "2.weight": relative}
    train_on = train(net(), steps=80, lr=0.1, beta2=0.97)
    assert train_on.diagnostics()["layers"] == {"0.weight": relative, "3.weight": relative}


def test_h_keeps_its_shape_where_its_mean_is_set():
    optimizer = train(net(), steps=80, beta2=0.97)
    h = optimizer.state[optimizer.param_groups[0]["params"][0]]["hess"]
    assert h.std() / h.mean() > 0.01


def test_a_step_moves_a_tensor_by_the_same_share_however_large_gradients_and_weights_are():
    shares = []
    for scale, loss_scale in ((1.0, 1.0), (100.0, 1.0), (1.0, 1e-4)):
        weight = nn.Parameter(scale * torch.ones(4, 5))
        optimizer = IVON([weight], lr=0.02, ess=100, noise=0.1, seed=0)

        def closure(weight=weight, loss_scale=loss_scale, optimizer=optimizer):
            optimizer.zero_grad()
            (loss_scale * (weight * torch.arange(5.0)).sum()).backward()

        before = weight.detach().clone()
        optimizer.step(closure)
        shares.append(float((weight.detach() - before).norm() / before.norm()))
    assert shares == [pytest.approx(0.02, rel=0.03)] * 3


def test_a_tensor_without_elements_disturbs_nobody():
    model = net()
    model.register_parameter("nothing", nn.Parameter(torch.empty(0, 3)))
    model.register_forward_hook(lambda model, inputs, logits: logits + model.nothing.sum())
    assert train(model, steps=2).diagnostics()["steps"] == 2


@pytest.mark.parametrize("samples", [1, 2])
def test_plain_torch_and_kernels_agree(samples):
    models = [net(), net()]
    for model, fused in zip(models, (None, False), strict=True):
        train(model, steps=5, mc_samples=samples, fused=fused)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_run_goes_on_from_its_state():
    whole, parts = net(), net()
    train(whole, steps=10)
    first = train(parts, steps=5)
    later = IVON(parts.named_parameters(), lr=0.03, ess=len(Y), noise=0.5, seed=0)
    later.load_state_dict(first.state_dict())
    closure = make_closure(later, lambda: nn.functional.cross_entropy(parts(X), Y))
    for _ in range(5):
        later.step(closure)
    for ours, theirs in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(ours, theirs)


# ---- it does not matter how a network is written ----


class Split(nn.Module):
    """The first layer as two matrices."""

    def __init__(self):
        super().__init__()
        self.head, whole = nn.Linear(16, 3), net()
        self.left, self.right = nn.Linear(6, 16), nn.Linear(6, 16, bias=False)
        with torch.no_grad():
            self.left.weight.copy_(whole[0].weight[:, :6])
            self.right.weight.copy_(whole[0].weight[:, 6:])
        self.rest = whole[1:3]

    def forward(self, x):
        return self.head(self.rest(self.left(x[:, :6]) + self.right(x[:, 6:])))


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.full((16,), 0.1))

    def forward(self, x):
        return self.gain * x


def changed(change, *arguments):
    """The network after a change in place."""
    model = net()
    with torch.no_grad():
        change(model, *arguments)
    return model


def scale(model, factor):
    model[0].weight.mul_(factor)
    model[0].bias.mul_(factor)


WRITTEN = {
    "larger": lambda: changed(scale, 30.0),
    "smaller": lambda: changed(scale, 0.02),
    "split, head first": Split,
    "zero head": lambda: changed(lambda model: model[-1].weight.zero_()),
    "filled biases": lambda: changed(lambda model: model[0].bias.fill_(0.01)),
    "LayerScale": lambda: changed(lambda model: model.insert(2, LayerScale())),
    "PReLU": lambda: changed(lambda model: setitem(model, 2, nn.PReLU(16))),
    "weight_norm": lambda: changed(lambda model: weight_norm(model[0])),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_settings_train_a_network_however_it_is_written(name):
    plain, other = net(), WRITTEN[name]()
    for model in (plain, other):
        train(model, steps=100)
    assert accuracy(plain) > 0.9
    assert accuracy(other) == pytest.approx(accuracy(plain), abs=0.06)


def test_a_layer_in_other_units_before_a_normalisation_gives_the_same_network():
    """Up to the normalisation's ε and the bias, whose size counts as a vector's."""
    models = [net(), changed(scale, 8.0)]
    for model in models:
        model[1].eps = 0.0
        model[0].bias.requires_grad_(False)
        train(model, steps=20)
    assert torch.allclose(models[0](X), models[1](X), atol=1e-3)


def test_embeddings_of_any_scale_learn():
    words = torch.randint(0, 40, (240, 6), generator=torch.Generator().manual_seed(0))
    labels = X[words % len(X), :3].sum(1).argmax(1)
    for scale in (0.02, 1.0, 20.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(40, 16), nn.LayerNorm(16), nn.Linear(16, 3))
        with torch.no_grad():
            model[0].weight.mul_(scale)
        train(model, steps=150, inputs=words, labels=labels)
        assert accuracy(model, words, labels) > 0.9, scale


# ---- what is asked for ----


@pytest.mark.parametrize("settings", [{"hess_init": 0.3}, {"weight_decay": 1e-3}, {"rescale_lr": False}])
def test_noise_is_refused_beside_what_it_replaces(settings):
    with pytest.raises(InputError, match=r"noise=1\.0 with"):
        IVON(net().parameters(), 0.03, 100, noise=1.0, **settings)
    with pytest.raises(InputError, match=r"a group has noise=1\.0 with .*noise replaces these"):
        IVON([{"params": net().parameters(), **settings}], 0.03, 100, noise=1.0)


def test_beta2_forgets_as_much_as_in_the_paper():
    assert rules.choose_beta2(200_000) == 0.99999
    assert rules.choose_beta2(1) == rules.choose_beta2(2) == 0
    with pytest.raises(InputError, match="steps=0: must be ≥ 1"):
        IVON(net().parameters(), 0.1, 100, steps=0)


def test_auto_counts_what_the_loader_gives():
    data = torch.utils.data.TensorDataset(X, Y)
    some = torch.utils.data.SubsetRandomSampler(range(30))
    loader = torch.utils.data.DataLoader(data, 10, sampler=some)
    optimizer = IVON.auto(net(), loader, epochs=4)
    assert optimizer.param_groups[0]["ess"] == 30
    assert optimizer.steps == 12
    assert rules.count_examples([(X[:7], Y[:7]), (X[:5], Y[:5])]) == 12
    half = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)  # all ranks together learn from all
    assert rules.count_examples(torch.utils.data.DataLoader(data, 10, sampler=half)) == len(data)


@pytest.mark.parametrize(
    ("batches", "says"),
    [([], "list without a length, or empty"), (iter([1]), "list_iterator"), ([torch.zeros(3)], "a batch is a Tensor")],
    ids=["empty", "iterator", "tensor"],
)
def test_auto_says_which_batches_it_needs(batches, says):
    with pytest.raises(InputError, match=says):
        IVON.auto(net(), batches, 8)
    with pytest.raises(InputError, match="epochs=-8: must be > 0, and finite"):
        IVON.auto(net(), [(X, Y)], -8)


# ---- diagnostics and warnings ----


def test_the_figures_tell_noise_from_weights_by_layer_and_whether_the_hessian_moved(task):
    model = task.net()
    settings = {"hess_init": 0.5, "weight_decay": 0.0, "beta2": 1.0, "seed": 3}
    optimizer = IVON(model.named_parameters(), 0.1, 400, **settings)
    closure = task.closure(model, optimizer, task.x, task.y)
    optimizer.step(closure)
    figures, std = optimizer.diagnostics(), (400 * 0.5) ** -0.5
    every = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert figures["std"] == pytest.approx(std, rel=1e-5)
    ratio = float(std / every.square().mean().sqrt())
    assert figures["noise_to_weight"] == pytest.approx(ratio, rel=1e-4)
    assert (figures["hess_moved"], figures["steps"]) == (0.0, 1)
    optimizer.param_groups[0]["beta2"] = 0.5
    optimizer.step(closure)
    assert optimizer.diagnostics()["hess_moved"] > 0.9


def test_without_gradients_decay_alone_moves_the_hessian_and_the_data_have_no_share(task):
    model = task.net()
    optimizer = IVON(model.named_parameters(), 0.1, 400, hess_init=0.5, weight_decay=0.0, beta2=0.9, seed=3)
    for factor, share in ((0.0, 0.0), (1.0, 0.1)):  # a constant loss, then a loss with curvature
        closure = make_closure(
            optimizer, lambda factor=factor: factor * sum(100 * p.square().sum() for p in model.parameters())
        )
        for _ in range(5):
            optimizer.step(closure)
        figures = optimizer.diagnostics()
        assert figures["hess_moved"] == 1.0
        assert (
            figures["hess_from_data"] == pytest.approx(0.0, abs=1e-4)
            if not share
            else figures["hess_from_data"] > share
        )
