from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesmooth.cli import main
from bayesmooth.errors import InputError
from bayesmooth.train import Recipe
from bayesmooth.train.sweep import grid, tune

TREE = {
    "data": {"name": "digits", "limit": 120, "validation": 0.2},
    "corruption": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "optimizer": {"name": "ivon", "lr": 0.03, "noise": 1.0},
    "schedule": {"name": "cosine"},
    "train": {"epochs": 8},
    "evaluate": {"samples": 1, "every": 8},
}


@pytest.fixture
def race(tmp_path):
    def run(recipes):
        with ThreadPoolExecutor(1) as executor:
            return tune(recipes, tmp_path / "runs", executor)

    return run


def test_the_best_by_noisy_validation_comes_first_and_what_does_not_finish_last(race):
    recipes = grid(TREE, ["optimizer.lr=1e30,0.03,0.1"])
    *good, bad = race(recipes)
    assert bad.recipe.optimizer.options["lr"] == 1e30
    reports = [outcome.run.report() for outcome in good]
    keys = [(-report["validation.accuracy"], report["validation.nll"]) for report in reports]
    assert keys == sorted(keys)
    again = [outcome.path for outcome in race(recipes)]  # nothing is run again
    assert again == [outcome.path for outcome in [*good, bad]]


def test_without_a_validation_split_there_is_nothing_to_choose_by(race):
    with pytest.raises(InputError, match="nothing to choose by; hold a part back"):
        race(grid(TREE | {"data": {"limit": 120}}, []))


def test_settings_must_differ(race):
    with pytest.raises(InputError, match="two recipes are the same"):
        race(grid(TREE, ["optimizer.noise=1,1.0"]))


def test_the_command_writes_the_recipe_that_it_chose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain = TREE | {"optimizer": {"name": "ivon", "lr": 0.1}}
    (tmp_path / "mine.toml").write_text(Recipe.from_dict(plain).to_toml())
    line = ["tune", "mine.toml", "--set", "train.epochs=2", "--write", "best.toml", "--quiet"]
    assert main(line) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1 + 3 + 1  # head, three whole runs, the best
    assert out[-1].startswith("best: optimizer.noise=")
    chosen = Recipe.load(tmp_path / "best.toml")
    assert chosen.train.epochs == 2
    assert f"optimizer.noise={chosen.optimizer.options['noise']}" in out[-1]
