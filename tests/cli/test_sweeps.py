import csv

import pytest

from bayesmooth.cli import main
from bayesmooth.train import Recipe, Run

RECIPE = """
[data]
limit = 120
validation = 0.2
[model]
name = "linear"
[optimizer]
name = "ivon"
lr = 0.1
[schedule]
name = "cosine"
[train]
epochs = 1
[evaluate]
samples = 1
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a recipe, where the commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path


def test_sweep_trains_the_grid_prints_a_table_and_exports_it(here, capsys):
    line = ["sweep", "mine.toml", "--grid", "optimizer.lr=0.1,0.2", "--jobs", "2", "--csv", "grid.csv"]
    line += ["--set", "loss.name=ls"]
    assert main(line) == 0
    written = capsys.readouterr()
    assert [line.split()[0] for line in written.out.splitlines()] == ["run", "optimizer.lr=0.1", "optimizer.lr=0.2"]
    assert "2 runs" in written.err
    rows = list(csv.DictReader((here / "grid.csv").read_text().splitlines()))
    assert [row["optimizer.lr"] for row in rows] == ["0.1", "0.2"]
    assert main(line) == 0
    assert "2 of them done before" in capsys.readouterr().err
    # As a shell writes runs/*.
    assert main(["compare", *map(str, (here / "runs").glob("*"))]) == 0
    assert capsys.readouterr().out.count("finished") == 2


def test_the_recipe_that_predicts_held_out_labels_best_is_written(here, capsys):
    line = ["sweep", "mine.toml", "--grid", "optimizer.lr=1e30,0.1,0.2", "--best", "best.toml", "--quiet"]
    assert main(line) == 0
    best = Recipe.load(here / "best.toml")
    finished = [Run.open(path) for path in (here / "runs").glob("*/")]
    reports = {run.recipe.hash: run.report() for run in finished if run.status == "finished"}
    keys = {key: (-r["validation.accuracy"], r["validation.nll"]) for key, r in reports.items()}
    assert len(keys) == capsys.readouterr().out.count("finished") == 2
    assert keys[best.hash] == min(keys.values())
    assert main([*line, "--set", "data.validation=0"]) == 2
    assert "nothing to choose by; hold a part back" in capsys.readouterr().err


def test_a_failed_run_is_an_exit_code_and_a_line(here, capsys):
    assert main(["sweep", "mine.toml", "--set", "data.limit=999999"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("failed: ")
    assert line.count(str(here)) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--grid loss.alfa=0,1", "mine.toml: unknown key 'alfa' in [loss]"),
        ("--csv mine.toml/grid.csv", "mine.toml: cannot be written"),
        ("--jobs 0", "--jobs 0: must be > 0"),
        ("--gpus 1", "--gpus 1.0: needs --cluster ray"),
        ("--address auto", "--address auto: needs --cluster ray"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_runs(line, says, here, capsys):
    assert main(["sweep", "mine.toml", *line.split()]) == 2
    assert f"bayesmooth: {says}" in capsys.readouterr().err
    assert [file.name for file in here.iterdir()] == ["mine.toml"]
