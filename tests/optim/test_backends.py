"""C kernels, compiled torch and plain torch take the reference's steps from the same noise."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bayesmooth.models import MODELS
from bayesmooth.optim import EVON, IVON, backends
from bayesmooth.optim.reference import ReferenceIVON
from bayesmooth.randomness import name_elements, round_randomly

OPTIONS = [
    {},
    {"hess_approx": "gradsq"},
    {"clip_radius": 0.1, "debias": False},
    {"mc_samples": 2, "antithetic": True},
    {"mc_samples": 3, "hess_approx": "gradsq"},
    {"rescale_lr": False, "weight_decay": 0.0, "beta1": 0.0},
]
GROUPS = [
    {"weight_decay": 0.1},
    {"weight_decay": 0.0},
    {"beta1": 0.5, "beta2": 0.7, "ess": 300.0},
    {"beta1": 0.2, "beta2": 0.99, "clip_radius": 0.01},
    {"hess_approx": "gradsq", "debias": False},
]
BACKENDS = {"kernels": True, "torch": False, "compiled": "compile"}


def trained(task, fused, steps=3, dtype=torch.float32, **options):
    model = task.net(dtype)
    optimizer = IVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, fused=fused, **options)
    for _ in range(steps):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    return [t for p in model.parameters() for t in (p.detach(), optimizer.state[p]["hess"])]


def trained_by_the_reference(task, dtype=torch.float32, steps=3, **options):
    model = task.net(dtype)
    optimizer = ReferenceIVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, **options)
    closure = task.closure(model, model, task.x, task.y)  # the model clears the gradients
    for _ in range(steps):
        optimizer.step(closure)
    return [
        t for p, h in zip(optimizer.params, optimizer.hess, strict=True) for t in (p.detach(), h)
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_a_backend_takes_the_steps_of_the_reference(task, backend, options):
    expected = trained_by_the_reference(task, **options)
    for ours, plain in zip(trained(task, BACKENDS[backend], **options), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor, about torch's own parts
def test_compiled_by_inductor_they_are_the_same_steps(task, monkeypatch):
    monkeypatch.setattr(backends.Compiled, "works", True)
    for ours, plain in zip(trained(task, "compile"), trained_by_the_reference(task), strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)
    assert backends.Compiled.works  # it did not fall back


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor, about torch's own parts
def test_compiled_every_group_has_its_own_numbers(task, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()

    def train(fused):
        params = [nn.Parameter(torch.linspace(-1, 1, 1000)) for _ in GROUPS]
        groups = [{"params": [p], **own} for p, own in zip(params, GROUPS, strict=True)]
        optimizer = IVON(groups, 0.1, 40, beta2=0.9, seed=3, fused=fused)
        for step in range(3):
            with optimizer.sampled_params(train=True):
                for p in params:
                    p.grad = 0.1 * p.detach()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["beta1"] = 0.5 + 0.1 * step
        return params

    for ours, plain in zip(train("compile"), train(False), strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_in_float64_the_reference_is_met_to_rounding(task, options):
    model = task.net(torch.float64)
    optimizer = IVON(model.parameters(), 0.1, 40, beta2=0.9, seed=3, **options)
    for _ in range(20):
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    expected = trained_by_the_reference(task, torch.float64, steps=20, **options)
    for ours, plain in zip(model.parameters(), expected[::2], strict=True):
        torch.testing.assert_close(ours.detach(), plain, rtol=1e-10, atol=1e-12)


# ---- a state of 16 bits ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor, about torch's own parts
def test_compiled_it_is_rounded_to_the_same_bits(monkeypatch):
    monkeypatch.setattr(backends.Compiled, "works", True)
    values = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)).unbind()
    names = name_elements(1000, torch.device("cpu"), 0, 5)
    expected, rows = round_randomly(*values, names), [value.clone() for value in values]
    backends.Compiled.compute(round_randomly, rows, *rows, names)
    assert backends.Compiled.works
    for row, value in zip(rows, expected, strict=True):
        assert torch.equal(row, value)


def decayed(optimizer, weight, steps):
    """h where the data say nothing: line 4 with ĥ = 0."""
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step(lambda: None)
    return optimizer.state[weight]["hess"]


@pytest.mark.parametrize("kind", [IVON, EVON])
def test_h_falls_by_less_than_bfloat16_can_tell_and_is_right_on_average(kind, monkeypatch):
    """h·(1 − 10⁻⁵) is h in bfloat16, so to the nearest h would never change."""
    settings = {"ess": 1e6, "beta2": 0.99999, "state_dtype": "bfloat16", "seed": 0}
    exact = (0.99999 + 0.5e-10) ** 300
    weight = nn.Parameter(torch.ones(200, 200))
    h = decayed(kind([weight], 0.1, **settings), weight, 300)
    assert h.dtype == torch.bfloat16
    # a share 300·10⁻⁵·2⁷ of the weights has gone down by 2⁻⁸
    error = (0.003 * 2**-8 / weight.numel()) ** 0.5
    assert abs(float(h.double().mean()) - exact) < 5 * error < 0.1 * (1 - exact)
    monkeypatch.setattr(backends, "round_randomly", lambda g, h, names: (g, h))
    frozen = decayed(kind([weight], 0.1, **settings), weight, 300)
    assert torch.equal(frozen, torch.ones_like(frozen))


@pytest.mark.parametrize("kind", [IVON, EVON])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_of_16_bits_takes_two_sizes_of_the_weights_for_three(task, kind, dtype):
    """Beyond weights, gradients and bases; 16-bit weights have a mean of 32 bits besides."""
    sizes = {}
    for state_dtype in (None, "bfloat16"):
        model = task.net(dtype)
        optimizer = kind(model.parameters(), 0.1, 40, seed=0, state_dtype=state_dtype)
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
        state = [
            optimizer.state[p][key] for p in model.parameters() for key in ("momentum", "hess")
        ]
        tensors = [*state, *optimizer._samples.buffers.values()]
        weights = sum(p.numel() for p in model.parameters())
        sizes[state_dtype] = sum(t.numel() * t.itemsize for t in tensors) / (4 * weights)
        assert optimizer.posterior(model).std["0.weight"].dtype == torch.float32
    assert sizes == {None: 3.0, "bfloat16": 2.0}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_state_of_16_bits_tracks_the_reference(task, options):
    """m after 20 steps: nearer to the reference than a step is long, by far."""
    ours = trained(task, None, steps=20, state_dtype="bfloat16", **options)[::2]
    plain = trained_by_the_reference(task, steps=20, **options)[::2]
    start = [p.detach() for p in task.net().parameters()]
    off = sum(float((a - b).square().sum()) for a, b in zip(ours, plain, strict=True))
    way = sum(float((a - b).square().sum()) for a, b in zip(start, plain, strict=True))
    assert off < 0.03**2 * way


def test_groups_may_differ_in_the_width_of_their_state(task):
    model = task.net()
    groups = [
        {"params": [model[0].weight, model[0].bias], "state_dtype": "bfloat16"},
        {"params": [model[2].weight, model[2].bias]},
    ]
    optimizer = IVON(groups, 0.1, 40, seed=0)
    first, *_, last = [
        optimizer.step(task.closure(model, optimizer, task.x, task.y)).item() for _ in range(50)
    ]
    assert last < first
    widths = [optimizer.state[p]["hess"].dtype for p in model.parameters()]
    assert widths == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert 0 < optimizer.diagnostics()["noise_to_weight"] < 10


@pytest.mark.parametrize("state_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("size", [1, 50, 1 << 24])
def test_chunks_and_slices_do_not_change_the_steps(task, monkeypatch, size, state_dtype):
    settings = {"dtype": torch.float64, "state_dtype": state_dtype}
    expected = trained(task, False, **settings)
    monkeypatch.setattr(backends, "CHUNK_IN_CACHE", size)
    for ours, theirs in zip(trained(task, False, **settings), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_where_nothing_compiles_there_is_one_warning_and_the_same_steps(task, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no compiler\nand a long story")

    monkeypatch.setattr(backends, "compile_lines", lambda lines: fails)
    monkeypatch.setattr(backends.Compiled, "works", True)
    with pytest.warns(UserWarning, match=r"RuntimeError: no compiler\);.*fused=False") as caught:
        ours = trained(task, "compile")
    assert len(caught) == 1
    for compiled, lines in zip(ours, trained(task, False), strict=True):
        assert torch.equal(compiled, lines)


def test_a_step_of_resnet34_is_at_most_100_operator_calls(monkeypatch):
    """As on an accelerator, where calls are what small tensors cost: no call per tensor, 110 of them."""
    monkeypatch.setattr(backends, "CHUNK_IN_CACHE", backends.CHUNK)
    params = [nn.Parameter(torch.ones_like(p)) for p in MODELS["resnet34"](10).parameters()]
    assert len(params) == 110
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    optimizer = IVON(params, 0.1, 5e4, seed=0, fused=False)
    optimizer.step(lambda: None)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        optimizer.step(lambda: None)
    calls = [e for e in seen.events() if e.name.startswith("aten::")]
    issued = [e for e in calls if not (e.cpu_parent and e.cpu_parent.name.startswith("aten::"))]
    assert len(issued) <= 100
