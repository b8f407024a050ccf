"""The recipes that come with the package."""

import pytest

from bayesmooth.lab import Recipe, shipped, train

LAPTOP = sorted(name for name in shipped.shipped() if name.startswith(("digits", "mnist")))
CIFAR = sorted(name for name in shipped.shipped() if name.startswith("cifar"))


@pytest.mark.parametrize("name", shipped.shipped())
def test_every_recipe_loads_says_what_it_is_and_belongs_to_one_run(name):
    path = shipped.find(name)
    recipe = Recipe.load(path)
    assert path.read_text().startswith("# ")
    assert 20 < len(shipped.about(path)) < 110
    others = [Recipe.load(other).hash for key, other in shipped.shipped().items() if key != name]
    assert recipe.hash not in others


@pytest.mark.parametrize("name", LAPTOP)
def test_every_laptop_recipe_trains(name, tmp_path, request):
    data_dir = request.getfixturevalue("data_dir") if name.startswith("mnist") else None
    few = ["train.epochs=1", "train.batch_size=1000", "evaluate.test=false"]
    run = train(
        Recipe.load(shipped.find(name), few), tmp_path / "run", data_dir=data_dir, quiet=True
    )
    assert run.status == "finished"


@pytest.mark.parametrize("name", CIFAR)
def test_every_cifar_recipe_has_the_papers_settings(name):
    recipe = Recipe.load(shipped.find(name))
    data, noise, method = name.split("-")
    assert recipe.model.name == "resnet34"
    assert (recipe.train.epochs, recipe.train.batch_size, recipe.data.validation) == (200, 50, 0)
    options, schedule = recipe.optimizer.options, recipe.schedule
    assert options.get("momentum", options.get("beta1")) == 0.9
    decay = {"cifar10": 1e-3, "cifar100": 5e-4 if noise == "pairflip20" else 2e-4}[data]
    assert options["weight_decay"] == decay
    if method == "ivon":
        assert (schedule.name, schedule.options["warmup"], options["beta2"]) == (
            "cosine",
            5 / 200,
            1 - 1e-5,
        )
        assert "ess" not in options
    else:
        assert (schedule.name, schedule.options["milestones"]) == ("steps", (100 / 200, 150 / 200))
    rates = {"cifar10": {"ls": 0.05, "sam": 0.05, "ivon": 0.2}}
    table = {
        "symmetric20": {"ls": 0.1, "sam": 0.05, "ivon": 0.8},
        "symmetric40": {"ls": 0.1, "sam": 0.1, "ivon": 0.8},
        "pairflip20": {"ls": 0.1, "sam": 0.1, "ivon": 0.5},
    }
    assert options["lr"] == (rates[data] if data in rates else table[noise])[method]
    hessians = {"cifar10": 0.9, "cifar100": 0.5 if noise == "pairflip20" else 0.2}
    assert options.get("hess_init", hessians[data]) == hessians[data]
