"""`reproduce` in processes that are killed, interrupted and doubled: the result is that of one that nobody disturbs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bayesmooth.lab.studies.rows import read_table

MAIN = "import sys; from bayesmooth_command import main; sys.exit(main())"
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
