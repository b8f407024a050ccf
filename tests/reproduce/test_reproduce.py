"""`reproduce` in processes that are killed, interrupted and doubled: the result is that of one that nobody disturbs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bayesmooth.errors import InputError
from bayesmooth.train import Run
from reproduce import STUDIES
from reproduce.reproduce import (
    Folders,
    change_cells,
    publish,
    redraw,
    reproduce,
    tabulate,
)
from reproduce.rows import read_table
from reproduce.scale import SMOKE

FACTS = {"scale": "smoke", "command": "", "runs": 0, "seconds": 0}

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
        read_table(place / f"{STUDY}.csv").drop(columns="seconds")
        for place in (tmp_path / "results", smoke.out)
    )
    assert found.equals(expected)
    content = json.loads((tmp_path / "results" / f"{STUDY}.json").read_text())
    assert (content["missing"], content["runs"]) == (0, expected["hash"].nunique())
    drawn = tmp_path / "results" / f"{STUDY}.svg"
    assert drawn.read_bytes() == (smoke.out / drawn.name).read_bytes()
    assert not list((tmp_path / "results").glob(".*"))  # nothing half written is left


@pytest.mark.parametrize("name", ["natural-noise", "mnist-noise"])
def test_the_same_figure_comes_from_the_csv_alone(name, smoke, tmp_path):
    study = STUDIES[name]
    for kind in ("csv", "svg"):
        (tmp_path / f"{study.name}.{kind}").write_bytes(
            (smoke.out / f"{study.name}.{kind}").read_bytes()
        )
    before = (tmp_path / f"{study.name}.svg").read_text()
    redraw(study, tmp_path, FACTS)
    assert (tmp_path / f"{study.name}.svg").read_text() == before


def test_where_a_run_is_missing_nothing_is_judged(smoke, tmp_path):
    study = STUDIES["cifar10-noisy"]
    (tmp_path / f"{study.name}.csv").write_bytes((smoke.out / f"{study.name}.csv").read_bytes())
    redraw(study, tmp_path, {**FACTS, "missing": 1})
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert {claim["verdict"] for claim in content["claims"]} == {"not run"}
    assert "1 runs missing" in (tmp_path / "index.html").read_text()


def test_the_number_of_missing_runs_is_counted(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    cells = study.cells(SMOKE)
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    shutil.rmtree(copies / cells[-1].recipe.title)
    folders = Folders(tmp_path, copies)
    publish(study, SMOKE, cells, tabulate(study, cells, folders), folders)
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert (content["missing"], content["runs"]) == (1, len(study.recipes(SMOKE)) - 1)


def test_rows_of_an_earlier_table_are_kept_and_not_trained_again(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    shutil.copy(smoke.out / f"{study.name}.csv", tmp_path)
    before = (tmp_path / f"{study.name}.csv").read_text()
    reproduce(study, SMOKE, Folders(tmp_path, tmp_path / "runs"), None)  # nothing could train
    assert (tmp_path / f"{study.name}.csv").read_text() == before


def test_ctrl_c_leaves_the_figure_of_what_has_run(smoke, tmp_path, monkeypatch):
    study = STUDIES["natural-noise"]
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    shutil.rmtree(copies / study.cells(SMOKE)[-1].recipe.title)

    def stopped(*given, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduce.reproduce.sweep", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(study, SMOKE, Folders(tmp_path, copies), None)
    content = json.loads((tmp_path / f"{study.name}.json").read_text())
    assert content["missing"] == 1
    assert {claim["verdict"] for claim in content["claims"]} == {"not run"}
    assert (tmp_path / f"{study.name}.png").exists()
    before = (tmp_path / f"{study.name}.csv").read_text()
    kept = replace(study, cells=lambda scale: study.cells(scale)[:1])  # as with other settings
    monkeypatch.setattr("reproduce.reproduce._train", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(kept, SMOKE, Folders(tmp_path, copies), None)
    assert (tmp_path / f"{study.name}.csv").read_text() == before


def test_label_noise_is_measured_once(smoke, tmp_path):
    study, calls = STUDIES["mnist-noise"], []

    def measure(finished):
        calls.append(finished)
        return study.measure(finished)

    counting = replace(study, measure=measure)
    with ThreadPoolExecutor(1) as executor:
        reproduce(counting, SMOKE, Folders(tmp_path, smoke.runs), executor, quiet=True)
    assert [finished.quiet for finished in calls] == [True]


def test_a_diverged_run_counts_as_chance_and_is_told(smoke, tmp_path):
    study = STUDIES["natural-noise"]
    cells = study.cells(SMOKE)
    copies = shutil.copytree(smoke.runs, tmp_path / "runs")
    Run.open(copies / cells[0].recipe.title).set_status("diverged")
    folders = Folders(tmp_path, copies)
    publish(study, SMOKE, cells, tabulate(study, cells, folders), folders)
    assert json.loads((tmp_path / f"{study.name}.json").read_text())["diverged"] == 1
    first = read_table(tmp_path / f"{study.name}.csv").iloc[0]
    assert first["accuracy"] == pytest.approx(0.1)
    assert first["nll"] == pytest.approx(math.log(10), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "setting", "why"),
    [
        ("cifar10-noisy", "corruption.rate=0.01", "noise and seeds"),
        ("strategies", "train.seed=7", "noise and seeds"),
        ("fixed-covariance", "optimizer.hess_init=.5", "makes runs equal"),
    ],
)
def test_a_setting_that_would_make_labels_lie_is_refused(name, setting, why):
    with pytest.raises(InputError, match=why):
        change_cells(STUDIES[name].cells(SMOKE), [setting])


def test_a_setting_that_touches_no_label_is_in_every_recipe():
    cells = change_cells(STUDIES["cifar10-noisy"].cells(SMOKE), ["train.epochs=3"])
    assert {cell.recipe.train.epochs for cell in cells} == {3}


def test_a_place_that_cannot_be_written_is_refused_before_any_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made.*choose another place"):
        reproduce(
            STUDIES["natural-noise"], SMOKE, Folders(tmp_path / "file", tmp_path / "runs"), None
        )
    assert not (tmp_path / "runs").exists()
