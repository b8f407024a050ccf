"""A small task, and IVON on it by hand: what every framework must come to as well."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesmooth import IVON

SCRIPT = Path(__file__).with_name("two_processes.py")
collect_ignore = [SCRIPT.name]  # a script, which has its own imports
SETTINGS = {"lr": 0.3, "ess": 40, "beta2": 0.9, "seed": 3}


def make_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def make_data():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def assert_same(one, other, atol=1e-6):
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=atol, rtol=0)


def distance(one, other):
    """Of the weights of two networks, relative to those of the second."""
    a, b = (nn.utils.parameters_to_vector(net.parameters()).detach() for net in (one, other))
    return float((a - b).norm() / b.norm())


def make_task():
    x, y = make_data()

    def parts(size=10):
        return [*zip(x.split(size), y.split(size), strict=True)]

    functions = {"net": make_net, "parts": parts, "assert_same": assert_same, "distance": distance}
    return SimpleNamespace(x=x, y=y, settings=SETTINGS, **functions)


@pytest.fixture
def task():
    return make_task()


@pytest.fixture
def quiet():
    """Frameworks warn about workers, loggers and devices; what is tested here is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def by_hand(task):
    """Weights after steps of a plain loop, each on these batches, whose gradients are averaged."""

    def train(steps, *, clip=None, **settings):
        model = task.net()
        optimizer = IVON(model.parameters(), **SETTINGS | settings)
        for batches in steps:

            def closure(batches=batches):
                optimizer.zero_grad()
                for x, y in batches:
                    (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)

            optimizer.step(closure)
        return model

    return train


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Run `two_processes.py`; what each rank ends with, weights and figures."""

    def run(framework, starts):
        place = tmp_path_factory.mktemp(framework)
        running = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), framework, str(place / "out")],
                env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
                cwd=place,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for variables in starts
        ]
        try:
            errors = [process.communicate(timeout=200)[1].decode() for process in running]
        finally:
            for process in running:
                process.kill()
        assert not any(process.returncode for process in running), "\n".join(errors)
        return [torch.load(path, weights_only=True) for path in sorted(place.glob("out.[01]"))]

    return run
