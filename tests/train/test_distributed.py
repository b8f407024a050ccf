import subprocess
import sys

import pytest
import torch

from bayesmooth.train import Run, train

LIMIT = 200  # seconds; alone it takes about ten


@pytest.fixture
def torchrun():
    """Start two processes of a command with real torchrun; its output."""

    def start(*command):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        agent = subprocess.Popen([*launch, *command], **pipes)
        try:
            out, err = agent.communicate(timeout=LIMIT)
        finally:
            agent.terminate()  # it ends its workers, too
            agent.wait()
        assert agent.returncode == 0, err
        return out, err

    return start


def test_two_processes_give_the_run_of_one_on_the_joined_batch_and_one_of_them_writes(torchrun, tiny, tmp_path):
    # 101 examples in batches of 20: the last batch has one, and the second process nothing to do.
    recipe = tiny(
        data={"name": "digits", "limit": 101, "augment": "crop"},
        loss={"name": "ols"},
        optimizer={"name": "ivon", "lr": 0.1},
        train={"accumulate": 2, "clip_norm": 0.5},
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    command = ["-m", "bayesmooth", "train", tmp_path / "recipe.toml", "--out", tmp_path / "two"]
    out, err = torchrun(*command, "--save-seconds", "0")
    alone, together = train(recipe, tmp_path / "one", quiet=True), Run.open(tmp_path / "two")
    weights = together.model().state_dict()
    for name, weight in alone.model().state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(together.metrics(), alone.metrics(), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert out.count(str(together.path)) == 1
    assert err.count("epoch 2/2") == 1
