import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from filelock import FileLock

from bayesmooth.errors import InputError
from bayesmooth.train import Run
from bayesmooth.train.sweep import Outcome, export_rows, grid, name_recipes, sweep

TREE = {
    "data": {"name": "digits", "limit": 120, "validation": 0.2},
    "corruption": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "train": {"epochs": 1},
}


@pytest.fixture
def run_all(tmp_path):
    """Sweep in this process, into a fresh directory."""

    def run(recipes):
        with ThreadPoolExecutor(1) as executor:
            return sweep(recipes, tmp_path / "runs", executor)

    return run


def test_a_grid_is_every_combination_and_runs_are_called_by_what_tells_them_apart():
    recipes = grid(TREE, ["train.seed=0:3", "optimizer.lr=.1,.2"])
    chosen = [(recipe.train.seed, recipe.optimizer.options["lr"]) for recipe in recipes]
    assert chosen == [(s, lr) for s in range(3) for lr in (0.1, 0.2)]
    assert len({recipe.hash for recipe in recipes}) == 6
    assert grid(TREE, []) == grid(TREE, ["train.seed=0"])
    assert list(name_recipes(recipes).values())[1] == "optimizer.lr=0.2 train.seed=0"
    assert name_recipes(recipes[:1]) == {recipes[0].hash: recipes[0].title}


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("loss.alpha", "not an axis"),
        ("loss.alpha=", "not an axis"),
        ("alpha=1,2", "section.key=value"),
        ("train.sed=0:2", "did you mean 'seed'"),
        ("train.seed=5:5", "no value"),
        (" optimizer.lr =.3", "a second axis of optimizer.lr; put all values in one"),
    ],
)
def test_a_wrong_axis_is_refused_before_anything_runs(axis, says):
    with pytest.raises(InputError, match=re.escape(says)):
        grid(TREE, ["optimizer.lr=.1,.2", axis])


def test_equal_recipes_run_once_and_what_is_over_never_again(run_all):
    wild = {**TREE, "optimizer": {"name": "sgd", "lr": 1e30}}
    recipes = [*grid(TREE, ["train.seed=0:2"]), *grid(wild, [])]
    first = run_all([*recipes, *recipes])
    assert [outcome.status for outcome in first] == ["finished", "finished", "diverged"]
    before = {o.run.path: (o.run.path / "metrics.jsonl").stat().st_mtime_ns for o in first[:2]}
    again = run_all([*recipes, *grid(TREE, ["train.seed=2"])])
    assert [outcome.status for outcome in again] == ["finished", "finished", "diverged", "finished"]
    assert all((path / "metrics.jsonl").stat().st_mtime_ns == at for path, at in before.items())
    with ThreadPoolExecutor(1) as executor:
        executor.shutdown()  # whatever is submitted now fails
        assert sweep(recipes, first[0].run.path.parent, executor)[2].status == "diverged"
    rows = export_rows(first)
    assert [(row["optimizer.lr"], row["train.seed"]) for row in rows] == [(0.1, 0), (0.1, 1), (1e30, 0)]
    assert 0 <= rows[0]["test.accuracy"] <= 1
    assert "test.accuracy" not in rows[2]


def test_a_failure_does_not_stop_the_rest_and_is_one_line_with_the_way_out_and_the_log(
    run_all, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("BAYESMOOTH_DATA", str(tmp_path))
    bad, good = run_all([*grid({"data": {"name": "mnist"}}, []), *grid(TREE, [])])
    assert (bad.status, good.status) == ("failed", "finished")
    assert "\n" not in bad.message
    assert "; to get them: " in bad.message
    assert bad.message.endswith(f" (see {bad.run.path}.log)")
    assert "Traceback" in bad.run.path.with_suffix(".log").read_text()
    text = capsys.readouterr().err
    assert re.search(r"2 runs\n\[1/2\]  failed .*\n\[2/2\]  finished", text)


def test_a_run_whose_other_process_stops_is_taken_over(run_all, tmp_path):
    (recipe,) = grid(TREE, [])
    (tmp_path / "runs" / recipe.title).mkdir(parents=True)
    held = FileLock(tmp_path / "runs" / recipe.title / "lock", thread_local=False)
    held.acquire()
    threading.Timer(0.5, held.release).start()
    assert [outcome.status for outcome in run_all([recipe])] == ["finished"]


def test_workers_know_where_the_data_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = []

    def train_one(run, device, data):
        places.append(data)
        return Outcome(run, "failed")

    monkeypatch.setattr("bayesmooth.train.sweep.train_one", train_one)
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.delenv("BAYESMOOTH_DATA", raising=False)
        sweep(grid(TREE, []), "runs", executor)
        monkeypatch.setenv("BAYESMOOTH_DATA", "shared")
        sweep(grid(TREE, []), "runs", executor)
    assert places == [tmp_path / name for name in ("data", "shared")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_rest_also_while_a_line_is_printed(number, tmp_path, monkeypatch):
    stopped, before = [], signal.getsignal(number)

    class Recorded(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            stopped.append(cancel_futures)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr("bayesmooth.train.sweep.format_epoch", lambda *_: signal.raise_signal(number) or "")
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"), Recorded(1) as executor:
        sweep(grid(TREE, []), tmp_path / "runs", executor)
    assert stopped == [True, False]
    assert signal.getsignal(number) is before
    if number == signal.SIGINT:
        return
    signal.signal(number, signal.SIG_IGN)  # nohup
    try:
        with ThreadPoolExecutor(1) as executor:
            assert sweep(grid(TREE, []), tmp_path / "ignored", executor)[0].status == "finished"
    finally:
        signal.signal(number, before)


# ---- whole programs ----


@pytest.fixture
def two_of_three(tmp_path):
    """The process of a sweep of three runs, two of which are under way; and the same command again, to its end."""
    command = [sys.executable, "-m", "bayesmooth", "sweep", "digits.toml", "--jobs", "2"]
    command += ["--grid", "train.seed=0:3", "--set", "train.epochs=80", "--out", "runs"]
    (tmp_path / "digits.toml").write_text(grid(TREE, [])[0].to_toml())
    here = {"cwd": tmp_path, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    here["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, **here)
    while len([path for path in tmp_path.glob("runs/*/metrics.jsonl") if path.read_text()]) < 2:
        assert process.poll() is None, "it has ended"
        time.sleep(0.02)

    def again():
        done = subprocess.run(command, **here, check=False)
        assert done.returncode == 0, done.stderr
        return [Run.open(path) for path in tmp_path.glob("runs/*/")]

    return process, again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_stop_cleanly_and_the_same_command_goes_on(number, tmp_path, two_of_three):
    process, again = two_of_three
    process.send_signal(number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "what ran is saved, the same command goes on" in text
    assert "Traceback" not in text
    states = [Run.open(path).status for path in tmp_path.glob("runs/*/")]
    assert "interrupted" in states
    assert set(states) <= {"interrupted", "finished"}
    assert len(states) < 3  # the one that waited has not been started
    assert [run.status for run in again()] == ["finished"] * 3


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_runs_that_the_same_command_ends(two_of_three):
    process, again = two_of_three
    process.kill()  # its children train on: the second sweep waits for them
    process.communicate()
    for run in again():
        assert run.status == "finished"
        assert [record["epoch"] for record in run.metrics()] == list(range(1, 81))
