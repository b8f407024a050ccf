import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from bayesmooth.errors import InputError
from bayesmooth.losses import LOSSES
from bayesmooth.optim.sam import SAM
from tests.conftest import make_closure, same, values

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(24) % 3


def network(seed=0, norm=False):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        between = nn.BatchNorm1d(7) if norm else nn.Tanh()
        return nn.Sequential(nn.Linear(5, 7), between, nn.Linear(7, 3))


def sam(model, rho=0.1, **options):
    return SAM(model.parameters(), SGD, rho=rho, **({"lr": 0.3, "momentum": 0.9} | options))


def closure_of(model, optimizer, inputs=INPUTS, labels=LABELS, calls=None):
    calls = [] if calls is None else calls

    def compute():
        calls.append(values(model))
        return cross_entropy(model(inputs), labels)

    return make_closure(optimizer, compute)


def close(some, others, **tolerance):
    return all(torch.allclose(a, b, **tolerance) for a, b in zip(some, others, strict=True))


# ---- the method ----


def test_the_step_is_the_base_step_with_the_gradient_at_the_worst_point():
    a = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    b = nn.Parameter(torch.tensor([[3.0]]))  # another group, another dtype: still one norm
    optimizer = SAM([{"params": [a]}, {"params": [b], "lr": 0.2}], SGD, rho=0.5, lr=0.1)
    closure = make_closure(optimizer, lambda: (a**4).sum() / 4 + (b.double() ** 2).sum() * 2)
    assert closure() == optimizer.step(closure)
    norm = (1 + 64 + 144) ** 0.5  # of (1, 8, 12)
    expected = [1 - 0.1 * (1 + 0.5 / norm) ** 3, 2 - 0.1 * (2 + 0.5 * 8 / norm) ** 3]
    assert a.tolist() == pytest.approx(expected, abs=1e-12)
    assert b.item() == pytest.approx(3 - 0.2 * 4 * (3 + 0.5 * 12 / norm))


@pytest.mark.parametrize(
    ("base", "options"),
    [
        (SGD, {"lr": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
        (SGD, {"lr": 0.3, "fused": True}),
        (AdamW, {"lr": 0.01, "eps": 1e-6}),
        (AdamW, {"lr": 0.01, "foreach": True}),
    ],
)
def test_radius_zero_is_the_base_optimizer_bit_for_bit_at_one_call_a_step(base, options):
    ours, theirs, calls = network(), network(), []
    optimizer, plain = (SAM(ours.parameters(), base, rho=0, **options), base(theirs.parameters(), **options))
    for _ in range(8):
        optimizer.step(closure_of(ours, optimizer, calls=calls))
        plain.step(closure_of(theirs, plain))
    assert same(values(ours), values(theirs))
    assert len(calls) == 8


def test_a_group_may_have_its_own_radius():
    model, calls = network(), []
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "rho": 0.0}]
    optimizer = SAM(groups, SGD, rho=0.3, lr=0.1)
    optimizer.step(closure_of(model, optimizer, calls=calls))
    still = [torch.equal(a, b) for a, b in zip(*calls, strict=True)]
    assert still == [False, False, True, True]


# ---- BatchNorm ----


def test_running_statistics_come_from_the_first_pass_only():
    model, reference = network(norm=True), network(norm=True)
    optimizer = sam(model)
    reference(INPUTS)
    optimizer.step(closure_of(model, optimizer))
    assert same(model.buffers(), reference.buffers())
    assert model[1].num_batches_tracked == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_statistics_are_kept_inside_a_compiled_model(backend):
    model, reference = network(norm=True), network(norm=True)
    compiled = torch.compile(model, backend=backend)
    optimizer, plain = sam(model), sam(reference)
    for _ in range(2):
        optimizer.step(closure_of(compiled, optimizer))
        plain.step(closure_of(reference, plain))
    assert close(model.buffers(), reference.buffers())
    assert close(values(model), values(reference), atol=1e-6)


# ---- state ----


def test_a_run_of_the_base_optimizer_goes_on_with_sam():
    model = network()
    plain = SGD(model.parameters(), lr=0.3, momentum=0.9)
    plain.step(closure_of(model, plain))
    optimizer = sam(model, rho=0.07)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["rho"] == 0.07
    assert same(
        [optimizer.state[p]["momentum_buffer"] for p in model.parameters()],
        [plain.state[p]["momentum_buffer"] for p in model.parameters()],
    )


# ---- errors ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: SAM([w], SGD, rho=-1, lr=0.1), "rho=-1: must be ≥ 0; use SGD"),
        (lambda w: SAM([w], SGD, rho=float("nan"), lr=0.1), "rho=nan"),
        (lambda w: SAM([w], SGD([w], lr=0.1)), "must be the class of an optimizer"),
        (lambda w: SAM([("w", w.detach().cfloat())], SGD, lr=0.1), "parameter w: torch.complex64"),
        (lambda w: SAM([w.detach().to_sparse()], SGD, lr=0.1), "parameter #0: .*sparse"),
    ],
)
def test_bad_arguments_say_the_rule_and_the_way_out(make, message):
    with pytest.raises(InputError, match=message):
        make(nn.Parameter(torch.ones(2)))


# ---- what layers and losses collect, they collect once ----


def test_an_online_loss_counts_each_example_once():
    loss, model = LOSSES["ols"](num_classes=3), nn.Linear(2, 3)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1)
    inputs = torch.eye(2).repeat(3, 1)
    labels = model(inputs).argmax(-1)  # so that each of them is counted
    closure = make_closure(optimizer, lambda: loss(model(inputs), labels))
    optimizer.step(closure)
    assert float(loss.counts.sum()) == len(labels)
