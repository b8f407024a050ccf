from bayesmooth.lab import Run
from bayesmooth.lab.compare import compare_runs, draw_curves


def test_runs_of_one_name_in_two_folders_stay_two(tiny, tmp_path):
    runs = [Run.start(tmp_path / folder / "run", tiny()) for folder in ("a", "b")]
    runs.append(Run.start(tmp_path / "other", tiny()))
    for run in runs:
        (run.path / "metrics.jsonl").write_text('{"epoch": 1, "test.accuracy": 0.5}\n')
    called = [str(runs[0].path), str(runs[1].path), "other"]
    assert [row["run"] for row in compare_runs(runs)] == called
    draw_curves(runs, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("<!-- /") == 2  # each label is a comment there
