from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesmooth.cli import main
from bayesmooth.errors import InputError
from bayesmooth.train import Recipe, Run
from bayesmooth.train.sweep import grid
from bayesmooth.train.tune import shortened, tune

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
    def run(recipes, **how):
        with ThreadPoolExecutor(1) as executor:
            return tune(recipes, tmp_path / "runs", executor, quiet=True, **how)

    return run


def test_the_best_of_the_short_runs_are_run_whole_and_the_best_of_those_comes_first(race, tmp_path):
    recipes = grid(TREE, ["optimizer.noise=0.5,1.0,2.0"])
    tried, whole = race(recipes, shorten=4)
    assert [trial.outcome.recipe.train.epochs for trial in tried] == [2, 2, 2]
    assert [trial.outcome.recipe.train.epochs for trial in whole] == [8, 8]
    assert {trial.recipe.hash for trial in whole} == {trial.recipe.hash for trial in tried[:2]}
    for trials in (tried, whole):
        reports = [Run.open(trial.outcome.path).report() for trial in trials]
        keys = [(-report["validation.accuracy"], report["validation.nll"]) for report in reports]
        assert keys == sorted(keys)
    assert race(recipes, shorten=4) == (tried, whole)  # nothing is run again
    assert len(list((tmp_path / "runs").glob("*/report.json"))) == 5


def test_a_run_that_does_not_finish_is_never_the_best(race):
    tried, whole = race(grid(TREE, ["optimizer.lr=1e30,0.1"]), shorten=4, keep=1)
    assert [trial.outcome.status == "finished" for trial in tried] == [True, False]
    assert whole[0].recipe.optimizer.options["lr"] == 0.1


def test_shares_of_the_run_shrink_with_it():
    recipe = Recipe.from_dict(TREE)
    assert shortened(recipe, 4).train.epochs == 2
    assert shortened(recipe, 100).train.epochs == 1
    assert shortened(recipe, 4).optimizer == recipe.optimizer


@pytest.mark.parametrize(
    ("change", "how", "says"),
    [
        ({"data": {"limit": 120}}, {}, "nothing to choose by; hold a part back"),
        ({}, {"keep": 0}, "keep=0: must be ≥ 1"),
        ({}, {"shorten": 0}, "shorten=0"),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_anything_runs(race, change, how, says):
    with pytest.raises(InputError, match=says):
        race(grid(TREE | change, []), **how)


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
