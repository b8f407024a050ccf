"""However a run is stopped, it ends with the bits of one that was not."""

import multiprocessing
import random
import signal

import pytest
import torch

from bayesmooth.cli import main
from bayesmooth.losses import LOSSES
from bayesmooth.optim import OPTIMIZERS
from bayesmooth.train import Run, train
from bayesmooth.train.loop import Loop
from bayesmooth.train.run import StoppedError

BATCHES = 5  # an epoch of the tiny recipe


def crash():
    raise RuntimeError("power cut")


def combinations():
    for loss in LOSSES:
        yield loss, "sgd"
    for optimizer in set(OPTIMIZERS) - {"sgd"}:
        yield "ce", optimizer
    yield from [("ols", "ivon"), ("loras", "sam"), ("self_knowledge", "bsam")]


@pytest.mark.parametrize(("loss", "optimizer"), sorted(combinations()))
def test_a_crash_in_any_method_leaves_no_trace_in_the_result(loss, optimizer, tiny, tmp_path, before_step, same_run):
    needed = {"als": {"weight": 0.1}, "alasca": {"stages": ["layer1"]}}
    model = {"alasca": {"name": "resnet_small", "widths": [4], "blocks": [1]}}
    recipe = tiny(
        loss={"name": loss, **needed.get(loss, {})},
        optimizer={"name": optimizer, "lr": 0.05},
        model=model.get(loss, {}),
    )
    whole = train(recipe, tmp_path / "whole", quiet=True)
    before_step(BATCHES + 3, crash)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "broken", quiet=True, save_seconds=0)
    assert Run.open(tmp_path / "broken").status == "failed"
    assert Run.open(tmp_path / "broken").checkpoint()["progress"]["batch"] == 3
    broken = train(recipe, tmp_path / "broken", quiet=True)
    assert broken.status == "finished"
    same_run(whole, broken)


class Dropout(torch.nn.Module):
    def __init__(self, num_classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, num_classes))

    def forward(self, x):
        return self.layers(x)


def test_dropout_draws_the_same_masks_after_a_crash_and_leaves_the_callers_generator_alone(
    tiny, tmp_path, before_step, same_run, monkeypatch
):
    monkeypatch.setitem(__import__("bayesmooth.models").models.MODELS, "dropout", Dropout)
    recipe = tiny(model={"name": "dropout"})
    before = torch.get_rng_state()
    whole = train(recipe, tmp_path / "whole", quiet=True)
    before_step(3, crash)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "broken", quiet=True, save_seconds=0)
    torch.rand(7)  # another process would have drawn other numbers
    same_run(whole, train(recipe, tmp_path / "broken", quiet=True))
    torch.set_rng_state(before)
    train(recipe, tmp_path / "again", quiet=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("step", [0, 3, BATCHES])
def test_ctrl_c_saves_between_two_steps_and_the_run_goes_on_from_there(step, tiny, tmp_path, before_step, same_run):
    whole = train(tiny(), tmp_path / "whole", quiet=True)
    before_step(step, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(StoppedError):
        train(tiny(), tmp_path / "stopped", quiet=True)
    stopped = Run.open(tmp_path / "stopped")
    assert stopped.status == "interrupted"
    assert stopped.checkpoint()["schedule"]["last_epoch"] == step + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    same_run(whole, train(tiny(), tmp_path / "stopped", quiet=True))


def test_ctrl_c_during_an_evaluation_does_not_repeat_the_epochs_steps(tiny, tmp_path, monkeypatch, same_run):
    recipe = tiny(loss={"name": "ols"})  # its end_epoch must happen once
    whole = train(recipe, tmp_path / "whole", quiet=True)
    real = Loop.measure

    def interrupted(loop, tick):
        signal.raise_signal(signal.SIGTERM)
        return real(loop, tick)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "measure", interrupted)
        with pytest.raises(StoppedError):
            train(recipe, tmp_path / "stopped", quiet=True)
    assert Run.open(tmp_path / "stopped").checkpoint()["progress"]["batch"] == BATCHES
    same_run(whole, train(recipe, tmp_path / "stopped", quiet=True))


# A run that is killed a few milliseconds after a step, in the middle of whatever it does then. The moment is counted in
# steps, not in seconds, so that a fast machine kills as often as a slow one.
VICTIM = """
import os, signal, threading
from bayesmooth.cli import main
from bayesmooth.train.loop import Loop

real, steps = Loop.step, iter(range(10**6))

def step(loop, batch):
    if next(steps) == last:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    real(loop, batch)

Loop.step = step
main(command)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing is learned")
def test_kill_9_at_random_moments_and_the_result_is_the_same_to_the_bit(tiny, tmp_path, same_run):
    recipe = tiny(
        data={"name": "digits", "limit": 600, "validation": 0.1, "augment": "crop"},
        model={"name": "cnn", "widths": [4, 8]},
        loss={"name": "ols"},
        optimizer={"name": "ivon", "lr": 0.2, "hess_init": 5.0},
        train={"epochs": 12, "batch_size": 10},  # 648 steps
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    whole = train(recipe, tmp_path / "whole", quiet=True)
    command = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "killed"), "--quiet"]
    command += ["--save-seconds", "0"]
    # A server that has torch loaded starts the victims, so that nine of them take seconds.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["bayesmooth.cli.runs", "bayesmooth.train", "sklearn.datasets"])
    moments = random.Random(0)
    for _ in range(8):
        moment = {"last": moments.randrange(50), "delay": moments.uniform(0, 0.01)}
        victim = server.Process(target=exec, args=(VICTIM, {"command": command, **moment}))
        victim.start()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
        assert Run.open(tmp_path / "killed").status in ("killed", "new")
    last = server.Process(target=main, args=(command,))
    last.start()
    last.join()
    assert last.exitcode == 0
    same_run(whole, Run.open(tmp_path / "killed"))


@pytest.mark.filterwarnings("default")
def test_a_run_that_learns_nothing_says_so_once_after_a_third_of_its_steps(tiny, tmp_path, capsys):
    recipe = tiny(data={"limit": 150}, optimizer={"name": "sgd", "lr": 1e-9}, train={"epochs": 50})
    (tmp_path / "r.toml").write_text(recipe.to_toml())
    assert main(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run")]) == 0
    before, _, after = capsys.readouterr().err.partition("bayesmooth: warning: nothing is learned")
    assert "after 102 of 300 steps" in after
    assert before.count("epoch ") == 16
    assert after.count("epoch ") == 34
    assert "nothing is learned" not in after


def test_a_run_that_learns_gets_no_warning(tiny, tmp_path, capsys):
    train(tiny(data={"limit": 1000}, train={"epochs": 3}), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
