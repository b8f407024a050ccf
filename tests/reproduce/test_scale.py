"""What a scale trains."""

import pytest

from reproduce import STUDIES
from reproduce.study import SCALES

DAY, FEATURES, FULL = SCALES["day"], SCALES["features"], SCALES["full"]
LAPTOP, OVERNIGHT = SCALES["laptop"], SCALES["overnight"]

SYMMETRIC, HALF, PAIRS = "symmetric 20 %", "symmetric 40 %", "pairflip 20 %"
APPENDIX = [  # study, noise, method, learning rate, weight decay
    *(("cifar10-noisy", n, m, 0.05, 1e-3) for n in (SYMMETRIC, HALF, PAIRS) for m in ("LS", "SAM")),
    *(("cifar10-noisy", n, "IVON", 0.2, 1e-3) for n in (SYMMETRIC, HALF, PAIRS)),
    *(("data-dependent", f"κ = 0.{k}", m, 0.05, 1e-3) for k in range(1, 6) for m in ("LS", "SAM")),
    *(("data-dependent", f"κ = 0.{k}", "IVON", 0.2, 1e-3) for k in range(1, 6)),
    ("cifar100-noisy", SYMMETRIC, "LS", 0.1, 2e-4),
    ("cifar100-noisy", HALF, "LS", 0.1, 2e-4),
    ("cifar100-noisy", PAIRS, "LS", 0.1, 5e-4),
    ("cifar100-noisy", SYMMETRIC, "SAM", 0.05, 2e-4),
    ("cifar100-noisy", HALF, "SAM", 0.1, 2e-4),
    ("cifar100-noisy", PAIRS, "SAM", 0.1, 5e-4),
    ("cifar100-noisy", SYMMETRIC, "IVON", 0.8, 2e-4),
    ("cifar100-noisy", HALF, "IVON", 0.8, 2e-4),
    ("cifar100-noisy", PAIRS, "IVON", 0.5, 5e-4),
]


@pytest.mark.parametrize("scale", [LAPTOP, OVERNIGHT, FEATURES])
def test_smaller_scales_keep_the_papers_regime(scale):
    """Batch norm, the paper's learning rates and weight decay, one schedule for all methods, one h₀."""
    cells = STUDIES["data-dependent"].cells(scale)
    rates = {"sgd": 0.05, "sam": 0.05, "ivon": 0.2}
    for cell in cells:
        options = cell.recipe.optimizer.options
        assert options["lr"] == rates[cell.recipe.optimizer.name]
        assert options["weight_decay"] == 1e-3
        model = cell.recipe.model
        assert model.name == "cnn_batchnorm" or model.options["batchnorm"]
        schedule = cell.recipe.schedule
        assert (schedule.name, schedule.options["warmup"]) == ("cosine", 0.05)
    ours = [c.recipe.optimizer.options["hess_init"] for c in cells if c.method == "IVON"]
    assert len(set(ours)) == 1


def test_the_hessian_forgets_its_start_at_laptop_scale_as_at_full_scale():
    for scale in (LAPTOP, OVERNIGHT, FULL):
        recipe = next(c.recipe for c in STUDIES["cifar10-noisy"].cells(scale) if c.method == "IVON")
        examples = (recipe.data.limit or 50_000) * (1 - recipe.data.validation)
        steps = recipe.train.epochs * examples / recipe.train.batch_size
        assert (1 - recipe.optimizer.options["beta2"]) * steps == pytest.approx(2)


@pytest.mark.parametrize(("study", "noise", "method", "lr", "decay"), APPENDIX)
def test_full_scale_is_the_papers_appendix(study, noise, method, lr, decay):
    labels = {"noise": noise, "method": method}
    cells = [c for c in STUDIES[study].cells(FULL) if labels.items() <= c.labels.items()]
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}
    for recipe in (cell.recipe for cell in cells):
        assert recipe.model.name == "resnet34"
        assert (recipe.train.epochs, recipe.train.batch_size) == (200, 50)
        options = recipe.optimizer.options
        assert (options["lr"], options["weight_decay"]) == (lr, decay)
        if method == "IVON":
            first = 0.9 if "cifar100" not in study else 0.5 if noise == PAIRS else 0.2
            assert (options["hess_init"], options["beta2"]) == (first, 1 - 1e-5)
            assert (recipe.schedule.name, recipe.schedule.options["warmup"]) == ("cosine", 5 / 200)
            assert options["beta1"] == 0.9
            assert "ess" not in options  # so it is the number of training examples
        else:
            assert options["momentum"] == 0.9
            assert recipe.schedule.name == "steps"
    grids = {"LS": {0, 0.1, 0.3, 0.5, 0.7, 0.9}, "SAM": {0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5}}
    assert {cell.strength for cell in cells} == grids.get(method, {None})


def test_a_day_is_a_part_of_full_scale_with_one_seed_of_six_runs_under_three_noises():
    cells = [cell for name in DAY.studies for cell in STUDIES[name].cells(DAY)]
    runs = {cell.recipe.hash: cell.noise for cell in cells}
    noises = [*runs.values()]
    assert {noise: noises.count(noise) for noise in noises} == {
        "κ = 0.2": 6,  # SGD, LS and SAM at two strengths each, IVON
        "κ = 0.4": 6,
        "symmetric 40 %": 6,
    }
    for cell in cells:
        model, data, train = cell.recipe.model, cell.recipe.data, cell.recipe.train
        assert (model.name, data.limit, data.validation) == ("resnet34", 0, 0)
        assert (train.epochs, train.batch_size, train.seed) == (200, 50, 0)
