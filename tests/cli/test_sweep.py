import csv

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
    told = capsys.readouterr()
    assert told.out.count("digits-ls-sgd-") == 2
    assert "2 runs" in told.err
    rows = list(csv.DictReader((tmp_path / "grid.csv").read_text().splitlines()))
    assert [row["loss.alpha"] for row in rows] == ["0.0", "0.1"]
    assert main(line) == 0
    assert "2 of them done before" in capsys.readouterr().err


def test_a_failed_run_is_an_exit_code_and_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    assert main(["sweep", "mine.toml", "--set", "data.limit=999999"]) == 1
    assert "failed: " in capsys.readouterr().err


def test_a_wrong_axis_is_one_line(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(RECIPE)
    assert main(["sweep", str(tmp_path / "mine.toml"), "--grid", "loss.alfa=0,1"]) == 2
    assert "did you mean 'alpha'?" in capsys.readouterr().err
