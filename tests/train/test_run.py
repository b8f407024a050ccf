import json
import os
import re
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

from bayesmooth.cli import main
from bayesmooth.data import load
from bayesmooth.errors import InputError
from bayesmooth.files import save_checkpoint
from bayesmooth.train import DivergedError, Run, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny):
    """A finished IVON run."""
    recipe = tiny(optimizer={"name": "ivon", "lr": 0.1}, schedule={"name": "constant"})
    return train(recipe, tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_a_finished_run_has_every_file_reads_them_all_and_refuses_another_recipe(finished, tiny):
    run = Run.open(finished.path)
    names = {file.name for file in run.path.iterdir()} - {"lock"}
    assert names == {
        "recipe.toml", "run.json", "data.json", "metrics.jsonl", "report.json",
        "posterior.safetensors", "model.pt",
    }  # fmt: skip
    assert run.recipe == finished.recipe
    assert run.status == "finished"
    status = json.loads((run.path / "run.json").read_text())
    assert status.items() >= {"status": "finished", "hash": run.recipe.hash, "seed": 0}.items()
    assert torch.__version__.startswith(status["packages"]["torch"])  # which may add +cpu
    assert status["threads"] == torch.get_num_threads()
    assert [record["epoch"] for record in run.metrics()] == [1, 2]
    assert run.seconds() > 0
    record = run.metrics()[-1]
    assert {"test.ece", "averaged.nll", "train.loss", "validation.accuracy", "memorised", "lr"} <= record.keys()
    assert run.report().items() >= {**record, "title": run.recipe.title}.items()
    with pytest.raises(InputError, match=r"optimizer\.name: ivon → sgd.*choose another directory"):
        train(tiny(), run.path, quiet=True)


def test_the_model_and_the_posterior_of_a_run_agree_and_weights_are_kept_once(finished, tiny, tmp_path):
    model, posterior = finished.model(), finished.posterior()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, posterior.mean[name])
    assert model.training is False
    assert finished.checkpoint().keys() == {"recipe", "model", "loss"}
    assert not finished.checkpoint()["model"]  # all of them are in the posterior
    plain = train(tiny(train={"epochs": 1}), tmp_path / "run", quiet=True, save_seconds=0)
    assert plain.checkpoint()["model"].keys() == plain.model().state_dict().keys()
    assert not (plain.path / "last.pt").exists()


def test_the_examples_of_a_run_are_the_noisy_ones_it_saw(finished):
    splits = finished.splits()
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [96, 24, 359]
    wrong = sum((part.labels.numbers != part.clean).sum() for part in parts[:2])
    assert wrong == len(splits.corruption.index) > 20


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be damaged."""
    return Run(shutil.copytree(finished.path, tmp_path / "run"), finished.recipe)


@pytest.mark.parametrize("command", ["audit", "train"])
def test_a_comment_in_the_recipe_does_no_harm_and_another_value_is_refused(command, copied):
    place = copied.path / "recipe.toml"
    text = place.read_text()
    place.write_text(text.replace("rate = 0.3", "rate = 0.3 # as in the paper"))
    run = Run.open(copied.path)
    assert train(run.recipe, run.path, quiet=True).status == "finished"
    copied.set_status("running")
    place.write_text(text.replace("rate = 0.3", "rate = 0.1"))
    run = Run.open(copied.path)
    with pytest.raises(InputError, match=r"rate: 0\.1 → 0\.3|its data have changed"):
        run.audit() if command == "audit" else train(run.recipe, run.path, quiet=True)


def test_an_endlessly_nested_recipe_is_an_error_in_a_line(copied):
    for text in ("a = " + 5000 * "[" + 5000 * "]", "[optimizer.lr]\nx = 1", "[optimizer.a.b.c]"):
        (copied.path / "recipe.toml").write_text(text)
        with pytest.raises(InputError, match=r"recipe\.toml: "):
            Run.open(copied.path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("posterior.safetensors", lambda run: run.posterior()),
        ("model.pt", lambda run: run.model()),
        ("metrics.jsonl", lambda run: run.metrics()),
        ("report.json", lambda run: run.report()),
        ("data.json", lambda run: run.model()),
    ],
)
def test_a_file_that_holds_something_else_is_named(name, read, copied):
    (copied.path / name).write_text("garbage\n")
    with pytest.raises(InputError, match=name):
        read(copied)


@pytest.mark.parametrize("command", ["audit", "train"])
def test_a_run_is_not_measured_on_other_data_and_does_not_go_on_with_them(command, copied, monkeypatch, capsys):
    if command == "train":
        copied.set_status("running")
    monkeypatch.setattr("bayesmooth.train.evaluate.load", changed_load)
    assert main([command, str(copied.path)]) == 2
    assert "its data have changed: labels: " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "audit", "compare", "predict"])
def test_a_run_that_may_not_be_read_is_an_error_in_a_line(command, copied, monkeypatch, capsys):
    def refuse(self, *how):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    assert main([command, str(copied.path), *["new.csv"][: command == "predict"]]) == 2
    assert capsys.readouterr().err.startswith(f"bayesmooth: {copied.path}")


def changed_load(*arguments, **options):
    examples = load(*arguments, **options)
    return replace(examples, labels=examples.labels.renumber(examples.labels.numbers.roll(1)))


def test_a_directory_of_something_else_is_not_touched_and_a_run_may_be_started_twice_at_once(tiny, tmp_path):
    # The other process has made the directory, and the recipe is not written yet.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml.tmp").write_text("half a rec")
    assert train(tiny(train={"epochs": 1}), tmp_path / "run", quiet=True).status == "finished"
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "thesis.tex").write_text("all my work")
    with pytest.raises(InputError, match=r"holds 'thesis.tex' and is not a run"):
        train(tiny(), tmp_path, quiet=True)
    with pytest.raises(InputError, match="not a run"):
        Run.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_directory_and_a_dead_one_leaves_no_lock(tiny, tmp_path):
    run = Run(tmp_path / "run", tiny())
    with run.hold(0):
        run.set_status("running")
    hear, tell = os.pipe()
    if not (other := os.fork()):
        with FileLock(run.path / "lock"):
            os.write(tell, b"held")
            signal.pause()
    assert os.read(hear, 4) == b"held"
    assert run.status == "running"
    with pytest.raises(InputError, match="another process is at work in it"):
        train(tiny(), run.path, quiet=True, patience=0)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert run.status == "killed"
    assert train(tiny(), run.path, quiet=True).status == "finished"


def test_an_unfinished_run_says_what_is_missing(tiny, tmp_path):
    run = Run(tmp_path / "run", tiny())
    with run.hold(0):
        assert run.status == "new"
    for read in (run.report, run.model, run.data):
        with pytest.raises(InputError, match=r"run: .*finished \(new\); `bayesmooth train .*run` goes on"):
            read()
    with pytest.raises(InputError, match=r"no posterior\.safetensors, as its optimizer is sgd; ivon and bsam have one"):
        run.posterior()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("report.json", Run.report),
        ("model.pt", Run.model),
        ("posterior.safetensors", Run.model),
        ("data.json", Run.data),
    ],
)
def test_a_finished_run_that_has_lost_a_file_says_how_to_get_it_back(name, read, copied):
    report = copied.report()
    (copied.path / name).unlink()
    with pytest.raises(InputError, match=rf"finished, but has no {name}; put it back, or delete run\.json and train"):
        read(copied)
    (copied.path / "run.json").unlink()
    assert train(copied.recipe, copied.path, quiet=True).report() == report
    read(copied)


def test_divergence_stops_with_a_diagnosis_and_keeps_the_last_good_checkpoint(tiny, tmp_path):
    recipe = tiny(optimizer={"name": "sgd", "lr": 1e8}, schedule={"name": "cosine", "warmup": 0.9, "start": 0.0})
    with pytest.raises(DivergedError) as raised:
        train(recipe, tmp_path / "run", quiet=True, save_seconds=0)
    message = str(raised.value)
    assert re.match("diverged in epoch 1, batch .* the loss is .* gradient norm ", message)
    assert "try a smaller optimizer.lr" in message
    run = Run.open(tmp_path / "run")
    assert run.status == "diverged"
    assert json.loads((run.path / "run.json").read_text())["message"] == message
    assert all(bool(weight.isfinite().all()) for weight in run.model().state_dict().values())


@pytest.mark.parametrize("batch_size", [20, 1000])  # within the epoch, and at its end
def test_weights_that_overflow_are_not_saved(batch_size, tiny, tmp_path):
    recipe = tiny(
        optimizer={"name": "sgd", "lr": float("inf")}, schedule={"name": "constant"}, train={"batch_size": batch_size}
    )
    with pytest.raises(DivergedError, match=r"epoch 1, batch 2: the weight \S+ is not finite"):
        train(recipe, tmp_path / "run", quiet=True, save_seconds=0 if batch_size == 20 else 300)
    assert not list((tmp_path / "run").glob("*.pt"))


def test_the_best_epoch_is_the_first_with_the_best_validation_accuracy(tiny, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.7, 0.7, 0.6])
    monkeypatch.setattr(
        "bayesmooth.train.loop.evaluate", lambda *known, **how: {"validation.accuracy": next(accuracies)}
    )
    run = train(tiny(train={"epochs": 4}), tmp_path / "run", quiet=True)
    assert run.report()["best_epoch"] == 2


def test_a_full_disk_is_an_error_and_the_last_checkpoint_stays(tiny, tmp_path, before_step, same_run, limit_files):
    recipe = tiny(model={"name": "mlp", "hidden": [400]})
    before_step(3, lambda: limit_files(10_000))
    with pytest.raises(InputError, match="cannot be written: File too large; what was saved before is intact"):
        train(recipe, tmp_path / "full", quiet=True, save_seconds=0)
    limit_files(None)
    run = Run.open(tmp_path / "full")
    assert run.status == "failed"
    assert run.checkpoint()["progress"]["batch"] == 3
    same_run(train(recipe, run.path, quiet=True), train(recipe, tmp_path / "whole", quiet=True))


def test_a_checkpoint_that_was_cut_or_would_run_code_is_refused_with_a_way_out(copied, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    save_checkpoint(copied.path / "model.pt", {"x": Evil()})
    with pytest.raises(InputError, match="not a checkpoint"):
        copied.model()
    assert not (tmp_path / "pwned").exists()
    copied.set_status("interrupted")
    (copied.path / "last.pt").write_bytes((copied.path / "model.pt").read_bytes()[:500])
    (copied.path / "model.pt").unlink()
    with pytest.raises(InputError, match=r"last\.pt: not a checkpoint .* delete the run"):
        train(copied.recipe, copied.path, quiet=True)
