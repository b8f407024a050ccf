import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).with_name("two_ranks.py")
SCRIPT = runpy.run_path(str(PATH))
BOUNDS = {torch.float64: (1e-9, 1e-10), torch.float32: (0.0, 2e-6), torch.bfloat16: (0.0, 1e-2)}
pytestmark = pytest.mark.slow
LIMIT = 120  # seconds; alone it takes about ten


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two real processes ends with, by case."""
    place = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(PATH)]
    there = [str(place / "rendezvous"), str(place / "weights")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([*command, str(rank), *there], env=environment, stderr=subprocess.PIPE) for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=LIMIT)[1].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [torch.load(place / f"weights.{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(("kind", "name", "dtype"), list(SCRIPT["cases"]()), ids=str)
def test_two_ranks_equal_one_rank_on_the_joined_batch(ranks, kind, name, dtype):
    with torch.random.fork_rng():
        model = SCRIPT["network"](dtype)
    alone = SCRIPT["train"](model, SCRIPT["OPTIMIZERS"][name](model.parameters(), 5))
    rtol, atol = BOUNDS[dtype]
    for rank in ranks:
        torch.testing.assert_close(rank[f"{name} in {kind}, {dtype}"], alone, rtol=rtol, atol=atol)
