import pytest

from bayesmooth.train import Run
from bayesmooth.train.compare import compare_runs, draw_curves
from bayesmooth.words import WIDTH, format_epoch


def test_runs_of_one_name_in_two_folders_stay_two(tiny, tmp_path):
    runs = []
    for place in ("a/run", "b/run", "other"):
        runs.append(Run(tmp_path / place, tiny()))
        with runs[-1].hold(0):
            (runs[-1].path / "metrics.jsonl").write_text('{"epoch": 1, "test.accuracy": 0.5}\n')
    called = [str(runs[0].path), str(runs[1].path), "other"]
    assert [row["run"] for row in compare_runs(runs)] == called
    draw_curves(runs, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn.count("<!-- /") == 2  # each label is a comment there


@pytest.mark.parametrize("averaged", [False, True])
def test_the_line_of_an_epoch_fits_a_terminal(averaged):
    figures = ["validation.accuracy", "test.accuracy", "memorised", "train.accuracy", "train.loss"]
    record = dict.fromkeys([*figures, *["averaged.accuracy"] * averaged], 0.123)
    line = format_epoch({"epoch": 100, **record}, 200)
    assert len(line) <= WIDTH == 80
    assert "memorised 12.3 %" in line
    assert ("averaged" in line) == averaged
