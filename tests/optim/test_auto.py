"""IVON's own settings: the same relative noise whatever the network, the data and the first weights are."""

from functools import partial

import pytest
import torch
from torch import nn

from bayesmooth import IVON
from bayesmooth.errors import InputError
from bayesmooth.models import cnn_batchnorm, mlp, resnet34, resnet_small
from bayesmooth.optim.auto import (
    LIMIT,
    MANY_INPUTS,
    STRENGTH,
    TWO_CLASSES,
    WITHOUT_NORMALISATION,
    auto_beta2,
    auto_hess_init,
)

AUTO = {"lr": 0.1, "ess": 1000, "hess_init": "auto", "weight_decay": 1e-3, "epochs": 10, "seed": 0}


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
    found = auto_hess_init(model.parameters(), lr=0.2, ess=50_000, weight_decay=1e-3, epochs=200)
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
    automatic = IVON(nets[0].parameters(), **AUTO, beta2="auto", steps=40)
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
    assert auto_beta2(200_000) == 1 - 1e-5
    assert auto_beta2(1000) ** 1000 == pytest.approx(auto_beta2(100_000) ** 100_000, rel=0.01)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_shortest_runs_keep_nothing_of_the_first_hessian(steps):
    assert auto_beta2(steps) == 0


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
