import csv

import pytest

from bayesmooth.cli import main

RECIPE = """
[data]
limit = 120
[model]
name = "linear"
[loss]
name = "ls"
[train]
epochs = 1
"""


def test_sweep_trains_the_grid_prints_a_table_and_exports_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    line = ["sweep", "mine.toml", "--grid", "loss.alpha=0,.1", "--jobs", "2", "--csv", "grid.csv"]
    line += ["--set", "optimizer.lr=0.5"]
    assert main(line) == 0
    written = capsys.readouterr()
    assert [line.split()[0] for line in written.out.splitlines()] == ["run", "loss.alpha=0.0", "loss.alpha=0.1"]
    assert "finished     loss.alpha=0.1" in written.err
    assert "2 runs" in written.err
    rows = list(csv.DictReader((tmp_path / "grid.csv").read_text().splitlines()))
    assert [row["loss.alpha"] for row in rows] == ["0.0", "0.1"]
    assert main(line) == 0
    assert "2 of them done before" in capsys.readouterr().err
    # As a shell writes runs/*.
    assert main(["compare", *map(str, (tmp_path / "runs").glob("*"))]) == 0
    assert capsys.readouterr().out.count("finished") == 2


def test_a_failed_run_is_an_exit_code_and_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    assert main(["sweep", "mine.toml", "--set", "data.limit=999999"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("failed: ")
    assert line.count(str(tmp_path)) == 1


def test_a_wrong_axis_is_one_line(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(RECIPE)
    assert main(["sweep", str(tmp_path / "mine.toml"), "--grid", "loss.alfa=0,1"]) == 2
    assert "did you mean 'alpha'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--csv mine.toml/grid.csv", "mine.toml: cannot be written"),
        ("--jobs 0", "--jobs 0: must be > 0"),
        ("--jobs 0 --cluster ray", "--jobs 0: must be > 0"),
        ("--gpus 1", "--gpus 1.0: needs --cluster ray"),
        ("--address auto", "--address auto: needs --cluster ray"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_runs(line, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    assert main(["sweep", "mine.toml", *line.split()]) == 2
    assert f"bayesmooth: {says}" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]
