from types import SimpleNamespace

import pytest

from bayesmooth.files import locked
from bayesmooth.lab import Run
from bayesmooth.lab.board import Live


@pytest.fixture
def running(tiny, tmp_path):
    """Make the directory of a run that is under way."""

    def make(name):
        run = Run.start(tmp_path / name, tiny())
        run.set_status("running")
        (run.path / "metrics.jsonl").write_text('{"epoch": 1, "test.accuracy": 0.5}\n')
        return run

    return make


def test_a_broken_run_does_not_hide_the_others(running):
    pytest.importorskip("rich", reason="rich is not installed")
    runs = {name: running(name) for name in ("no recipe", "garbage", "no status", "whole")}
    (runs["no recipe"].path / "recipe.toml").unlink()
    (runs["garbage"].path / "metrics.jsonl").write_text("garbage\n")
    (runs["no status"].path / "run.json").write_text("{}")
    tables = []
    live = Live({run.path: (name, run) for name, run in runs.items()}, 0, SimpleNamespace())
    live.live.update = tables.append
    live.elsewhere(runs["whole"].path)
    with locked(runs["no recipe"].path), locked(runs["garbage"].path), locked(runs["whole"].path):
        live.refresh()
    names, epochs, figures = (list(column.cells) for column in tables[0].columns)
    assert names == ["no recipe", "garbage", "whole (running elsewhere)"]
    assert epochs == ["1/2", "0/2", "1/2"]
    assert figures == ["test 50.0 %", "", "test 50.0 %"]
