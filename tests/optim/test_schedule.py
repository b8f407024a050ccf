import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from bayesmooth import IVON
from bayesmooth.calling import recompute_batchnorm
from bayesmooth.errors import InputError
from bayesmooth.models import mlp
from bayesmooth.optim.schedule import SCHEDULES, scheduler
from tests.conftest import make_closure


def sgd(lr=0.2):
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=lr)


def rates(optimizer, schedule, count):
    """The learning rate of each of `count` steps."""
    seen = []
    for _ in range(count):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_cosine_agrees_with_torch_schedulers_step_by_step():
    theirs = sgd()
    warm = LinearLR(theirs, start_factor=0.2, total_iters=5)
    rest = CosineAnnealingLR(theirs, T_max=35)
    expected = rates(theirs, SequentialLR(theirs, [warm, rest], milestones=[5]), 40)
    ours = sgd()
    assert rates(ours, scheduler(ours, "cosine", 40, warmup=5 / 40), 40) == pytest.approx(expected)


def test_every_group_keeps_its_own_rate_and_the_end_holds():
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)])
    schedule = scheduler(optimizer, "steps", 4)
    rates(optimizer, schedule, 9)
    assert schedule.get_last_lr() == pytest.approx([0.01, 0.001])
    optimizer = sgd()
    assert rates(optimizer, scheduler(optimizer, "cosine", 4), 9)[4:] == [0] * 5


def test_a_resumed_schedule_goes_on_where_it_stopped():
    straight = sgd()
    expected = rates(straight, scheduler(straight, "cosine", 20, warmup=0.2), 20)
    first, second = sgd(), sgd()
    before = scheduler(first, "cosine", 20, warmup=0.2)
    seen = rates(first, before, 8)
    after = scheduler(second, "cosine", 20, warmup=0.2)
    after.load_state_dict(before.state_dict())
    second.load_state_dict(first.state_dict())
    assert seen + rates(second, after, 12) == expected


@pytest.mark.parametrize(
    ("name", "total", "options", "message"),
    [
        ("cosin", 5, {}, "schedule='cosin'"),
        ("cosine", 0, {}, "total_steps=0"),
        ("cosine", 5, {"warmup": 5}, "warmup=5"),
        ("steps", 5, {"milestones": [100]}, "milestones"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong(name, total, options, message):
    with pytest.raises(InputError, match=message):
        scheduler(sgd(), name, total, **options)
    assert set(SCHEDULES) == {"constant", "cosine", "steps"}


PASSES, LENGTH = 25, 100
INPUTS = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
BATCHES = list(zip(INPUTS.split(10), (torch.arange(40) % 2).split(10), strict=True))


def train_short(make_schedule, finish=lambda model: None):
    """Some passes over four batches; the model and its schedule."""
    model = mlp(2, input_shape=(64,), hidden=(8,), batchnorm=True)
    optimizer = IVON(model.parameters(), lr=0.1, ess=40, steps=LENGTH, seed=0)
    schedule = make_schedule(optimizer, model)
    for _ in range(PASSES):
        for inputs, labels in BATCHES:
            optimizer.step(make_closure(optimizer, lambda x=inputs, y=labels: nn.functional.cross_entropy(model(x), y)))
            schedule.step()
    finish(model)
    return model.eval(), schedule


def test_the_schedule_of_a_run_is_the_cosine_and_then_batch_norm_at_the_mean():
    short, schedule = train_short(lambda optimizer, model: optimizer.schedule(model, BATCHES, warmup=0))
    long, _ = train_short(
        lambda optimizer, model: scheduler(optimizer, "cosine", LENGTH),
        lambda model: recompute_batchnorm(model, BATCHES),
    )
    for name, value in long.state_dict().items():
        assert torch.equal(short.state_dict()[name], value), name
    assert schedule.get_last_lr() == [0]
    assert {"finish", "optimizer"}.isdisjoint(schedule.state_dict())


def test_a_rate_that_never_falls_is_told_at_the_last_step_with_the_lines_that_are_missing():
    with pytest.warns(UserWarning, match=r"schedule = optimizer\.schedule\(model, loader\)"):
        train_short(lambda optimizer, model: scheduler(optimizer, "constant", LENGTH))


def test_a_schedule_needs_the_length_of_the_run_and_the_loader():
    weights = [nn.Parameter(torch.ones(3, 3))]
    with pytest.raises(InputError, match="without steps"):
        IVON(weights, lr=0.1, ess=10).schedule()
    for batches in (None, iter(BATCHES)):
        with pytest.raises(InputError, match="give the training loader"):
            IVON(weights, lr=0.1, ess=10, steps=5).schedule(nn.Linear(1, 1), batches)


@pytest.mark.parametrize("learns", [True, False])
def test_a_loop_of_ones_own_is_told_after_a_third_if_nothing_is_learned(learns):
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    labels[::30] = -100  # ignored by the loss
    batches = list(zip(inputs.split(60), labels.split(60), strict=True))
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = IVON.auto(model, batches, epochs=30, lr=0.1 if learns else 1e-9)
    schedule = optimizer.schedule(model, batches)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(150):
            x, y = batches[step % 10]
            optimizer.step(make_closure(optimizer, lambda x=x, y=y: nn.functional.cross_entropy(model(x), y)))
            schedule.step()
    assert any("nothing is learned" in str(w.message) for w in told) != learns
