import json
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.train import Run
from bayesmooth.train.sweep import Processes, RayTasks, grid, keep_freed_memory, sweep
from tests.train.test_sweep import TREE

IVON = TREE | {"optimizer": {"name": "ivon", "lr": 0.1}, "train": {"epochs": 2}, "evaluate": {"samples": 2}}
FILES = ("metrics.jsonl", "report.json", "recipe.toml")

needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed (extra cluster)")


def test_ctrl_c_is_heard_by_the_parent_alone():
    """Blocked from the start: the server that forks prints a traceback if it comes while torch is loaded."""
    with Processes(1) as executor:
        assert signal.SIGINT in executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture(scope="module")
def recipes():
    return grid(IVON, ["train.seed=0:2"])


@pytest.fixture(scope="module")
def local(recipes, tmp_path_factory):
    """The runs of the recipes, made in this process."""
    with ThreadPoolExecutor(1) as executor:
        return sweep(recipes, tmp_path_factory.mktemp("local"), executor)


def assert_equal_runs(some, others):
    for one, other in zip(some, others, strict=True):
        assert (one.status, other.status) == ("finished", "finished"), other.message
        for file in FILES:
            assert (one.run.path / file).read_bytes() == (other.run.path / file).read_bytes()


def test_processes_give_the_same_runs_and_share_the_threads(recipes, local, tmp_path):
    with Processes(2) as executor:
        outcomes = sweep(recipes, tmp_path, executor)
        assert executor.submit(torch.get_num_threads).result() == max(1, torch.get_num_threads() // 2)
    assert_equal_runs(local, outcomes)


def test_a_killed_process_costs_its_job_only():
    with Processes(1) as executor:
        killed, alive = (executor.submit(signal.raise_signal, signal.SIGKILL), executor.submit(abs, -3))
        with pytest.raises(RuntimeError, match="exit code -9"):
            killed.result()
        assert alive.result() == 3
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()


def test_shutting_down_stops_what_runs_and_drops_what_waits():
    executor = Processes(1)
    running, waiting = executor.submit(time.sleep, 600), executor.submit(abs, -1)
    while not executor.running:
        time.sleep(0.01)
    executor.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="was lost"):
        running.result()


@pytest.fixture(scope="module")
def two_nodes():
    """A Ray cluster of two nodes on this machine, with one CPU each."""
    pytest.importorskip("ray", reason="ray is not installed (extra cluster)")
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_same_runs_though_a_worker_is_killed(recipes, local, two_nodes, tmp_path):
    (long,) = grid({**IVON, "train": {"epochs": 150}}, [])
    path = tmp_path / long.title
    killed = []

    def kill_the_worker():
        """Once the long run is on its way, kill the process that does it."""
        while not (path / "metrics.jsonl").exists() or len(Run.open(path).metrics()) < 5:
            time.sleep(0.02)
        killed.append(json.loads((path / "run.json").read_text())["process"])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_worker, daemon=True)
    killer.start()
    with RayTasks(two_nodes.address) as executor:
        *short, survivor = sweep([*recipes, long], tmp_path, executor)
        # As Ctrl-C does; leaving the context is the second time.
        executor.shutdown(cancel_futures=True)
    assert_equal_runs(local, short)
    assert killed
    assert survivor.status == "finished"
    assert len(Run.open(path).metrics()) == 150
    with ThreadPoolExecutor(1) as executor:
        alone = sweep([long], tmp_path / "alone", executor)
    assert_equal_runs(alone, [survivor])


def test_without_a_ray_cluster_the_error_says_how_to_start_one(monkeypatch):
    def init(**how):
        raise ConnectionError("Could not find any running Ray instance.")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr("bayesmooth.train.sweep.require", lambda *name, **how: ray)
    with pytest.raises(InputError, match=r"--address auto: no Ray cluster.*`ray start --head`"):
        RayTasks("auto")


def faults_of(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.ones(1_000_000).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_that_a_step_frees_is_there_for_the_next_one():
    keep_freed_memory()
    faults_of(3)
    # 4 MB in pages of 4 KB would be 1,000 per step; now and then other threads have faults of their own.
    assert min(faults_of(20) for _ in range(5)) < 1000
