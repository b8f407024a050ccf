"""`reproduce` in processes that are killed, interrupted and doubled: the result is that of one that nobody disturbs."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from bayesmooth.errors import InputError
from bayesmooth.train import Run
from reproduce import STUDIES, commands
from reproduce.commands import Job, redraw, run_study
from reproduce.study import SCALES
from reproduce.table import make_table, read_table, write_table

FACTS = {"scale": "smoke", "command": "", "runs": 1, "missing": 0, "seconds": 0}

MAIN = "import sys; from bayesmooth.cli import main; sys.exit(main())"
STUDY = "natural-noise"


@pytest.fixture
def start(tmp_path):
    """Start the command in this folder."""
    started = []

    def go():
        line = ["reproduce", STUDY, "--scale", "smoke", "--out", "results", "--runs", "runs"]
        here = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *line], text=True, env=env, start_new_session=True, **here
        )
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_for_runs(process, folder, count):
    """Until so many runs are finished."""
    while len(list(folder.glob("*/report.json"))) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.timeout(300, func_only=True)  # four processes that load torch
def test_killed_then_interrupted_then_twice_at_once_it_gives_the_same_table(start, smoke, tmp_path):
    killed = start()
    wait_for_runs(killed, tmp_path / "runs", 2)
    killed.kill()
    killed.wait()
    stopped = start()
    wait_for_runs(stopped, tmp_path / "runs", 4)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    _, text = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, text
    assert "the same command goes on" in text
    assert "Traceback" not in text
    both = [start(), start()]
    for process in both:
        _, text = process.communicate(timeout=240)
        assert process.returncode == 0, text
    found, expected = (
        read_table(place / f"{STUDY}.csv").drop(columns="seconds") for place in (tmp_path / "results", smoke.out)
    )
    assert found.equals(expected)
    content = json.loads((tmp_path / "results" / f"{STUDY}.json").read_text())
    assert (content["missing"], content["runs"]) == (0, expected["hash"].nunique())
    drawn = tmp_path / "results" / f"{STUDY}.png"
    assert drawn.read_bytes() == (smoke.out / drawn.name).read_bytes()
    assert not list((tmp_path / "results").glob(".*"))  # nothing half written is left


@pytest.fixture
def elsewhere(smoke, tmp_path):
    """The job of a study whose figures go to this folder, and whose runs are there already."""

    def make(name, **changes):
        return replace(smoke, study=STUDIES[name], out=tmp_path, **changes)

    return make


def find_csv(job):
    return job.out / f"{job.study.name}.csv"


def read_json(job):
    return json.loads(find_csv(job).with_suffix(".json").read_text())


@pytest.mark.parametrize("name", ["natural-noise", "mnist-noise"])
def test_the_same_figure_comes_from_the_csv_alone(name, smoke, tmp_path):
    shutil.copy(smoke.out / f"{name}.csv", tmp_path)
    redraw(STUDIES[name], tmp_path, FACTS)
    drawn = f"{name}.png"
    assert (tmp_path / drawn).read_bytes() == (smoke.out / drawn).read_bytes()


@pytest.mark.parametrize("name", ["mnist-noise", "illustration", "ols-comparison"])
def test_the_label_noise_of_a_run_is_measured_once(name, elsewhere, smoke, monkeypatch):
    monkeypatch.setattr("reproduce.label_noise.label_noise", None)
    run_study(job := elsewhere(name), None)
    assert find_csv(job).read_text() == (smoke.out / f"{name}.csv").read_text()


def test_a_part_of_the_runs_is_judged_and_marked_and_reproduces_nothing(tmp_path):
    def row(method, strength, seed, accuracy):
        labels = {"data": "cifar10", "noise": "κ = 0.5", "method": method, "strength": strength}
        return {**labels, "seed": seed, "accuracy": accuracy, "validation": accuracy, "hash": "a"}

    found = {("IVON", None): 0.9, ("LS", 0.1): 0.1, ("SAM", 0.1): 0.1}
    rows = [row(*place, seed, value) for place, value in found.items() for seed in (0, 1)]
    write_table(make_table(rows), tmp_path / "data-dependent.csv")
    verdicts = []
    for given in (FACTS, {**FACTS, "missing": 2}):
        redraw(STUDIES["data-dependent"], tmp_path, given)
        claims = json.loads((tmp_path / "data-dependent.json").read_text())["claims"]
        verdicts.append({claim["verdict"] for claim in claims})
    assert "reproduced" in verdicts[0]
    assert "reproduced" not in verdicts[1]
    assert all(claim["measured"].startswith("1 of 3 runs: ") for claim in claims)


def test_clothing_without_the_weights_of_imagenet_is_refused(elsewhere):
    job = elsewhere("natural-noise", scale=SCALES["full"])
    with pytest.raises(InputError, match=r"model\.weights=resnet50\.pth --set model\.new_head=true"):
        run_study(job, None)


def test_the_number_of_missing_runs_is_counted(elsewhere, smoke, tmp_path):
    job = elsewhere("natural-noise", runs=tmp_path / "runs")
    shutil.copytree(elsewhere("natural-noise").runs, job.runs)
    whole = len({cell.recipe.hash for cell in [*job.cells(), *job.cells(read_table(smoke.out / find_csv(job).name))]})
    shutil.rmtree(job.runs / job.cells()[-1].recipe.title)
    run_study(replace(job, noises=["none"]), None)  # trains nothing
    content = read_json(job)
    assert (content["missing"], content["runs"]) == (1, whole - 1)


def test_rows_of_an_earlier_table_are_kept_and_not_trained_again(smoke, elsewhere, tmp_path):
    job = elsewhere("natural-noise", runs=tmp_path / "runs")
    shutil.copy(smoke.out / "natural-noise.csv", tmp_path)
    before = find_csv(job).read_text()
    run_study(job, None)  # nothing could train
    assert find_csv(job).read_text() == before


def test_a_table_of_other_settings_is_not_overwritten(smoke, elsewhere, tmp_path):
    job = elsewhere("natural-noise", settings=["train.epochs=1"])
    shutil.copy(smoke.out / "natural-noise.csv", tmp_path)
    with pytest.raises(InputError, match=r"runs have other settings, and would be lost; choose another --out"):
        run_study(job, None)
    assert find_csv(job).read_text() == (smoke.out / "natural-noise.csv").read_text()


def test_a_table_grows_noise_by_noise_and_seed_by_seed(elsewhere, smoke, tmp_path):
    job = elsewhere("data-dependent", runs=tmp_path / "runs")
    seen = []
    for noises, seeds in ((["κ = 0.5"], 1), (["κ = 0.5"], 0), ([], 0)):
        part = replace(job, noises=noises, seeds=seeds)
        for cell in [*job.cells(), *job.cells(read_table(smoke.out / find_csv(job).name))]:
            if (not noises or cell.noise in noises) and (not seeds or cell.seed < seeds):
                shutil.copytree(smoke.runs / cell.recipe.title, job.runs / cell.recipe.title, dirs_exist_ok=True)
        run_study(part, None)  # nothing else is trained
        table = read_table(find_csv(job))
        seen.append((table["noise"].nunique(), table["seed"].nunique(), read_json(job)["missing"] == 0))
    assert seen == [(1, 1, False), (1, 2, False), (2, 2, True)]
    assert find_csv(job).read_text() == (smoke.out / find_csv(job).name).read_text()


def test_a_diverged_run_counts_as_chance_and_is_told(elsewhere, tmp_path):
    job = elsewhere("natural-noise", runs=tmp_path / "runs")
    shutil.copytree(elsewhere("natural-noise").runs, job.runs)
    cells = job.cells()
    Run.open(job.runs / cells[0].recipe.title).set_status("diverged")
    run_study(replace(job, noises=["none"]), None)  # trains nothing
    assert read_json(job)["diverged"] == 1
    first = read_table(find_csv(job)).iloc[0]
    assert first["accuracy"] == pytest.approx(0.1)
    assert first["nll"] == pytest.approx(math.log(10), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("cifar10-noisy", "corruption.rate=0.01"),
        ("cifar10-noisy", "train.seed=7"),
        ("fixed-covariance", "optimizer.hess_init=.5"),  # makes runs equal
    ],
)
def test_a_setting_that_would_make_labels_lie_is_refused(elsewhere, name, setting):
    with pytest.raises(InputError, match=f"--set {setting}: changes the noise or the seeds"):
        elsewhere(name, settings=[setting]).cells()


def test_a_setting_that_touches_no_label_is_in_every_recipe(elsewhere):
    cells = elsewhere("cifar10-noisy", settings=["train.epochs=3"]).cells()
    assert {cell.recipe.train.epochs for cell in cells} == {3}


def test_a_place_that_cannot_be_written_is_refused_before_any_training(elsewhere, tmp_path):
    (tmp_path / "file").write_text("")
    job = replace(elsewhere("natural-noise"), out=tmp_path / "file", runs=tmp_path / "runs")
    with pytest.raises(InputError, match="cannot be written"):
        run_study(job, None)
    assert not (tmp_path / "runs").exists()


def test_the_time_that_is_told_counts_the_steps_and_the_evaluation_of_every_run(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "time_step", lambda recipe, device: 0.05)
    job = Job(STUDIES["data-dependent"], SCALES["smoke"], tmp_path, tmp_path)
    jobs = job, replace(job, noises=["κ = 0.1"]), replace(job, settings=["evaluate.samples=100"])
    whole, half, longer = (int(re.search(r"about (\d+) s", commands.estimate([each], 1))[1]) for each in jobs)
    assert whole == pytest.approx(2 * half, abs=1)
    assert longer > whole + 5
