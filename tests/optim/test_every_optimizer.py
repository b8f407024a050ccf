"""All optimizers through the same truths; torch's own are the controls."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, AdamW

from bayesmooth.errors import InputError
from bayesmooth.optim import BSAM, IVON, OPTIMIZERS, SAM
from bayesmooth.optim.schedule import scheduler
from tests.conftest import make_closure, same, values

MAKE = {
    "sgd": lambda params, lr=0.1: SGD(params, lr=lr, momentum=0.9),
    "adamw": lambda params, lr=0.05: AdamW(params, lr=lr, weight_decay=0),
    "sam": lambda params, lr=0.1: SAM(params, SGD, rho=0.05, lr=lr, momentum=0.9),
    "sam over adamw": lambda params, lr=0.05: SAM(params, AdamW, lr=lr, weight_decay=0),
    "ivon": lambda params, lr=0.1: IVON(params, lr, 1e4, beta2=0.9999, weight_decay=0, seed=0),
    "ivon in torch": lambda params, lr=0.1: IVON(params, lr, 1e4, beta2=0.9999, weight_decay=0, seed=0, fused=False),
    "bsam": lambda params, lr=0.1: BSAM(params, lr, 1e4, weight_decay=0, seed=0),
}
CALLS = {"sam": 2, "sam over adamw": 2, "bsam": 2}  # of the closure per step; else one
OURS = ["ivon", "ivon in torch", "sam", "bsam"]
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}

every_optimizer = pytest.mark.parametrize("name", MAKE)


def train(task, model, optimizer, steps, net=None):
    closure = task.closure(net or model, optimizer, task.x, task.y)
    return [optimizer.step(closure).item() for _ in range(steps)]


def test_every_public_optimizer_is_here():
    assert {name.split(" ")[0] for name in MAKE} == set(OPTIMIZERS)


# ---- where they go ----


@every_optimizer
def test_a_convex_quadratic_is_brought_to_its_minimum(name):
    """L = ½(w−c)ᵀA(w−c), A of condition 10, the minimum c in sight of every radius and noise."""
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]
    A = turn @ torch.diag(torch.linspace(0.3, 3, 6)) @ turn.T
    centre = torch.linspace(-1, 1, 6)
    weight = nn.Parameter(torch.zeros(6))
    optimizer = MAKE[name]([weight])
    rates = scheduler(optimizer, "cosine", 300)
    closure = make_closure(optimizer, lambda: (weight - centre) @ A @ (weight - centre) / 2)
    first = closure().item()
    for _ in range(300):
        optimizer.step(closure)
        rates.step()
    assert closure().item() < 1e-3 * first
    assert torch.allclose(weight, centre, atol=0.05)


@every_optimizer
def test_micro_batches_in_the_closure_equal_the_whole_batch(task, name):
    ours, theirs = task.net(torch.float64), task.net(torch.float64)
    optimizer, other = MAKE[name](ours.parameters()), MAKE[name](theirs.parameters())

    def closure():
        optimizer.zero_grad()
        total = torch.zeros(())
        for rows in torch.arange(40).split(10):
            output = ours(task.x[rows].double())
            loss = nn.functional.cross_entropy(output.float(), task.y[rows]) / 4
            loss.backward()
            total += loss.detach()
        return total

    for _ in range(5):
        optimizer.step(closure)
    train(task, theirs, other, 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@every_optimizer
def test_a_compiled_model_takes_the_same_path(task, name):
    ours, theirs = task.net(), task.net()
    optimizer, other = MAKE[name](ours.parameters()), MAKE[name](theirs.parameters())
    compiled = torch.compile(ours, backend="eager")
    losses = train(task, ours, optimizer, 4, net=compiled)
    assert losses == pytest.approx(train(task, theirs, other, 4), rel=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_a_compiled_step_takes_the_eager_path(task, name):
    eager, compiled = task.net(), task.net()
    optimizer, other = MAKE[name](eager.parameters()), MAKE[name](compiled.parameters())
    closure = task.closure(compiled, other, task.x, task.y)
    step = torch.compile(lambda: other.step(closure), backend="eager")
    train(task, eager, optimizer, 4)
    for _ in range(4):
        step()
    assert same(values(eager), values(compiled))


@pytest.mark.parametrize("name", OURS)
def test_autocast_sees_every_perturbed_weight(task, name):
    """It keeps what it has cast; without that memory it cannot be wrong."""
    losses = []
    for cached in (True, False):
        model = task.net()
        optimizer = MAKE[name](model.parameters())
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            losses.append(train(task, model, optimizer, 6))
            losses[-1].append(model(task.x).sum().item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("wrap", [lambda x: (x, 1), lambda x: {"loss": x}, lambda x: x * torch.ones(3)])
def test_a_closure_may_return_anything(task, name, wrap):
    model, plain = task.net(), task.net()
    optimizer, other = MAKE[name](model.parameters()), MAKE[name](plain.parameters())
    inner = task.closure(model, optimizer, task.x, task.y)
    found = [optimizer.step(lambda: wrap(inner().detach())) for _ in range(2)]
    assert type(found[1]) is type(wrap(torch.ones(())))
    train(task, plain, other, 2)
    assert same(values(model), values(plain))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", OURS)
def test_zero_redundancy_is_refused_as_it_hides_weights_from_a_rank(task, name):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kinds = {"ivon": IVON, "sam": SAM, "bsam": BSAM}
    settings = {"lr": 0.1} | ({} if name == "sam" else {"ess": 40})
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match=r"ZeroRedundancyOptimizer\("):
            ZeroRedundancyOptimizer(task.net().parameters(), kinds[name.split(" ")[0]], **settings)
    finally:
        torch.distributed.destroy_process_group()


# ---- what they keep ----


@every_optimizer
def test_n_steps_save_load_n_steps_equal_2n_steps_bit_for_bit(task, name):
    straight, first, second = task.net(), task.net(), task.net(seed=9)
    whole = MAKE[name](straight.parameters())
    train(task, straight, whole, 10)
    half = MAKE[name](first.parameters())
    train(task, first, half, 5)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": half.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.load_state_dict(saved["model"])
    other = MAKE[name](second.parameters(), lr=0.7)  # replaced by what was saved
    other.load_state_dict(saved["optimizer"])
    train(task, second, other, 5)
    assert same(values(straight), values(second))


@every_optimizer
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_goes_on_as_the_original_would(task, name, copied):
    model = task.net()
    optimizer = MAKE[name](model.parameters())
    train(task, model, optimizer, 3)
    twin, twin_optimizer = COPIES[copied]((model, optimizer))
    assert train(task, model, optimizer, 3) == train(task, twin, twin_optimizer, 3)
    assert same(values(model), values(twin))


@every_optimizer
@pytest.mark.parametrize("copied", ["not at all", *COPIES])
def test_state_loads_again_and_again(task, name, copied):
    model = task.net()
    optimizer = MAKE[name](model.parameters())
    train(task, model, optimizer, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    if copied in COPIES:
        model, optimizer = COPIES[copied]((model, optimizer))
    losses = []
    for _ in range(3):
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        losses.append(train(task, model, optimizer, 2))
    assert losses[0] == losses[1] == losses[2]


@every_optimizer
def test_distributed_checkpoints_carry_the_state_into_a_fresh_optimizer(task, name):
    model, fresh = task.net(), task.net(seed=5)
    optimizer, other = MAKE[name](model.parameters()), MAKE[name](fresh.parameters())
    train(task, model, optimizer, 3)
    weights, state = copy.deepcopy(get_state_dict(model, optimizer))
    set_state_dict(fresh, other, model_state_dict=weights, optim_state_dict=state)
    assert train(task, model, optimizer, 3) == train(task, fresh, other, 3)


@pytest.mark.parametrize("make", [*map(MAKE.get, OURS), partial(IVON, lr=0.03, ess=40, noise=1.0)])
def test_a_sparse_gradient_is_refused_by_name_and_the_weights_stay(make):
    table = nn.Embedding(5, 2, sparse=True)
    optimizer, before = make(table.named_parameters()), values(table)
    with pytest.raises(InputError, match=r"parameter weight: its gradient is sparse"):
        optimizer.step(lambda: table(torch.tensor([1])).sum().backward())
    assert same(values(table), before)


@pytest.mark.parametrize("name", OURS)
def test_parameters_that_share_elements_are_refused(name):
    base = torch.randn(6, 8)
    row, rows = nn.Parameter(base[2]), nn.Parameter(base[1:4])
    for params, message in (
        ([row, row], r"parameter #0: elements share memory"),
        ([("a", row), ("b", row)], r"parameter a: elements share memory"),
        ([row, rows], r"#\d and #\d: elements share memory"),
        ([nn.Parameter(torch.ones(1, 3).expand(4, 3))], r"#0: elements share memory"),
    ):
        with pytest.raises(InputError, match=message):
            MAKE[name](params)
    optimizer = MAKE[name]([row])
    with pytest.raises(InputError, match="share memory"):
        optimizer.add_param_group({"params": [rows]})
    MAKE[name]([nn.Parameter(base[:3]), nn.Parameter(base[3:])])  # side by side: no element


def test_the_memory_of_many_groups_is_compared_once_and_not_for_every_group(monkeypatch):
    compared = []
    monkeypatch.setattr("bayesmooth.optim.params.find_overlap", lambda tensors: compared.append(len(tensors)) or [])
    optimizer = IVON([{"params": [nn.Parameter(torch.ones(2))]} for _ in range(50)], lr=0.1, ess=40)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert compared == [50, 51]


@pytest.mark.parametrize("name", OURS)
def test_a_closure_that_forgets_its_backward_pass_is_told(task, name):
    model = task.net()
    optimizer, before = MAKE[name](model.parameters()), values(model)
    with pytest.raises(InputError, match=r"no gradient.*call loss\.backward\(\)"):
        optimizer.step(lambda: model(task.x).sum())
    assert same(values(model), before)


@pytest.mark.parametrize("name", ["sam", "bsam"])
def test_a_step_without_a_closure_is_an_error_unless_there_is_nothing_to_lose(task, name):
    model = task.net()
    optimizer, before = MAKE[name](model.parameters()), values(model)
    optimizer.step()  # as checkpointing does to build the state
    nn.functional.cross_entropy(model(task.x), task.y).backward()
    with pytest.raises(InputError, match=r"two points; give step\(closure\)"):
        optimizer.step()
    assert same(values(model), before)


@pytest.mark.parametrize(("name", "call"), [(name, call + 1) for name in MAKE for call in range(CALLS.get(name, 1))])
def test_an_exception_in_the_closure_leaves_the_weights_as_they_were(task, name, call):
    model, calls = task.net(), []
    optimizer = MAKE[name](model.parameters())
    train(task, model, optimizer, 2)
    before = values(model)
    inner = task.closure(model, optimizer, task.x, task.y)

    def closure():
        calls.append(inner())
        if len(calls) == call:
            raise MemoryError
        return calls[-1]

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    assert same(values(model), before)
    assert len(calls) == call
    train(task, model, optimizer, 1)  # and training goes on


@every_optimizer
def test_frozen_and_gradientless_parameters_are_never_touched(task, name):
    model = task.net()
    model[0].bias.requires_grad_(False)
    unused = nn.Parameter(torch.full((3,), 7.0))
    optimizer = MAKE[name]([*model.parameters(), unused])
    before = model[0].bias.detach().clone()
    train(task, model, optimizer, 3)
    assert torch.equal(model[0].bias, before)
    assert torch.equal(unused, torch.full((3,), 7.0))
    model[0].bias.requires_grad_(True)  # thawed, it learns
    train(task, model, optimizer, 3)
    assert not torch.equal(model[0].bias, before)


@every_optimizer
def test_storage_and_strides_are_the_callers(name):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 2))
    net = net.to(memory_format=torch.channels_last)
    places = [(p.data_ptr(), p.stride()) for p in net.parameters()]
    optimizer = MAKE[name](net.parameters())
    inputs = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    closure = make_closure(optimizer, lambda: net(inputs).square().mean())
    for _ in range(2):
        optimizer.step(closure)
    assert [(p.data_ptr(), p.stride()) for p in net.parameters()] == places
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


@every_optimizer
def test_the_global_generator_is_untouched(task, name):
    model = task.net()
    before = torch.get_rng_state()
    train(task, model, MAKE[name](model.parameters()), 2)
    assert torch.equal(torch.get_rng_state(), before)


# ---- groups and schedules ----


@every_optimizer
def test_a_scheduler_rules_the_rate(task, name):
    model = task.net()
    optimizer = MAKE[name](model.parameters())
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.0)
    for moving in (True, True, False):
        before = values(model)
        train(task, model, optimizer, 1)
        rates.step()
        assert same(values(model), before) is not moving


CYCLES = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=10),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


@every_optimizer
@pytest.mark.parametrize("kind", CYCLES)
def test_schedulers_that_cycle_the_momentum_work_with_their_defaults(task, name, kind):
    steady, cycled = task.net(), task.net()
    optimizer, other = MAKE[name](steady.parameters()), MAKE[name](cycled.parameters())
    rates = CYCLES[kind](other)
    for _ in range(6):
        for group, same_rate in zip(optimizer.param_groups, other.param_groups, strict=True):
            group["lr"] = same_rate["lr"]
        train(task, steady, optimizer, 1)
        train(task, cycled, other, 1)
        rates.step()
    assert not same(values(steady), values(cycled))  # the momentum did change


@every_optimizer
def test_groups_may_be_added_later_be_empty_and_mix_dtypes(task, name):
    model, shift = task.net(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = MAKE[name]([{"params": list(model.parameters())}, {"params": []}])
    closure = make_closure(optimizer, lambda: nn.functional.cross_entropy(model(task.x) + shift, task.y))
    optimizer.step(closure)
    assert torch.equal(shift, torch.zeros(3))
    optimizer.add_param_group({"params": [shift], "lr": 0.01})
    optimizer.step(closure)
    assert (shift != 0).all()
    assert shift.dtype == torch.float64
    assert [group["lr"] for group in optimizer.param_groups][2] == 0.01
    saved = optimizer.state_dict()
    assert len(saved["param_groups"]) == 3
    assert saved["state"].keys() == set(range(5))
