import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesmooth.cli import main
from bayesmooth.errors import InputError
from bayesmooth.executors import Processes
from bayesmooth.train import Recipe, Run
from bayesmooth.train.sweep import Outcome, export_rows, grid, name_recipes, sweep, tune

MAIN = "from bayesmooth.cli import main; raise SystemExit(main())"
TREE = {
    "data": {"name": "digits", "limit": 120, "validation": 0.2},
    "corruption": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "train": {"epochs": 1},
}
TUNED = TREE | {
    "optimizer": {"name": "ivon", "lr": 0.03, "noise": 1.0},
    "schedule": {"name": "cosine"},
    "train": {"epochs": 8},
    "evaluate": {"samples": 1, "every": 8},
}


@pytest.fixture
def run_all(tmp_path):
    """Sweep in this process, into a fresh directory."""

    def run(recipes, **how):
        with ThreadPoolExecutor(1) as executor:
            return sweep(recipes, tmp_path / "runs", executor, **how)

    return run


def test_a_grid_is_every_combination():
    recipes = grid(TREE, ["train.seed=0:3", "optimizer.lr=.1,.2"])
    chosen = [(recipe.train.seed, recipe.optimizer.options["lr"]) for recipe in recipes]
    assert chosen == [(s, lr) for s in range(3) for lr in (0.1, 0.2)]
    assert len({recipe.hash for recipe in recipes}) == 6
    assert grid(TREE, []) == grid(TREE, ["train.seed=0"])


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("loss.alpha", "not an axis"),
        ("loss.alpha=", "not an axis"),
        ("alpha=1,2", "section.key=value"),
        ("train.sed=0:2", "did you mean 'seed'"),
        ("train.seed=5:5", "no value"),
        ("train.seed=5:3", "no value"),
        (" optimizer.lr =.3", "a second axis of optimizer.lr; put all values in one"),
    ],
)
def test_a_wrong_axis_is_refused_before_anything_runs(axis, says):
    with pytest.raises(InputError, match=re.escape(says)):
        grid(TREE, ["optimizer.lr=.1,.2", axis])


def test_runs_are_called_by_what_tells_them_apart():
    recipes = grid(TREE, ["train.seed=0:2", "optimizer.lr=.1,.2"])
    assert list(name_recipes(recipes).values())[1] == "optimizer.lr=0.2 train.seed=0"
    assert name_recipes(recipes[:1]) == {recipes[0].hash: recipes[0].title}


def test_equal_recipes_run_once_and_finished_ones_never_again(run_all):
    recipes = grid(TREE, ["train.seed=0:2"])
    first = run_all([*recipes, *recipes])
    assert [outcome.status for outcome in first] == ["finished"] * 2
    before = {o.path: (o.path / "metrics.jsonl").stat().st_mtime_ns for o in first}
    again = run_all(grid(TREE, ["train.seed=0:3"]))
    assert [outcome.status for outcome in again] == ["finished"] * 3
    assert all((path / "metrics.jsonl").stat().st_mtime_ns == at for path, at in before.items())


def test_a_failure_does_not_stop_the_rest(run_all, capsys):
    missing = {**TREE, "data": {"name": "folder", "path": "nowhere"}}
    outcomes = run_all([*grid(missing, []), *grid(TREE, [])])
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert "nowhere" in outcomes[0].message
    assert "Traceback" in outcomes[0].path.with_suffix(".log").read_text()
    text = capsys.readouterr().err
    assert "2 runs" in text
    assert "[1/2]  failed" in text
    assert "[2/2]  finished" in text


def test_a_failure_is_one_line_with_the_way_out_and_the_log(run_all, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESMOOTH_DATA", str(tmp_path))
    (outcome,) = run_all(grid({"data": {"name": "mnist"}}, []))
    assert "\n" not in outcome.message
    assert "; to get them: " in outcome.message
    assert outcome.message.endswith(f" (see {outcome.path}.log)")


@pytest.mark.slow
def test_two_equal_sweeps_share_the_runs_and_both_have_all_results(tmp_path):
    recipes = grid({**TREE, "train": {"epochs": 60}}, ["train.seed=0:2"])

    def go():
        with Processes(1) as executor:
            return sweep(recipes, tmp_path, executor)

    with ThreadPoolExecutor(2) as both:
        answers = [future.result() for future in [both.submit(go), both.submit(go)]]
    for outcomes in answers:
        assert [(outcome.status, outcome.message) for outcome in outcomes] == [("finished", "")] * 2
    for outcome in answers[0]:
        epochs = [record["epoch"] for record in Run.open(outcome.path).metrics()]
        assert epochs == list(range(1, 61))


def test_a_run_whose_other_process_stops_is_taken_over(run_all, tmp_path):
    (recipe,) = grid(TREE, [])
    (tmp_path / "runs" / recipe.title).mkdir(parents=True)
    run = Run(tmp_path / "runs" / recipe.title, recipe)
    held = run.lock
    held.acquire()
    threading.Timer(0.5, held.release).start()
    assert [outcome.status for outcome in run_all([recipe])] == ["finished"]


def test_workers_know_where_the_data_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes, jobs = grid(TREE, []), []

    def train_one(recipe, path, device, data):
        jobs.append(data)
        return Outcome(recipe, path, "failed")

    monkeypatch.setattr("bayesmooth.train.sweep.train_one", train_one)
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.delenv("BAYESMOOTH_DATA", raising=False)
        sweep(recipes, "runs", executor)
        monkeypatch.setenv("BAYESMOOTH_DATA", "shared")
        sweep(recipes, "runs", executor)
    assert jobs == [tmp_path / name for name in ("data", "shared")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_a_signal_and_a_closed_terminal_stop_the_rest_also_while_a_line_is_printed(
    number, tmp_path, monkeypatch
):
    stopped = []

    class Recorded(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            stopped.append(cancel_futures)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr("bayesmooth.train.sweep.name_figures", lambda *_: signal.raise_signal(number) or [])
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"), Recorded(1) as executor:
        sweep(grid(TREE, []), tmp_path / "runs", executor)
    assert stopped == [True, False]
    assert signal.getsignal(number) is before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        if number == signal.SIGHUP:
            with ThreadPoolExecutor(1) as executor:
                assert sweep(grid(TREE, []), tmp_path / "ignored", executor)[0].status == "finished"
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_run_that_diverged_is_not_tried_again(run_all):
    wild = grid({**TREE, "optimizer": {"name": "sgd", "lr": 1e30}}, [])
    assert [outcome.status for outcome in run_all(wild)] == ["diverged"]
    with ThreadPoolExecutor(1) as executor:
        executor.shutdown()  # whatever is submitted now fails
        out = run_all(wild)[0].path.parent
        assert sweep(wild, out, executor)[0].status == "diverged"


def test_the_table_has_settings_and_figures(run_all):
    outcomes = run_all(grid(TREE, ["optimizer.lr=.1,1e30"]))
    rows = export_rows(outcomes)
    assert [row["optimizer.lr"] for row in rows] == [0.1, 1e30]
    assert [row["status"] for row in rows] == ["finished", "diverged"]
    assert 0 <= rows[0]["test.accuracy"] <= 1
    assert "test.accuracy" not in rows[1]


@pytest.fixture
def two_of_three(tmp_path):
    """The process of a sweep of three runs, two of which are under way; and the same command again, to its end."""
    command = [sys.executable, "-c", MAIN, "sweep", "digits.toml", "--jobs", "2"]
    command += ["--grid", "train.seed=0:3", "--set", "train.epochs=80", "--out", "runs"]
    (tmp_path / "digits.toml").write_text(grid(TREE, [])[0].to_toml())
    here = {"cwd": tmp_path, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    here["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    process, runs = subprocess.Popen(command, **here), tmp_path / "runs"
    wait_for(process, lambda: len([p for p in runs.glob("*/metrics.jsonl") if lines(p)]) >= 2)

    def again():
        done = subprocess.run(command, **here, check=False)
        assert done.returncode == 0, done.stderr

    return process, again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_stop_cleanly_and_the_same_command_goes_on(number, tmp_path, two_of_three):
    process, again = two_of_three
    runs = tmp_path / "runs"
    process.send_signal(number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "what ran is saved, the same command goes on" in text
    assert "Traceback" not in text
    states = sorted(Run.open(path).status for path in runs.glob("*/"))
    assert set(states) <= {"interrupted", "finished"}
    assert "interrupted" in states
    assert len(states) < 3  # the one that waited has not been started
    saved = max(len(Run.open(path).metrics()) for path in runs.glob("*/"))
    again()
    assert [Run.open(path).status for path in runs.glob("*/")] == ["finished"] * 3
    assert saved > 0


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_runs_that_the_same_command_ends(tmp_path, two_of_three):
    process, again = two_of_three
    runs = tmp_path / "runs"
    process.kill()  # its children train on: the second sweep waits for them
    process.communicate()
    again()
    found = [Run.open(path) for path in runs.glob("*/")]
    assert [run.status for run in found] == ["finished"] * 3
    for run in found:
        assert [record["epoch"] for record in run.metrics()] == list(range(1, 81))


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(process, condition):
    while not condition():
        assert process.poll() is None, "it has ended"
        time.sleep(0.02)


def test_the_best_by_noisy_validation_comes_first_and_what_does_not_finish_last(tmp_path):
    def tune_all():
        with ThreadPoolExecutor(1) as executor:
            return tune(grid(TUNED, ["optimizer.lr=1e30,0.03,0.1"]), tmp_path, executor)

    *good, (bad, none) = tune_all()
    assert bad.recipe.optimizer.options["lr"] == 1e30
    assert none == {}
    keys = [(-report["validation.accuracy"], report["validation.nll"]) for _, report in good]
    assert keys == sorted(keys)
    assert [outcome.path for outcome, _ in tune_all()] == [outcome.path for outcome, _ in [*good, (bad, none)]]


@pytest.mark.parametrize(
    ("changes", "axes", "why"),
    [
        ({"data": {"limit": 120}}, [], "nothing to choose by; hold a part back"),
        ({}, ["optimizer.noise=1,1.0"], "two recipes are the same"),
    ],
)
def test_there_must_be_labels_to_choose_by_and_settings_that_differ(changes, axes, why, tmp_path):
    with pytest.raises(InputError, match=why):
        tune(grid(TUNED | changes, axes), tmp_path, None)


def test_the_command_writes_the_recipe_that_it_chose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain = TUNED | {"optimizer": {"name": "ivon", "lr": 0.1}}
    (tmp_path / "mine.toml").write_text(Recipe.from_dict(plain).to_toml())
    line = ["tune", "mine.toml", "--set", "train.epochs=2", "--write", "best.toml", "--quiet"]
    assert main(line) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1 + 3 + 1  # head, three whole runs, the best
    assert out[-1].startswith("best: optimizer.noise=")
    chosen = Recipe.load(tmp_path / "best.toml")
    assert chosen.train.epochs == 2
    assert f"optimizer.noise={chosen.optimizer.options['noise']}" in out[-1]
