"""What IVON must survive: each test is a way in which variational optimizers have broken for their users."""

import numpy as np
import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.optim import IVON
from tests.conftest import weights_of

F = nn.functional


def train(task, optimizer, model, steps):
    closure = task.closure(model, optimizer, task.x, task.y)
    return [float(optimizer.step(closure)) for _ in range(steps)]


# ---- resume ----


def test_evaluation_draws_do_not_disturb_training_and_are_counted_in_the_state(task):
    quiet, busy = task.net(), task.net()
    one, two = (IVON(m.parameters(), 0.1, 40, seed=3) for m in (quiet, busy))
    train(task, one, quiet, 2)
    train(task, two, busy, 1)
    draws = []
    for _ in range(2):
        with two.sampled_params():
            draws.append(weights_of(busy))
    train(task, two, busy, 1)
    assert torch.equal(weights_of(quiet), weights_of(busy))
    assert not torch.equal(*draws)
    assert two.state_dict()["param_groups"][0]["draws"] == 2


# ---- the sampling context ----


def test_an_exception_inside_the_context_brings_the_mean_back(task):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=3)
    mean = weights_of(model)

    def fails():
        with optimizer.sampled_params(train=True):
            assert not torch.equal(weights_of(model), mean)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(weights_of(model), mean)
    train(task, optimizer, model, 1)  # and the optimizer goes on


def test_step_with_a_closure_equals_the_context_by_hand(task):
    one, two, nested = task.net(), task.net(), task.net()
    a, b, c = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (one, two, nested))
    closure, by_hand = task.closure(one, a, task.x, task.y), task.closure(two, b, task.x, task.y)
    inner = task.closure(nested, c, task.x, task.y)

    def enters_the_context_itself():
        with c.sampled_params(train=True):
            return inner()

    for _ in range(5):
        a.step(closure)
        with b.sampled_params(train=True):
            by_hand()
        b.step()
        c.step(enters_the_context_itself)
    assert torch.equal(weights_of(one), weights_of(two))
    assert torch.equal(weights_of(one), weights_of(nested))


def test_gradients_taken_at_the_mean_are_refused(task):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=3)
    F.cross_entropy(model(task.x), task.y).backward()
    with pytest.raises(InputError, match=r"no sample.*sampled_params"):
        optimizer.step()


def test_backward_after_the_context_is_noticed(task):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=3)
    with optimizer.sampled_params(train=True):
        loss = F.cross_entropy(model(task.x), task.y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- parameters that take no part ----


def test_a_parameter_without_a_gradient_stays_at_its_mean(task):
    model = task.net()
    idle = nn.Parameter(torch.ones(7))
    optimizer = IVON([*model.parameters(), idle], 0.1, 40, weight_decay=0.1, seed=3)
    train(task, optimizer, model, 3)
    assert torch.equal(idle, torch.ones(7))
    with optimizer.sampled_params(train=True):
        assert 0 < (idle - 1).abs().max() < 6 * (40 * 1.1) ** -0.5  # perturbed once, not thrice
    assert torch.equal(idle, torch.ones(7))


# ---- mixed precision ----


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("approx", ["price", "gradsq"])
def test_gradscaler_gives_the_unscaled_trajectory_also_over_skipped_steps(task, unscale, samples, approx, fused):
    plain, scaled = task.net(), task.net()
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, hess_approx=approx, seed=3, fused=fused) for m in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(6):
        overflow = step == 2  # this step is skipped: the plain run never has it
        for model, optimizer in ((plain, a), (scaled, b)):
            if overflow and optimizer is a:
                continue
            for sample in range(samples):
                with optimizer.sampled_params(train=True):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(task.x), task.y)
                    if optimizer is b:
                        loss = scaler.scale(loss) * (float("inf") if overflow and not sample else 1.0)
                    loss.backward()
            if optimizer is a:
                optimizer.step()
                continue
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update(1024.0)
    assert torch.allclose(weights_of(plain), weights_of(scaled), rtol=0, atol=2e-6)
    assert b.state[scaled[0].weight]["step"] == 5


def test_a_closure_is_refused_where_gradscaler_would_not_see_its_gradients(task):
    plain, scaled = task.net(), task.net()
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def closure():
        b.zero_grad()
        loss = F.cross_entropy(scaled(task.x), task.y)
        scaler.scale(loss).backward()
        return loss

    def step_in_a_context():
        with b.sampled_params(train=True):
            closure()
        scaler.step(b)
        scaler.update()

    step_in_a_context()
    with pytest.raises(InputError, match=r"with a GradScaler.*then call scaler\.step\(optimizer\)"):
        scaler.step(b, closure)
    step_in_a_context()
    train(task, a, plain, 2)
    assert torch.allclose(weights_of(plain), weights_of(scaled), rtol=0, atol=2e-6)


def test_the_clipped_gradient_is_the_one_used(task):
    after, inside = task.net(), task.net()
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (after, inside))
    closure = task.closure(inside, b, task.x, task.y)

    def clipping():
        loss = closure()
        nn.utils.clip_grad_norm_(inside.parameters(), 0.01)
        return loss

    unclipped = task.net()
    train(task, IVON(unclipped.parameters(), 0.1, 40, beta2=0.9, seed=3), unclipped, 4)
    for _ in range(4):
        with a.sampled_params(train=True):
            task.closure(after, a, task.x, task.y)()
        nn.utils.clip_grad_norm_(after.parameters(), 0.01)
        a.step()
        b.step(clipping)
    assert torch.equal(weights_of(after), weights_of(inside))
    assert not torch.allclose(weights_of(after), weights_of(unclipped), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_parameters_track_float32(task, dtype):
    wide, narrow = task.net(), task.net()
    narrow.to(dtype)
    wide.load_state_dict({k: v.float() for k, v in narrow.state_dict().items()})
    a, b = (IVON(m.parameters(), 0.02, 400, beta2=0.99, seed=3) for m in (wide, narrow))
    train(task, a, wide, 60)
    train(task, b, narrow, 60)
    start = weights_of(task.net().to(dtype)).float()
    moved = (weights_of(wide) - start).norm()
    assert (weights_of(narrow).float() - weights_of(wide)).norm() < 0.1 * moved
    hess = b.state[narrow[0].weight]["hess"]
    assert hess.dtype == torch.float32
    assert (hess - a.state[wide[0].weight]["hess"]).norm() < 0.3 * (hess - 1).norm()


def test_a_sixteen_bit_parameter_that_somebody_sets_is_believed(task):
    model = task.net(torch.bfloat16)
    optimizer = IVON(model.parameters(), 0.0, 1e8, seed=3)
    train(task, optimizer, model, 1)
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    train(task, optimizer, model, 1)
    assert (model[0].weight == 3.0).all()


# ---- accumulation and samples ----


def test_micro_batches_over_contexts_of_the_same_sample_equal_the_joined_batch(task):
    joined, split = task.net(torch.float64), task.net(torch.float64)
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (joined, split))
    x = task.x.double()
    closure = task.closure(joined, a, x, task.y)
    for _ in range(5):
        a.step(closure)
        b.zero_grad()
        for part in range(4):
            rows = slice(10 * part, 10 * part + 10)
            with b.sampled_params(train=True, fresh=part == 0):
                (F.cross_entropy(split(x[rows]), task.y[rows]) / 4).backward()
        b.step()
    assert torch.allclose(weights_of(joined), weights_of(split), rtol=1e-10)


@pytest.mark.parametrize("zero", ["inside", "between", "model", "never"])
def test_several_contexts_are_averaged_wherever_gradients_are_cleared(task, zero):
    by_step, by_hand = task.net(torch.float64), task.net(torch.float64)
    a = IVON(by_step.parameters(), 0.1, 40, beta2=0.9, mc_samples=3, seed=3)
    b = IVON(by_hand.parameters(), 0.1, 40, beta2=0.9, seed=3)
    x = task.x.double()
    closure = task.closure(by_step, a, x, task.y)
    for _ in range(4):
        a.step(closure)
        b.zero_grad()
        for _ in range(3):
            if zero == "between":
                b.zero_grad()
            if zero == "model":
                by_hand.zero_grad()
            with b.sampled_params(train=True):
                if zero == "inside":
                    b.zero_grad()
                F.cross_entropy(by_hand(x), task.y).backward()
        b.step()
    assert torch.allclose(weights_of(by_step), weights_of(by_hand), rtol=1e-9)


# ---- the caller's tensors ----


def test_gradients_of_another_layout_and_views_as_parameters_work():
    base = torch.randn(6, 8)
    param = nn.Parameter(base[:, ::2])  # not dense
    transposed = nn.Parameter(torch.randn(4, 5))
    optimizer = IVON([param, transposed], 0.1, 40, seed=3)
    with optimizer.sampled_params(train=True):
        param.square().sum().backward()
        transposed.grad = torch.ones(5, 4).T
    before = param.detach().clone()
    optimizer.step()
    assert (param.abs() < before.abs()).float().mean() > 0.5


# ---- refusals ----


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": -1}, r"lr=-1: must be ≥ 0; 0.1"),
        ({"lr": float("inf")}, r"lr=inf: must be ≥ 0"),
        ({"ess": 1e39}, r"ess=1e\+39: must be > 0"),
        ({"ess": 0}, r"ess=0: must be > 0; use the number of training examples"),
        ({"hess_init": 0.0}, r"hess_init=0.0: must be > 0"),
        ({"beta1": 1.0}, r"beta1=1.0: must be in \[0, 1\)"),
        ({"beta2": 1.5}, r"beta2=1.5: must be in \[0, 1\]"),
        ({"weight_decay": -0.1}, r"weight_decay=-0.1: must be ≥ 0"),
        ({"weight_decay": float("nan")}, r"weight_decay=nan: must be ≥ 0"),
        ({"mc_samples": 0}, r"mc_samples=0: must be a whole number ≥ 1"),
        ({"hess_approx": "fisher"}, r"hess_approx='fisher': must be 'price' or 'gradsq'"),
        ({"clip_radius": 0}, r"clip_radius=0: must be > 0"),
        ({"seed": -1}, r"seed=-1: must be a whole number"),
        ({"sync": True}, r"sync=True: must be False; wrap the model in DistributedDataParallel"),
        ({"lr": "fast"}, r"lr='fast': must be ≥ 0"),
        ({"mc_samples": True}, r"mc_samples=True: must be a whole number"),
        ({"beta2": True}, r"beta2=True: must be in"),
        ({"ess": True}, r"ess=True: must be > 0"),
    ],
)
def test_a_bad_argument_is_named_with_its_rule_and_a_way_out(task, wrong, message):
    with pytest.raises(InputError, match=message):
        IVON(task.net().parameters(), **({"lr": 0.1, "ess": 40} | wrong))


def test_numbers_of_numpy_are_plain_ones_in_the_state_which_can_be_loaded_safely(task):
    optimizer = IVON(task.net().parameters(), np.float32(0.5), np.int64(40), mc_samples=np.int64(2))
    group = optimizer.state_dict()["param_groups"][0]
    assert [type(group[name]) for name in ("lr", "ess", "mc_samples")] == [float, int, int]


def test_what_a_step_has_once_is_the_same_in_all_groups(task):
    optimizer = IVON(task.net().parameters(), 0.1, 40)
    with pytest.raises(InputError, match=r"in a group.*same in all"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "mc_samples": 2})
    assert len(optimizer.param_groups) == 1


def test_complex_sparse_and_integer_parameters_are_named():
    for bad, what in (
        (torch.zeros(2, dtype=torch.complex64), "complex"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (torch.zeros(2, dtype=torch.int64), "int64"),
        (torch.zeros(2).to(torch.float8_e4m3fn), "float8"),
    ):
        with pytest.raises(InputError, match=f"parameter odd.*{what}"):
            IVON([("odd", bad)], 0.1, 40)


def test_fused_true_says_why_it_cannot(task):
    model = task.net(torch.float64)
    with pytest.raises(InputError, match=r"fused=True.*float64.*fused=None"):
        train(task, IVON(model.parameters(), 0.1, 40, fused=True), model, 1)


# ---- randomness ----


def test_a_generator_gives_the_seed(task):
    seeds = [
        IVON(task.net().parameters(), 0.1, 40, generator=torch.Generator().manual_seed(n)).param_groups[0]["seed"]
        for n in (1, 1, 2)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    with pytest.raises(InputError, match="only one of them"):
        IVON(task.net().parameters(), 0.1, 40, seed=1, generator=torch.Generator())


# ---- what to look at when it fails ----


def test_the_mean_is_not_to_be_had_where_the_weights_are_a_sample(task):
    model = task.net()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=0)
    saved = optimizer.state_dict()
    for asked in (lambda: optimizer.posterior(model), optimizer.diagnostics, lambda: optimizer.load_state_dict(saved)):
        with optimizer.sampled_params(), pytest.raises(InputError, match="call it outside"):
            asked()


# ---- gradients from elsewhere ----


def accumulated(task, optimizer, model, parts=4):
    """As frameworks do it: the closure without the step, then the step with a closure that does not clear."""
    size = len(task.x) // parts
    for part in range(parts):
        rows = slice(size * part, size * (part + 1))

        def closure(rows=rows, first=part == 0):
            if first:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(task.x[rows]), task.y[rows]) / parts
            loss.backward()
            return loss

        yield closure


def test_gradients_at_the_mean_are_not_mixed_with_gradients_at_a_sample(task):
    model = task.net()
    optimizer, mean = IVON(model.parameters(), 0.1, 40, seed=3), weights_of(model)
    *early, last = accumulated(task, optimizer, model)
    for closure in early:
        closure()
    with pytest.raises(InputError, match=r"added to gradients from before.*fresh=False"):
        optimizer.step(last)
    assert torch.equal(weights_of(model), mean)
    model.zero_grad()
    F.cross_entropy(model(task.x), task.y).backward()
    with pytest.raises(InputError, match="added to gradients"), optimizer.sampled_params(train=True):
        F.cross_entropy(model(task.x), task.y).backward()
    assert torch.equal(weights_of(model), mean)


@pytest.mark.parametrize("clear", ["optimizer", "model", "before"])
def test_stale_gradients_that_are_cleared_disturb_nobody(task, clear):
    model, twin = task.net(), task.net()
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (model, twin))

    def closure():
        if clear != "before":
            {"optimizer": a, "model": model}[clear].zero_grad()
        loss = F.cross_entropy(model(task.x), task.y)
        loss.backward()
        return loss

    for _ in range(3):
        F.cross_entropy(model(task.x), task.y).backward()  # at the mean
        if clear == "before":
            a.zero_grad(set_to_none=False)
        a.step(closure)
    train(task, b, twin, 3)
    assert torch.equal(weights_of(model), weights_of(twin))


def test_step_inside_a_context_takes_its_sample(task):
    model, twin = task.net(), task.net()
    a, b = (IVON(m.parameters(), 0.1, 40, beta2=0.9, seed=3) for m in (model, twin))
    for _ in range(2):
        with a.sampled_params(train=True):
            task.closure(model, a, task.x, task.y)()
            a.step()
    train(task, b, twin, 2)
    assert torch.equal(weights_of(model), weights_of(twin))
    with pytest.raises(InputError, match="call it outside"), a.sampled_params():
        a.step(task.closure(model, a, task.x, task.y))
    several = IVON(task.net().parameters(), 0.1, 40, mc_samples=2)
    with pytest.raises(InputError, match="not mc_samples=2"), several.sampled_params(train=True):
        several.step(lambda: None)
    assert torch.equal(weights_of(model), weights_of(twin))


# ---- other memory ----


REPLACEMENTS = {
    "p.data": lambda model: setattr(model[0].weight, "data", model[0].weight.data.clone()),
    "double": lambda model: model.double(),
    "half": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("fused", [None, False])
def test_the_mean_comes_back_into_memory_that_was_replaced_inside_a_context(task, how, fused):
    model = task.net()
    optimizer, mean = IVON(model.parameters(), 0.1, 40, seed=3, fused=fused), weights_of(model)
    with optimizer.sampled_params():
        REPLACEMENTS[how](model)
    assert torch.equal(weights_of(model), mean.to(model[0].weight.dtype))
    model.float()


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("fused", [None, False])
def test_a_training_sample_in_replaced_memory_is_refused_and_the_mean_is_back(task, how, fused):
    model = task.net()
    optimizer, mean = IVON(model.parameters(), 0.1, 40, seed=3, fused=fused), weights_of(model)

    def closure():
        REPLACEMENTS[how](model)
        x = task.x.to(model[0].weight.dtype)
        F.cross_entropy(model(x), task.y).backward()

    def by_hand():
        with optimizer.sampled_params(train=True):
            closure()

    for refused in (by_hand, lambda: optimizer.step(closure)):
        optimizer.zero_grad()
        with pytest.raises(InputError, match=r"#0: its data was replaced.*outside"):
            refused()
        assert torch.equal(weights_of(model).float(), mean.to(model[0].weight.dtype).float())
        model.float()
        mean = weights_of(model)
