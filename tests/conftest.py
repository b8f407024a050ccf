"""What every test shares."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.posterior import Posterior

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("house")
# a shell in the background passes on that these are ignored, and then no test could send them
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


SLOW_FILES = {
    "test_benchmarks.py", "test_docs.py", "test_examples.py", "test_notebooks.py", "test_readme.py",
    "test_command.py", "test_release.py", "test_report_browser.py", "test_two_ranks.py", "test_ivon_converges.py",
}  # fmt: skip
SLOW_FIXTURES = {"smoke", "two_of_three", "two_nodes"}


def pytest_collection_modifyitems(items):
    """Mark kinds of tests that start programs, browsers or whole studies; `make test-fast` leaves them out."""
    for item in items:
        if item.path.name in SLOW_FILES or SLOW_FIXTURES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def limit_files():
    """Set the size beyond which the system lets no file grow, as a full disk would; None: any size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_closure(optimizer, compute):
    """What `step` wants: the gradients of what is computed, and its value."""

    def closure():
        optimizer.zero_grad()
        loss = compute()
        loss.backward()
        return loss

    return closure


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def weights_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def pytest_runtest_setup(item):
    """Weights that a test leaves to chance are the same whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_dir():
    """Where the public data sets are, if this machine has them."""
    place = os.environ.get("BAYESMOOTH_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("BAYESMOOTH_DATA names no folder: the real data sets are not on this machine")
    return Path(place)


@pytest.fixture
def gaussian():
    """Makes a posterior around the weights that a model has."""

    def make(model, std=0.1):
        mean = {name: p.detach().clone() for name, p in model.named_parameters()}
        return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})

    return make


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


@pytest.fixture(scope="session")
def result_or_input_error():
    """Call it; the only exception that may come out is an InputError that names the file."""

    def attempt(name, function, *arguments, **options):
        try:
            return function(*arguments, **options)
        except InputError as error:
            return error if name in str(error) else pytest.fail(f"{error} does not name {name}")

    return attempt
