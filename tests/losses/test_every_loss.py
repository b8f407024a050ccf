"""Every loss goes through the same truths; a row in the table of conftest.py brings a new one in."""

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.losses import LOSSES
from bayesmooth.theory.noise import effective_noise

LOG_P = torch.tensor([[0.7, 0.2, 0.1]]).log()
Z = torch.tensor([[2.0, 1.0, 0.0]])
T = [[0.8, 0.2], [0.3, 0.7]]
OF_ONE, FIRST = {"num_examples": 1, "num_classes": 3}, {"index": torch.tensor([0])}
GOLDENS = [
    ("ce", {}, Z, [0], {}, 0.4076060),
    ("ls", {"alpha": 0.1}, Z, [0], {}, 0.5076060),
    ("ls", {"alpha": 0.1, "form": "others"}, Z, [0], {}, 0.5576060),
    ("ols", {"num_classes": 3}, Z, [0], {}, 0.4826060),  # half plain, half "others"
    ("ols", {"num_classes": 3, "init": "zeros"}, Z, [0], {}, 0.2038030),  # half plain
    ("acls", {}, torch.tensor([[12, 0, -1], [3, 11, 0.5]]), [0, 0], {}, 4.2833107),
    ("self_knowledge", {}, LOG_P, [0], {"past": torch.tensor([[0.5, 0.3, 0.2]])}, 0.5633452),
    ("loras", {"num_classes": 3, "dropout": 0.0}, Z, [0], {}, 0.5373805),  # V = 1/3
    ("als", {"weight": 1.0}, LOG_P, [1], {}, 1.6594379),  # 0.05 above cross-entropy
    ("confidence_penalty", {"beta": 0.1}, LOG_P, [0], {}, 0.2764931),
    ("confidence_penalty", {"beta": 0.1, "threshold": 1.0}, LOG_P, [0], {}, 0.3764931),
    ("forward_correction", {"transition": T}, torch.tensor([[0.6, 0.4]]).log(), [1], {}, 0.9162907),
    ("backward_correction", {"transition": T}, torch.tensor([[0.6, 0.4]]).log(), [1], {}, 1.1595698),
    ("gce", {}, LOG_P, [0], {}, 0.3156344),
    ("sce", {}, LOG_P, [0], {}, 1.2356675),
    ("bootstrapping", {}, LOG_P, [1], {}, 1.5690569),
    ("bootstrapping", {"form": "hard"}, LOG_P, [1], {}, 1.3588853),
    ("elr", OF_ONE, LOG_P, [1], FIRST, 1.0792264),  # ⟨p, t⟩ = .3 · .54
    ("sop", OF_ONE, LOG_P, [1], FIRST, 3.6094379),  # cross-entropy, and 2 for a wrong prediction
]


def batch(K, B=6, scale=3.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(K)
    z = scale * torch.randn(B, K, generator=generator, dtype=torch.float64)
    y = torch.where(torch.arange(B) % 2 == 0, z.argmax(1), torch.arange(B) % K)
    return z.to(dtype), y


@pytest.mark.parametrize(("name", "options", "z", "y", "extra", "value"), GOLDENS)
def test_golden_number(name, options, z, y, extra, value):
    loss = LOSSES[name](**options)(z, torch.tensor(y), **extra)
    assert loss.item() == pytest.approx(value, rel=5e-7)


def test_every_method_is_a_case_and_has_a_golden_number(cases):
    assert {case.method for case in cases} == set(LOSSES)
    assert {golden[0] for golden in GOLDENS} == set(LOSSES) - {"alasca"}  # its own file has it


@pytest.mark.parametrize("K", [2, 7, 1000])
def test_noise_of_the_effective_label_is_the_closed_form(case, K):
    z, y = batch(K)
    loss = case.make(K)
    expected = case.noise(loss, z, y).double()
    noise = effective_noise(loss, z, y, **case.prepare(loss, z))
    torch.testing.assert_close(noise, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("K", [2, 1000])
def test_extreme_logits_give_finite_losses_and_gradients(case, K):
    signs = torch.randint(2, (8, K), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    z, y = (1e4 * signs).requires_grad_(), torch.arange(8) % K
    loss = case(case.make(K), z, y)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [2, 1000])
def test_autocast_computes_in_float32(case, K, dtype):
    layer, x = nn.Linear(8, K), 30 * torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    nn.init.uniform_(layer.weight, -1, 1, generator=torch.Generator().manual_seed(1))
    y, loss = torch.arange(6) % K, case.make(K, reduction="none")
    twin = copy.deepcopy(loss)
    with torch.autocast("cpu", dtype):
        z = layer(x)
        value = case(loss, z, y)
    value.sum().backward()
    assert z.dtype == dtype
    assert value.dtype == torch.float32
    assert layer.weight.grad.isfinite().all()
    # Its heads are layers: they do run in half.
    tolerance = 0.1 if case.method == "alasca" else 1e-5
    torch.testing.assert_close(value, case(twin, z.float(), y), rtol=tolerance, atol=1e-5)


def test_reductions_agree(case):
    z, y = batch(5)
    none, total, mean = (case(case.make(5, reduction=r), z, y) for r in ("none", "sum", "mean"))
    assert none.shape == (6,)
    torch.testing.assert_close(none.sum(), total)
    torch.testing.assert_close(none.mean(), mean)


def test_unknown_reduction_is_refused():
    with pytest.raises(InputError, match=r"reduction='max': must be one of 'mean', 'sum', 'none'"):
        LOSSES["ce"](reduction="max")


def test_state_survives_saving_in_the_middle_of_an_epoch(case):
    batches = [batch(4, B) for B in (5, 6, 7)]
    straight, before = case.make(4), case.make(4)
    case(straight, *batches[0])
    case(before, *batches[0])
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    resumed = case.make(4)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for loss in (straight, resumed):
        case(loss, *batches[1])
        loss.end_epoch()
    torch.testing.assert_close(case(resumed, *batches[2]), case(straight, *batches[2]), rtol=0, atol=0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_behave_alike(case, duplicate):
    z, y = batch(4, dtype=torch.float32)
    loss = case.make(4)
    case.prepare(loss, z)  # a copy in the middle of a step
    twin = duplicate(loss)
    torch.testing.assert_close(case(twin, z, y), case(loss, z, y), rtol=0, atol=0)


def test_extras_of_other_methods_are_ignored(case):
    z, y = batch(4)
    extra = {"index": torch.arange(6), "past": z.softmax(1), "epoch": 1.0, "weather": "fine"}
    with_extras, without = case.make(4), case.make(4)
    given = {**extra, **case.prepare(with_extras, z)}
    torch.testing.assert_close(with_extras(z, y, **given), case(without, z, y))
    assert with_extras.needs <= extra.keys()


def test_integer_labels_of_any_width_mean_the_same(case):
    z, y = batch(4)
    expected = case(case.make(4), z, y)
    for dtype in (torch.int32, torch.uint8):
        loss = case.make(4)
        extra = case.prepare(loss, z)
        if "index" in extra:
            extra["index"] = extra["index"].to(dtype)
        torch.testing.assert_close(loss(z, y.to(dtype), **extra), expected)


def test_global_generator_is_untouched(case):
    loss, (z, y) = case.make(4), batch(4)
    extra = case.prepare(loss, z)
    before = torch.get_rng_state()
    LOSSES[case.method](**case.options(4))
    loss(z, y, **extra)
    loss.end_epoch()
    assert before.equal(torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_loss_is_the_loss(case):
    z, y = batch(4, dtype=torch.float32)
    loss, twin = case.make(4), case.make(4)
    extra = case.prepare(twin, z)
    compiled = torch.compile(twin, backend="eager")
    z1, z2 = z.clone().requires_grad_(), z.clone().requires_grad_()
    case(loss, z1, y).backward()
    compiled(z2, y, **extra).backward()
    torch.testing.assert_close(z1.grad, z2.grad)


z, y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
BAD_INPUTS = {
    "label too large": (z, torch.tensor([0, 1, 3, 0]), r"label 3: must be in 0…2; drop ignored"),
    "ignored label": (z, torch.tensor([0, -100, 2, 0]), r"label -100: must be in 0…2"),
    "float labels": (z, y.float(), r"labels of torch.float32: must be integer .* use labels.long"),
    "boolean labels": (z, y.bool(), r"labels of torch.bool: must be integer"),
    "one-hot labels": (z, torch.eye(3).long()[y], r"labels of shape \(4, 3\) .* one label per row"),
    "too few labels": (z, y[:2], r"labels of shape \(2,\) for logits of shape \(4, 3\): must be one"),
    "flat logits": (z[0], y, r"logits of shape \(3,\) .* must be \(batch, classes\)"),
    "images of logits": (z[None], y[None], r"logits of shape \(1, 4, 3\) .* flatten"),
    "integer logits": (z.long(), y, r"torch.int64: must be \(batch, classes\), floating"),
    "empty batch": (z[:0], y[:0], r"logits of shape \(0, 3\) .* with at least 1 row"),
    "one class": (z[:, :1], 0 * y, r"logits of shape \(4, 1\) .* for one logit f pass the pair"),
}


@pytest.mark.parametrize("problem", BAD_INPUTS)
def test_bad_input_is_refused_with_value_rule_and_way_out(problem):
    z, y, message = BAD_INPUTS[problem]
    loss = LOSSES["ols"](num_classes=3)
    with pytest.raises(InputError, match=message):
        loss(z, y)
    assert not loss.counts.any()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, r"index of None for 6 examples: \w+ needs one per example; pass index="),
        (torch.arange(2), r"index of shape \(2,\) and torch.int64"),
        (torch.arange(6.0), r"index of shape \(6,\) and torch.float32"),
        (torch.arange(6) + 59, r"index 64: must be in 0…63; build the loss with num_examples="),
    ],
)
@pytest.mark.parametrize("method", ["alasca", "elr", "sop"])
def test_positions_must_be_given_and_known(cases, method, index, message):
    case = next(case for case in cases if case.method == method)
    loss, (z, y) = case.make(4), batch(4)
    before = copy.deepcopy(loss.state_dict())
    with pytest.raises(InputError, match=message):
        loss(z, y, **case.prepare(loss, z) | {"index": index})
    torch.testing.assert_close(loss.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "method", ["ols", "alasca", "loras", "forward_correction", "backward_correction", "elr", "sop"]
)
def test_a_loss_built_for_other_classes_refuses(cases, method):
    case = next(case for case in cases if case.method == method)
    with pytest.raises(InputError, match=r"logits of 5 classes: \w+ was built for 4; build it"):
        case.make(4)(torch.zeros(2, 5), torch.tensor([0, 1]))


def test_mixed_inputs_have_both_labels_in_their_shares(case):
    z, y = batch(4)
    partner = torch.tensor([3, 1, 5, 0, 2, 4])
    mixed, apart = case.make(4, reduction="none"), case.make(4, reduction="none")
    loss = mixed(z, y, partner=partner, share=0.7, **case.prepare(mixed, z))
    extra = case.prepare(apart, z)
    own = apart(z, y, **extra)
    if "index" in extra:
        extra["index"] = extra["index"][partner]
    torch.testing.assert_close(loss, 0.7 * own + 0.3 * apart(z, y[partner], **extra))


def test_nothing_is_read_from_the_device_in_a_step(case, monkeypatch):
    """Tensors of the device `meta` have no values: whoever looks at one gets an error."""
    if case.method == "alasca":
        pytest.skip("its features come from a model, which would have to lie there too")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device
    z, y = batch(5, dtype=torch.float32)
    loss = case.make(5)
    extra = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in case.prepare(loss, z).items()}
    loss = loss.to("meta")
    z = z.to("meta").requires_grad_()
    loss(z, y.to("meta"), **extra).backward()
    assert z.grad.shape == z.shape
