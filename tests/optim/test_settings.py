"""IVON's settings: the same relative noise whatever the network and the data, and wrong ones are named."""

import itertools
import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from bayesmooth import IVON, randomness
from bayesmooth.errors import InputError
from bayesmooth.models import cnn_batchnorm, mlp, resnet34, resnet_small
from bayesmooth.optim import settings as rules
from bayesmooth.optim.settings import (
    LIMIT,
    MANY_INPUTS,
    STRENGTH,
    TWO_CLASSES,
    WITHOUT_NORMALISATION,
    choose_beta2,
    choose_hess_init,
)

AUTO = {"lr": 0.1, "ess": 1000, "hess_init": "auto", "beta2": 0.99999}
AUTO |= {"weight_decay": 1e-3, "epochs": 10, "seed": 0}


def scaled(model, factor):
    """Another initialisation."""
    for param in model.parameters():
        param.data *= factor
    return model


def drawn_noise(model, **settings):
    """√L · std of the first draw / root mean square of the weights, all matrices together."""
    optimizer = IVON(model.parameters(), **AUTO | settings)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    means = torch.cat([p.detach().flatten().clone() for p in matrices])
    with optimizer.sampled_params():
        draws = torch.cat([p.detach().flatten().clone() for p in matrices])
    return float(
        len(matrices) ** 0.5 * (draws - means).square().mean().sqrt() / means.square().mean().sqrt()
    )


normed = partial(mlp, batchnorm=True)
CHANGES = {
    "nothing": (normed, {}),
    "examples": (normed, {"ess": 50_000}),
    "width": (lambda: normed(hidden=(512, 512)), {}),
    "depth": (lambda: normed(hidden=(64,) * 6), {}),
    "larger weights": (lambda: scaled(normed(), 10), {}),
    "smaller weights": (lambda: scaled(normed(), 0.1), {}),
    "convolutions": (cnn_batchnorm, {"weight_decay": 0.0}),
    "residuals": (resnet_small, {}),
    "slower and longer": (normed, {"lr": 0.05, "epochs": 20}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_relative_noise_is_the_same_whatever_else_changes(change):
    model, settings = CHANGES[change]
    assert drawn_noise(model(), **settings) == pytest.approx(STRENGTH, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "times"), [({"epochs": 2.5}, 0.5), ({"lr": 0.2}, 2**0.5), ({"noise": 1.5}, 1.5)]
)
def test_longer_training_and_larger_steps_get_more_noise(settings, times):
    assert drawn_noise(normed(), **settings) == pytest.approx(times * STRENGTH, rel=0.02)


def test_noise_has_a_limit_beyond_which_nothing_would_be_learned():
    assert drawn_noise(normed(), epochs=10_000) == pytest.approx(LIMIT, rel=0.02)


def test_without_normalisation_there_is_less_noise():
    assert drawn_noise(mlp()) == pytest.approx(WITHOUT_NORMALISATION * STRENGTH, rel=0.02)
    layered = nn.Sequential(nn.Linear(200, 200), nn.LayerNorm(200), nn.Linear(200, 200))
    assert drawn_noise(layered) == pytest.approx(STRENGTH, rel=0.02)


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes_get_more_noise_where_normalisation_bears_it(outputs):
    layers = [nn.Linear(64, 200), nn.LayerNorm(200), nn.Linear(200, 200), nn.Linear(200, outputs)]
    assert drawn_noise(nn.Sequential(*layers)) == pytest.approx(TWO_CLASSES * STRENGTH, rel=0.02)
    del layers[1]
    assert drawn_noise(nn.Sequential(*layers)) == pytest.approx(
        WITHOUT_NORMALISATION * STRENGTH, rel=0.02
    )


@pytest.mark.parametrize("inputs", [1, 4, 15, 16, 17])
def test_few_inputs_get_less_noise(inputs):
    wide = drawn_noise(mlp(input_shape=(64,)), ess=1e6)
    times = min(inputs / MANY_INPUTS, 1) ** 2
    assert drawn_noise(mlp(input_shape=(inputs,)), ess=1e6) == pytest.approx(times * wide, rel=0.02)
    convolution = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 64, 3))
    assert drawn_noise(convolution) == pytest.approx(STRENGTH, rel=0.02)  # its pictures have many


def test_biases_that_are_positive_by_chance_are_no_normalisation():
    """A quarter of all heads for two classes start with two positive biases."""
    model = mlp(num_classes=2)
    model[-1].bias.data = torch.tensor([0.05, 0.01])
    assert drawn_noise(model) == pytest.approx(WITHOUT_NORMALISATION * STRENGTH, rel=0.02)


def test_trained_gains_are_still_normalisation():
    model = normed()
    gains = [m.weight for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    for gain in gains:
        gain.data.uniform_(0.2, 1.5)
    assert drawn_noise(model) == pytest.approx(STRENGTH, rel=0.02)


def test_for_the_papers_run_it_is_of_the_papers_size():
    """ResNet-34, 50,000 images, 200 epochs: the paper's h₀ are 0.2 to 0.9."""
    model = resnet34()
    found = choose_hess_init(model.parameters(), lr=0.2, ess=50_000, weight_decay=1e-3, epochs=200)
    assert 0.2 < found < 0.9


def test_only_matrices_that_pass_a_signal_on_count():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    only = IVON(model.parameters(), **AUTO).param_groups[0]["hess_init"]
    zero, frozen = nn.Linear(8, 50), nn.Linear(8, 50)
    zero.weight.data.zero_()
    frozen.requires_grad_(False)
    more = [
        *model.parameters(),
        *zero.parameters(),
        *frozen.parameters(),
        torch.ones(99, requires_grad=True),
    ]
    assert IVON(more, **AUTO).param_groups[0]["hess_init"] == only


def settings_of(**settings):
    group = IVON(normed().parameters(), lr=0.1, ess=1000, seed=0, **settings).param_groups[0]
    return group["hess_init"], group["beta2"]


def test_a_run_whose_length_is_known_sets_itself_and_any_other_has_the_published_defaults():
    length = {"epochs": 10, "steps": 200}
    auto = settings_of(hess_init="auto", beta2="auto", **length)
    assert settings_of(**length) == auto
    assert settings_of() == (1.0, 0.99999)
    with pytest.warns(UserWarning, match=r"give steps=10 \* len\(loader\)"):
        assert settings_of(epochs=10) == (auto[0], 0.99999)
    assert settings_of(hess_init=0.3, beta2=0.9, **length) == (0.3, 0.9)
    assert settings_of(rescale_lr=False, **length) == (1.0, auto[1])


def test_parameters_may_come_in_any_form():
    model = mlp()
    biases = [p for p in model.parameters() if p.ndim == 1]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    groups = [
        {"params": biases, "weight_decay": 0.0},
        {"params": matrices},
        {"params": torch.zeros(3, requires_grad=True)},
    ]
    forms = [model.parameters(), list(model.parameters()), model.named_parameters(), groups]
    optimizers = [IVON(form, **AUTO) for form in forms]
    found = {group["hess_init"] for each in optimizers for group in each.param_groups}
    assert len(found) == 1
    assert [len(each.param_groups) for each in optimizers] == [1, 1, 1, 3]


def test_auto_is_the_number_it_stands_for(task):
    """Same trajectory, same state: whatever loads or shows a state never meets the word."""
    nets = [task.net() for _ in range(2)]
    automatic = IVON(nets[0].parameters(), **AUTO | {"beta2": "auto", "steps": 40})
    group = automatic.param_groups[0]
    assert group["beta2"] == 0.95
    numbers = {"hess_init": group["hess_init"], "beta2": group["beta2"]}
    plain = IVON(nets[1].parameters(), **AUTO | numbers)
    for model, optimizer in zip(nets, (automatic, plain), strict=True):
        for _ in range(3):
            optimizer.step(task.closure(model, optimizer, task.x, task.y))
    assert all(
        torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    )
    assert automatic.state_dict()["param_groups"] == plain.state_dict()["param_groups"]


def test_beta2_forgets_as_much_as_in_the_paper():
    assert choose_beta2(200_000) == 1 - 1e-5
    assert choose_beta2(1000) ** 1000 == pytest.approx(choose_beta2(100_000) ** 100_000, rel=0.01)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_shortest_runs_keep_nothing_of_the_first_hessian(steps):
    assert choose_beta2(steps) == 0


def test_huge_weight_decay_leaves_h_positive():
    assert IVON(mlp().parameters(), **AUTO | {"weight_decay": 1e6}).param_groups[0]["hess_init"] > 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": None}, "epochs=None: needs how often the run visits each example"),
        ({"epochs": 0}, "epochs=0"),
        ({"lr": 0.0}, "lr=0.0, noise=1.0 and 3 matrices"),
        ({"noise": -1.0}, "noise=-1.0"),
        ({"rescale_lr": False}, "rescale_lr=False: its rule is for rescaled"),
        ({"beta2": "auto"}, "beta2='auto' with steps=None: needs the number of optimizer steps"),
        ({"beta2": "auto", "steps": 0}, "steps=0"),
        ({"hess_init": "automatic"}, "hess_init='automatic': must be > 0"),
    ],
)
def test_what_is_missing_is_asked_for(settings, says):
    with pytest.raises(InputError, match=says):
        IVON(mlp().parameters(), **AUTO | settings)


def test_without_weights_to_compare_with_a_number_is_asked_for():
    with pytest.raises(InputError, match="0 matrices that are not zero"):
        IVON([torch.ones(3, requires_grad=True)], **AUTO)


@pytest.mark.parametrize("settings", [{"hess_init": 0.3, "epochs": 10}, {}, {"rescale_lr": False}])
def test_noise_is_refused_where_it_has_no_effect(settings):
    with pytest.raises(
        InputError, match=r"noise=0\.7.*no effect here; leave it out, or give epochs"
    ):
        IVON(mlp().parameters(), lr=0.1, ess=1000, noise=0.7, **settings)


# ---- what is found wrong ----


def digits(count=600):
    """Ten overlapping clusters in 20 dimensions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    centres = torch.randn(10, 20, generator=generator)
    return centres[labels] + 0.5 * torch.randn(count, 20, generator=generator), labels


def net(norm=nn.BatchNorm1d):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        between = [norm(64)] if norm else []
        return nn.Sequential(nn.Linear(20, 64), *between, nn.ReLU(), nn.Linear(64, 10))


def train(model, optimizer, steps, times=1):
    inputs, labels = digits()
    batches = itertools.cycle(torch.arange(len(inputs)).split(50))

    def closure():
        optimizer.zero_grad()
        rows = next(batches)
        loss = times * nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


GOOD = {"lr": 0.1, "ess": 600.0, "hess_init": 0.5, "beta2": 1 - 2 / 400, "seed": 0}


def messages(norm=nn.BatchNorm1d, steps=400, run=None, **settings):
    model = net(norm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, IVON(model.parameters(), steps=run, **(GOOD | settings)), steps)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("kind", ["distance", "per_tensor"])
def test_a_length_is_not_measured_by_the_noise(kind):
    """Good runs of pretrained networks move by less than σ."""
    assert messages(steps=120, run=400, lr=0.002, rescale_lr=kind) == []


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, None])
def test_good_settings_are_left_in_peace(norm):
    assert messages(norm) == []


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({"lr": 0.0003}, 100, r"raise lr from 0\.0003 to about 0\.0"),
        ({"lr": 10.0}, 1, r"lower lr from 10 to about"),
        ({"weight_decay": 0.3}, 400, r"lower weight_decay from 0\.3 to about 0\.0"),
        ({"beta2": 0.9}, 100, r"raise beta2 from 0\.9 to about 0\.99"),
        ({"ess": 6.0}, 1, r"^the posterior's noise is .* times the weights.*raise hess_init to"),
    ],
    ids=str,
)
def test_what_spoils_training_is_named_with_the_number_to_change(settings, steps, expected):
    found = messages(steps=steps, **settings)
    assert [bool(re.search(expected, message)) for message in found].count(True) == 1


def test_small_steps_at_the_end_of_a_run_are_its_schedule():
    found = [messages(steps=100, run=run, lr=0.0003) for run in (200, 120)]
    assert ["less than their noise" in str(each) for each in found] == [True, False]


def test_a_network_with_normalisation_bears_more_noise():
    start = {"hess_init": 0.04}  # σ is about three times the weights
    assert messages(steps=1, **start) == []
    (message,) = messages(norm=None, steps=1, **start)
    assert "times the weights" in message


def test_it_looks_at_steps_that_grow_apart():
    due = [step for step in range(1, 2000) if step in rules.LOOKS]
    assert due == [1, 100, 200, 400, 800, 1600]


def test_matrices_that_start_at_zero_are_no_reason_to_warn(task):
    model = task.net()
    with torch.no_grad():
        model[2].weight.zero_()
    optimizer = IVON(model.parameters(), 0.1, 40, seed=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step(task.closure(model, optimizer, task.x, task.y))
    assert optimizer.diagnostics()["steps"] == 1
    assert caught == []


def test_the_figures_tell_noise_from_weights_by_layer_and_whether_the_hessian_moved(task):
    model = task.net()
    settings = {"hess_init": 0.5, "weight_decay": 0.0, "beta2": 1.0, "seed": 3}
    optimizer = IVON(model.named_parameters(), 0.1, 400, **settings)
    closure = task.closure(model, optimizer, task.x, task.y)
    optimizer.step(closure)
    figures, std = optimizer.diagnostics(), (400 * 0.5) ** -0.5
    every = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert figures["std"] == pytest.approx(std, rel=1e-5)
    assert figures["noise_to_weight"] == pytest.approx(
        float(std / every.square().mean().sqrt()), rel=1e-4
    )
    assert figures["layers"] == {
        name: pytest.approx(
            float(std / model.get_parameter(name).detach().square().mean().sqrt()), rel=1e-4
        )
        for name in ("0.weight", "2.weight")
    }
    assert figures["hess_moved"] == 0.0
    assert figures["steps"] == 1
    optimizer.param_groups[0]["beta2"] = 0.5
    optimizer.step(closure)
    assert optimizer.diagnostics()["hess_moved"] > 0.9


def test_a_missing_compiler_is_told_once_and_only_to_large_models(monkeypatch):
    monkeypatch.setattr(randomness, "KERNELS", False)
    monkeypatch.setattr(rules, "_warned_slow", False)
    monkeypatch.setattr(rules, "LARGE", 1000)

    def step(size):
        weight = nn.Parameter(torch.ones(size, 10))
        optimizer = IVON([weight], 0.01, 1000, seed=0)
        optimizer.step(lambda: weight.square().mean().backward())

    step(10)
    with pytest.warns(UserWarning, match=r"without a C compiler.*pip install"):
        step(100)
    step(100)


# ---- auto: everything measured ----


def loader(count=600, size=50):
    inputs, labels = digits(count)
    return [*zip(inputs.split(size), labels.split(size), strict=True)]


def rate(model, batches=None, epochs=8, **settings):
    optimizer = IVON.auto(model, batches or loader(), epochs, seed=0, quiet=True, **settings)
    return optimizer.param_groups[0]["lr"]


def test_auto_is_the_constructor_with_the_numbers_of_the_loader(capsys):
    optimizer = IVON.auto(net(), loader(), epochs=8, seed=0)
    own = {"lr": 0.1, "ess": 600, "epochs": 8, "steps": 96, "weight_decay": 1e-3, "seed": 0}
    plain = IVON(net().named_parameters(), **own)
    numbers = [o.state_dict()["param_groups"] for o in (optimizer, plain)]
    assert numbers[0] == numbers[1]
    assert "lr=0.1, ess=600" in capsys.readouterr().out
    assert IVON.auto(net(), loader(), 8, quiet=True, lr=0.3).param_groups[0]["lr"] == 0.3


def pretrained(norm=nn.LayerNorm):
    """Its normalisation has left its start."""
    model = net(norm)
    for p in model.parameters():
        if p.ndim == 1 and bool((p == 1).all()):
            nn.init.uniform_(p, 0.5, 1.5)
    return model


def test_in_a_pretrained_network_lr_is_a_length_that_is_shorter_in_long_runs():
    assert rate(pretrained()) == rate(pretrained(), epochs=2) == rules.LENGTH
    assert rate(pretrained(), epochs=32) == rate(pretrained()) / 2
    frozen = pretrained()
    for p in frozen.parameters():
        p.requires_grad_(p.ndim > 1)
    assert rate(frozen) == rate(pretrained())  # a frozen normalisation counts
    frozen[0].weight.requires_grad_(False)
    alone = IVON.auto(frozen, loader(), 8, quiet=True).param_groups[0]
    assert alone["rescale_lr"] == "current"  # one matrix alone is a linear model
    adapted = pretrained().append(nn.Linear(10, 10))
    nn.init.zeros_(adapted[-1].weight)  # as B of an adapter is
    assert rate(adapted) == rules.ADAPTERS * rate(pretrained())


@pytest.mark.parametrize(("kind", "factor"), [("distance", rules.PRETRAINED), ("per_tensor", 1)])
def test_where_lr_is_a_length_the_noise_follows_from_epochs_and_classes(kind, factor):
    def noise(epochs=8, classes=10, lr=0.1):
        model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Linear(64, classes))
        optimizer = IVON(
            model.parameters(), lr, 600, epochs=epochs, steps=80, rescale_lr=kind, seed=0
        )
        size, layers = rules.measure_matrices([p.detach() for p in model.parameters()])
        return optimizer.diagnostics()["std"] * layers**0.5 / size

    assert noise() == pytest.approx(factor * STRENGTH * 0.8**0.5, rel=1e-3)
    assert noise(lr=0.7) == pytest.approx(noise())  # it is no rate
    assert noise(epochs=2) == pytest.approx(noise() / 2, rel=1e-3)
    assert noise(epochs=500) == pytest.approx(factor * rules.SHORT_LIMIT, rel=1e-3)
    assert noise(classes=40) == pytest.approx(noise() / 2, rel=1e-3)
    assert noise(classes=3) == pytest.approx(noise(), rel=1e-3)


def test_a_head_alone_bears_more_noise_than_layers_without_normalisation():
    def noise(model, **settings):
        optimizer = IVON.auto(model, loader(), 8, quiet=True, seed=0, **settings)
        size, layers = rules.measure_matrices([p.detach() for p in model.parameters()])
        return optimizer.diagnostics()["std"] * layers**0.5 / size

    usual = STRENGTH * 0.8**0.5
    assert noise(nn.Linear(20, 10)) == pytest.approx(rules.HEAD * usual, rel=1e-3)
    assert noise(net(norm=None)) == pytest.approx(WITHOUT_NORMALISATION * usual, rel=1e-3)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_in_a_pretrained_network_with_depthwise_convolutions_every_tensor_has_its_own_length(
    groups,
):
    depthwise = nn.Sequential(nn.Unflatten(1, (4, 5)), nn.Conv1d(4, 4, 1, groups=groups))
    model = nn.Sequential(depthwise, nn.Flatten(), pretrained(nn.BatchNorm1d))
    first = IVON.auto(model, loader(), 8, quiet=True).param_groups[0]
    kind, further = ("per_tensor", rules.DEPTHWISE) if groups == 4 else ("distance", 1)
    assert (first["rescale_lr"], first["lr"]) == (kind, further * rules.LENGTH)


def first_step(kind, *, times=1.0, fused=None, samples=1):
    """The way of each tensor in the first step, where the loss is so many times as large."""
    model = net(nn.LayerNorm)
    start = [p.detach().clone() for p in model.parameters()]
    own = {"ess": 600, "hess_init": 50.0, "beta1": 0.0, "beta2": 1.0, "weight_decay": 0.0}
    own |= {"mc_samples": samples, "rescale_lr": kind, "seed": 0, "fused": fused}
    optimizer = IVON(model.parameters(), 0.3, **own)
    train(model, optimizer, 1, times)
    again = IVON(net(nn.LayerNorm).parameters(), 0.3, **own)
    again.load_state_dict(optimizer.state_dict())
    norms = [[state["norm"] for state in o.state.values()] for o in (optimizer, again)]
    assert norms[0] == norms[1]
    assert all(norms[0])
    return [p.detach() - s for p, s in zip(model.parameters(), start, strict=True)]


@pytest.mark.parametrize("kind", ["distance", "per_tensor"])
@pytest.mark.parametrize(("fused", "samples"), [(None, 1), (False, 1), (None, 2)])
def test_a_step_has_the_same_length_however_large_the_gradients_are(kind, fused, samples):
    own = {"fused": fused, "samples": samples}
    quiet, loud = (first_step(kind, times=times, **own) for times in (1, 50))
    for moved in (quiet, loud):
        assert float(sum(m.square().sum() for m in moved)) ** 0.5 == pytest.approx(0.3, rel=1e-3)
    for one, other in zip(quiet, loud, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["distance", "per_tensor"])
def test_a_length_does_not_depend_on_the_scale_of_a_scaler(kind):
    ends = []
    for scale in (1.0, 64.0):
        model = net(nn.LayerNorm)
        optimizer = IVON(model.parameters(), 0.3, 600, hess_init=50.0, rescale_lr=kind, seed=0)
        inputs, labels = digits()
        with optimizer.sampled_params(train=True):
            (scale * nn.functional.cross_entropy(model(inputs), labels)).backward()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*ends, atol=1e-6)


def test_each_tensor_on_its_own_moves_by_the_same_amount_in_the_direction_of_its_gradient():
    together, apart = first_step("distance"), first_step("per_tensor")
    amounts = [float(m.square().mean()) ** 0.5 for m in apart]
    assert max(amounts) == pytest.approx(min(amounts), rel=1e-3)
    lengths = [float(m.square().mean()) ** 0.5 for m in together]
    assert max(lengths) > 1.5 * min(lengths)  # those of the gradients
    for one, other in zip(together, apart, strict=True):
        assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.9999


def test_a_tensor_with_hardly_a_gradient_is_not_driven_by_weight_decay():
    """As the biases of an attention's keys, whose gradients are nothing but rounding."""
    weights = [torch.nn.Parameter(torch.ones(50)) for _ in range(2)]
    optimizer = IVON(
        weights, 0.1, ess=1e6, hess_init=1.0, weight_decay=1e-3, rescale_lr="per_tensor", seed=0
    )

    def closure():
        optimizer.zero_grad()
        loss = weights[0].sum() + 1e-9 * weights[1].sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    moved = [float((1 - w.detach()).abs().max()) for w in weights]
    assert moved[1] < 0.02 * moved[0]


def test_without_normalisation_it_is_polyaks_step_up_to_a_limit():
    model = nn.Linear(20, 10)
    loud = [(20 * inputs, labels) for inputs, labels in loader()]
    optimizer = IVON.auto(model, loud, 8, seed=0, quiet=True)
    losses, squares = rules.measure_gradients(model, optimizer, loud, nn.functional.cross_entropy)
    expected = rules.SHARE * sum(losses) / sum(squares)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    quiet = [(0.01 * inputs, labels) for inputs, labels in loader()]
    assert rate(model, quiet) == rules.MOST


def test_auto_leaves_model_gradients_and_generators_as_they_were():
    model = nn.Sequential(net(), nn.Dropout(0.5)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    optimizer = IVON.auto(model, loader(), 8, seed=0, quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module.training for module in model.modules())
    assert optimizer.param_groups[0]["draws"] == 0


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([], "list without a length, or empty"),
        (iter([1]), "list_iterator"),
        ([torch.zeros(3)], "a batch is a Tensor"),
        ([{"x": torch.zeros(3)}], "without labels"),
    ],
    ids=["empty", "iterator", "tensor", "no labels"],
)
def test_auto_says_which_batches_it_needs(batches, says):
    with pytest.raises(InputError, match=says):
        IVON.auto(net(), batches, 8)


# ---- step, noise and shape are three things ----


def trained(**settings):
    model = net()
    start = {"lr": 0.1, "ess": 600, "hess_init": 0.5, "beta2": 0.95, "steps": 40, "seed": 0}
    optimizer = IVON(model.parameters(), **start | settings)
    train(model, optimizer, 40)
    return model, optimizer


def test_with_the_current_h_lr_means_the_same_wherever_h_has_gone():
    weight = torch.zeros(3, requires_grad=True)
    settings = {"hess_init": 1.0, "beta2": 1.0, "weight_decay": 0.0, "seed": 0}
    optimizer = IVON([weight], 0.1, 1e12, rescale_lr="current", **settings)
    for h in (1.0, 0.2):
        before = weight.detach().clone()
        if h != 1.0:
            optimizer.state[weight]["hess"].fill_(h)
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            weight.sum().backward()
        optimizer.step()
        torch.testing.assert_close(before - weight.detach(), torch.full((3,), 0.1))


def test_diagnostics_tell_what_of_h_is_decay_and_what_is_data():
    model = net()
    optimizer = IVON(model.parameters(), 0.0, 600, hess_init=0.5, beta2=0.95, seed=0)

    def closure():
        optimizer.zero_grad()
        loss = 0.0 * sum(p.sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(40):
        optimizer.step(closure)
    assert optimizer.diagnostics()["hess_from_data"] == pytest.approx(0, abs=0.02)
    assert trained()[1].diagnostics()["hess_from_data"] > 0.02


# ---- losses speak ----


def course(*means, steps=None):
    made = rules.Course()
    for mean in means:
        group = {"lr": 0.3 if mean == means[0] else 0.1}  # on a schedule
        for _ in range(rules.BLOCK):
            found = made.add(torch.tensor(mean), group, steps)
    return found


def test_a_loss_that_falls_and_comes_back_is_reported():
    assert "lower lr from 0.3 to about 0.1" in course(2.3, 1.5, 2.3, 2.3, 2.3)["loss"]
    # MiniLM on 240 texts, at lr = 0.1 and 0.3: both end at chance.
    assert "lower lr" in course(2.3, 2.24, 2.09, 1.94, 2.2, 2.3, 2.3, 2.3, steps=80)["loss"]
    assert "lower lr" in course(2.31, 2.21, 2.12, 2.31, 2.31, 2.32, steps=80)["loss"]


def test_a_loss_that_rises_in_a_good_run_is_not():
    assert (
        course(2.48, 2.34, 2.45, 2.45, 2.3, steps=160) == {}
    )  # CIFAR-10, half of the labels wrong
    assert course(2.55, 2.35, 2.64, 2.59, steps=600) == {}  # the same, for longer
    assert course(2.54, 2.4, 2.4, 2.4, 2.4, 2.53, 2.53, 2.53, steps=80) == {}  # late: σ has grown
    assert course(2.3, 1.6, 1.9) == {}  # as the noise grows
    assert course(0.8, 0.9, 0.97) == {}  # never fell, and the mean may still be good
    assert course(0.67, 0.49, 0.67, 0.67, 0.67) == {}  # two classes with wrong labels
    assert course(2.3, 2.2, 2.3, 2.3, 2.3) == {}


def test_a_loss_that_has_not_fallen_in_half_of_the_run_is_reported():
    still = [2.29] * 3
    message = course(2.3, *still, steps=80)["loss"]
    assert "2.29 after 40 of 80 steps" in message
    assert "raise lr from 0.3 to about 0.9, or set noise=0.5" in message
    assert "lower lr from 0.3 to about 0.1" in course(2.3, *still, 2.35, steps=80)["loss"]
    assert course(2.3, *still, steps=200) == course(2.3, *still) == {}
    assert course(2.3, 2.3, steps=20) == {}  # too short to tell
    assert course(2.3, 2.2, 2.2, 2.2, steps=80) == course(*[0.8] * 4, steps=80) == {}


def test_a_warning_points_at_the_line_that_called_step():
    """Also under a scheduler, which wraps it."""
    model = net()
    optimizer = IVON(model.parameters(), lr=50.0, ess=600, hess_init=1.0, steps=100, seed=0)
    optimizer.schedule()
    inputs, labels = digits()

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    with pytest.warns(UserWarning, match="a step moved the weights") as found:
        optimizer.step(closure)
    assert {each.filename for each in found} == {__file__}


def test_large_steps_that_lower_the_loss_are_left_in_peace():
    """Adapters move by more than their size in good runs."""
    model = net()
    look = rules.Look(IVON(model.parameters(), **GOOD)._collect())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.2)
    assert look.problems(rules.EARLY, learning=True) == {}
    assert "lower lr" in look.problems(rules.EARLY, learning=False)["lr"]
