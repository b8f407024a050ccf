import json
import os
import resource
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import load
from bayesmooth.errors import InputError
from bayesmooth.files import locked
from bayesmooth.train import DivergedError, Run, train
from bayesmooth.train.run import load_checkpoint, load_last, save_checkpoint, save_last


@pytest.fixture(scope="module")
def finished(tmp_path_factory, request):
    """A finished IVON run."""
    from bayesmooth.train import Recipe

    tree = {
        "data": {"limit": 120, "validation": 0.2},
        "corruption": {"name": "symmetric", "rate": 0.3},
        "model": {"name": "mlp", "hidden": [16]},
        "optimizer": {"name": "ivon", "lr": 0.1},
        "train": {"epochs": 2, "batch_size": 20},
        "evaluate": {"samples": 2, "averaged_every": 1},
    }
    return train(Recipe.from_dict(tree), tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_a_finished_run_has_every_file_and_reads_them_all(finished):
    run = Run.open(finished.path)
    names = {str(file.relative_to(run.path)) for file in run.path.rglob("*") if file.is_file()}
    assert names == {
        "recipe.toml", "run.json", "noise.json", "environment.json", "data.json", "lock",
        "metrics.jsonl", "timing.jsonl", "posterior.safetensors", "report.json",
        "checkpoints/last.pt", "checkpoints/previous.pt", "checkpoints/best.pt", "SHA256SUMS",
    }  # fmt: skip
    assert run.recipe == finished.recipe
    assert run.status == "finished"
    status = json.loads((run.path / "run.json").read_text())
    assert status == {"status": "finished", "hash": run.recipe.hash, "seed": 0}
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["threads"] == torch.get_num_threads()
    assert [record["epoch"] for record in run.metrics()] == [1, 2]
    assert run.seconds() > 0


def test_the_model_and_the_posterior_of_a_run_agree(finished):
    model, posterior = finished.model(), finished.posterior()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, posterior.mean[name])
    assert finished.model("best").training is False


def test_the_examples_of_a_run_are_the_noisy_ones_it_saw(finished):
    train_set, validation, test = (
        finished.examples(name) for name in ("train", "validation", "test")
    )
    assert (len(train_set), len(validation), len(test)) == (96, 24, 359)
    corruption = finished.corruption()
    wrong = (train_set.labels != train_set.clean_labels).sum() + (
        validation.labels != validation.clean_labels
    ).sum()
    assert wrong == len(corruption.index) > 20


def test_figures_are_at_the_mean_and_averaged_and_count_memorised_errors(finished):
    record = finished.metrics()[-1]
    for kind in ("test", "averaged"):
        assert {
            f"{kind}.{name}" for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece")
        } <= record.keys()
    assert {
        "train.loss",
        "train.accuracy",
        "validation.accuracy",
        "memorised",
        "lr",
        "step",
    } <= record.keys()
    assert finished.report().items() >= {**record, "title": finished.recipe.title}.items()


def test_a_finished_run_is_not_trained_again(finished):
    before = {
        file: file.stat().st_mtime_ns for file in finished.path.rglob("*") if file.name != "lock"
    }
    assert train(finished.recipe, finished.path, quiet=True).status == "finished"
    assert before == {
        file: file.stat().st_mtime_ns for file in finished.path.rglob("*") if file.name != "lock"
    }


def test_another_recipe_is_refused_and_the_difference_shown(finished, tiny):
    with pytest.raises(InputError, match=r"optimizer\.name: ivon → sgd.*choose another directory"):
        train(tiny(), finished.path, quiet=True)


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be damaged."""
    return Run(shutil.copytree(finished.path, tmp_path / "run"), finished.recipe)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("state", ["finished", "killed"])
def test_a_recipe_edited_in_the_run_is_refused_and_the_difference_shown(state, copied):
    if state == "killed":
        copied.set_status("running")
        (copied.path / "SHA256SUMS").unlink()
    edit(copied.path / "recipe.toml", "rate = 0.3", "rate = 0.1")
    for command in ("evaluate", "resume"):
        with pytest.raises(InputError, match=r"checkpoint's recipe differs: .*rate: 0\.1 → 0\.3"):
            read_or_resume(command, copied.path)


def read_or_resume(command, path):
    run = Run.open(path)
    return run.model() if command == "evaluate" else train(run.recipe, path, quiet=True)


def test_a_comment_in_the_recipe_of_a_run_does_no_harm(copied):
    edit(copied.path / "recipe.toml", "rate = 0.3", "rate = 0.3 # as in the paper")
    run = Run.open(copied.path)
    assert run.recipe == copied.recipe
    assert run.status == "finished"
    assert train(run.recipe, run.path, quiet=True).damaged() == []


@pytest.mark.parametrize("content", ["", "garbage\n", "00  thesis.tex\n"])
def test_damaged_checksums_are_an_error_with_a_way_out(content, copied):
    (copied.path / "SHA256SUMS").write_text(content)
    with pytest.raises(InputError, match=r"SHA256SUMS: damaged; delete it"):
        Run.open(copied.path)


def test_an_empty_or_endlessly_nested_recipe_is_an_error_in_a_line(copied):
    (copied.path / "recipe.toml").write_text("\n")
    with pytest.raises(InputError, match=r"recipe\.toml: is empty"):
        Run.open(copied.path)
    for text in ("a = " + 5000 * "[" + 5000 * "]", "[optimizer.lr]\nx = 1", "[optimizer.a.b.c]"):
        (copied.path / "recipe.toml").write_text(text)
        with pytest.raises(InputError, match=r"recipe\.toml: "):
            Run.open(copied.path)


READERS = {
    "posterior.safetensors": lambda run: run.posterior(),
    "checkpoints/last.pt": lambda run: run.model(),
    "checkpoints/best.pt": lambda run: run.model("best"),
    "metrics.jsonl": lambda run: run.metrics(),
    "timing.jsonl": lambda run: run.seconds(),
    "report.json": lambda run: run.report(),
    "data.json": lambda run: run.model(),
    "noise.json": lambda run: run.corruption(),
}


@pytest.mark.parametrize("name", READERS)
def test_whoever_reads_a_file_of_a_finished_run_finds_a_flipped_bit(name, copied):
    flip_a_bit(copied.path / name)
    with pytest.raises(InputError, match=name):
        READERS[name](copied)
    assert copied.damaged() == [name]
    if not name.endswith((".pt", ".safetensors")):
        assert copied.status == "damaged"


def test_a_description_without_classes_says_how_it_is_made_again(copied):
    (copied.path / "SHA256SUMS").unlink()
    (copied.path / "data.json").write_text("{}")
    with pytest.raises(InputError, match=r"data\.json: has no class_names .*bayesmooth resume"):
        copied.model()


def test_the_checksums_are_those_of_the_command_sha256sum(finished):
    listed = (finished.path / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in listed} > {"recipe.toml", "run.json", "metrics.jsonl"}
    check = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=finished.path, capture_output=True, check=False
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("name", ["posterior.safetensors", "checkpoints/last.pt", "noise.json"])
def test_what_can_be_made_again_is_mended_to_the_bit(name, copied, finished, same_run, capsys):
    flip_a_bit(copied.path / name)
    assert train(copied.recipe, copied.path, quiet=True).status == "finished"
    same_run(finished, copied)
    assert copied.damaged() == []


@pytest.mark.parametrize("name", ["data.json", "environment.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_description_does_not_block_a_run_that_goes_on(
    name, content, copied, finished, same_run, capsys
):
    (copied.path / "SHA256SUMS").unlink()
    copied.set_status("interrupted")
    (copied.path / name).write_text(content)
    assert train(copied.recipe, copied.path, quiet=True).status == "finished"
    assert f"{name}: was damaged, and is written again" in capsys.readouterr().err
    same_run(finished, copied)


def test_what_only_training_could_make_again_is_refused(copied):
    os.truncate(copied.path / "metrics.jsonl", 30)
    with pytest.raises(
        InputError, match=r"metrics\.jsonl: was changed after the run .*; put it back"
    ):
        train(copied.recipe, copied.path, quiet=True)
    assert json.loads((copied.path / "run.json").read_text())["status"] == "finished"


def test_a_run_from_before_the_checksums_is_read_as_it_is(copied):
    (copied.path / "SHA256SUMS").unlink()
    assert Run.open(copied.path).status == "finished"
    assert train(copied.recipe, copied.path, quiet=True).metrics() == copied.metrics()


def test_a_run_does_not_go_on_with_other_data(tiny, tmp_path, before_step, monkeypatch):
    before_step(7, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tiny(), tmp_path / "run", quiet=True)
    monkeypatch.setattr("bayesmooth.train.splits.load", changed_load)
    with pytest.raises(
        InputError, match=r"its data have changed: labels: \w{12} → \w{12}; summary: .*bring back"
    ):
        train(tiny(), tmp_path / "run", quiet=True)


def changed_load(*arguments, **options):
    examples = load(*arguments, **options)
    return replace(examples, labels=examples.labels.roll(1))


def test_a_directory_of_something_else_is_not_touched(tiny, tmp_path):
    (tmp_path / "thesis.tex").write_text("all my work")
    with pytest.raises(InputError, match=r"holds 'thesis.tex' and is not a run"):
        train(tiny(), tmp_path, quiet=True)
    with pytest.raises(InputError, match="not a run"):
        Run.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_may_start_one_run_at_the_same_moment(tiny, tmp_path):
    # The other one has made the directory, and neither the lock nor the recipe is written yet.
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "recipe.toml.tmp").write_text("half a rec")
    assert train(tiny(train={"epochs": 1}), tmp_path / "run", quiet=True).status == "finished"


def test_two_processes_do_not_train_in_one_directory(tiny, tmp_path):
    Run.start(tmp_path / "run", tiny())
    with (
        locked(tmp_path / "run"),
        pytest.raises(InputError, match="another process is at work in it"),
    ):
        train(tiny(), tmp_path / "run", quiet=True)


def test_an_unfinished_run_says_what_is_missing(tiny, tmp_path):
    run = Run.start(tmp_path / "run", tiny())
    assert run.status == "new"
    for read in (run.report, run.model, run.posterior):
        with pytest.raises(InputError, match=r"run: .*(finished|checkpoint)"):
            read()


def test_divergence_stops_with_a_diagnosis_and_keeps_the_last_good_checkpoint(
    tiny, tmp_path, monkeypatch
):
    recipe = tiny(
        optimizer={"name": "sgd", "lr": 1e8},
        schedule={"name": "cosine", "warmup": 0.9, "start": 0.0},
    )
    with pytest.raises(DivergedError) as raised:
        train(recipe, tmp_path / "run", quiet=True, save_steps=1)
    message = str(raised.value)
    for part in (
        "diverged in epoch 1, batch",
        "the loss is",
        "gradient norm",
        "try a smaller optimizer.lr",
    ):
        assert part in message
    run = Run.open(tmp_path / "run")
    assert run.status == "diverged"
    assert json.loads((run.path / "run.json").read_text())["message"] == message
    assert all(bool(weight.isfinite().all()) for weight in run.model().state_dict().values())


@pytest.mark.parametrize("batch_size", [20, 1000])  # within the epoch, and at its end
def test_weights_that_overflow_are_not_saved(batch_size, tiny, tmp_path):
    recipe = tiny(
        optimizer={"name": "sgd", "lr": float("inf")},
        schedule={"name": "constant"},
        train={"batch_size": batch_size},
    )
    with pytest.raises(DivergedError, match=r"epoch 1, batch 2: the weight \S+ is not finite"):
        train(recipe, tmp_path / "run", quiet=True, save_steps=1 if batch_size == 20 else 0)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_the_best_checkpoint_is_the_first_with_the_best_validation_accuracy(
    tiny, tmp_path, monkeypatch
):
    accuracies = iter([0.5, 0.7, 0.7, 0.6])
    monkeypatch.setattr(
        "bayesmooth.train.loop.evaluate",
        lambda *known, **how: {"validation.accuracy": next(accuracies)},
    )
    run = train(tiny(train={"epochs": 4}), tmp_path / "run", quiet=True)
    best = run.checkpoint("best")
    assert (best["epoch"], best["accuracy"], run.report()["best_epoch"]) == (2, 0.7, 2)


def test_a_damaged_checkpoint_is_passed_over_and_the_result_is_the_same(
    tiny, tmp_path, capsys, same_run
):
    whole = train(tiny(train={"epochs": 3}), tmp_path / "whole", quiet=True)
    hurt = train(tiny(train={"epochs": 3}), tmp_path / "hurt", quiet=True)
    (hurt.path / "run.json").unlink()
    os.truncate(hurt.path / "checkpoints/last.pt", 5000)
    same_run(whole, train(hurt.recipe, hurt.path, quiet=True))
    assert (
        "last.pt: damaged (5000 bytes, the digest does not match); going on from epoch 2"
        in capsys.readouterr().err
    )


@contextmanager
def files_of_at_most(size):
    """The system refuses to let a file grow beyond this, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_is_an_error_and_the_last_checkpoint_stays(
    tiny, tmp_path, before_step, same_run
):
    recipe = tiny(model={"name": "mlp", "hidden": [400]})
    with ExitStack() as full:
        before_step(3, lambda: full.enter_context(files_of_at_most(10_000)))
        with pytest.raises(
            InputError, match="cannot be written: File too large; what was saved before is intact"
        ):
            train(recipe, tmp_path / "full", quiet=True, save_steps=2)
    run = Run.open(tmp_path / "full")
    assert run.status == "failed"
    assert run.checkpoint()["progress"]["batch"] == 2
    same_run(train(recipe, run.path, quiet=True), train(recipe, tmp_path / "whole", quiet=True))


@pytest.mark.parametrize(
    ("file", "content"),
    [("report.json", None), ("report.json", "{"), ("run.json", "{}"), ("run.json", "[")],
)
def test_a_finished_run_that_lost_its_last_files_is_damaged_and_mended(
    file, content, finished, tmp_path, same_run
):
    hurt = Run(tmp_path / "run", finished.recipe)
    shutil.copytree(finished.path, hurt.path)
    (hurt.path / file).unlink()
    if content is not None:
        (hurt.path / file).write_text(content)
    assert hurt.status == "damaged"
    if file == "report.json":
        with pytest.raises(InputError, match=f"`bayesmooth resume {hurt.path}`"):
            hurt.report()
    assert train(hurt.recipe, hurt.path, quiet=True).status == "finished"
    same_run(finished, hurt)


def test_damaged_metrics_are_an_error_before_the_training_goes_on(tiny, tmp_path, before_step):
    before_step(7, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tiny(), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("garbage\n")
    before_step(0, lambda: pytest.fail("it trains"))
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: 'garbage' is not"):
        train(tiny(), tmp_path / "run", quiet=True)


def test_the_time_of_an_epoch_that_a_crash_took_back_counts_once(tiny, tmp_path):
    run = Run.start(tmp_path / "run", tiny())
    lines = [
        {"epoch": epoch, "train_seconds": seconds} for epoch, seconds in ((1, 2), (2, 3), (2, 4))
    ]
    (run.path / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.seconds() == 6.0


STATE = {"weights": torch.arange(2000.0), "progress": {"epoch": 3, "best": 0.5}, "none": None}


def test_what_is_saved_is_loaded_and_torch_opens_it_too(tmp_path):
    save_checkpoint(tmp_path / "a.pt", STATE)
    for loaded in (
        load_checkpoint(tmp_path / "a.pt"),
        torch.load(tmp_path / "a.pt", weights_only=True),
    ):
        assert torch.equal(loaded["weights"], STATE["weights"])
        assert loaded["progress"] == STATE["progress"]


@given(st.integers(0, 10**6), st.sampled_from(["cut", "flip"]))
def test_every_damage_is_found(tmp_path_factory, place, damage):
    path = tmp_path_factory.mktemp("damage") / "a.pt"
    save_checkpoint(path, STATE)
    content = bytearray(path.read_bytes())
    place %= len(content)
    if damage == "cut":
        content = content[:place]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        load_checkpoint(path)


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(tmp_path):
    for epoch in (1, 2, 3):
        save_last(tmp_path, {"epoch": epoch})
    assert load_last(tmp_path) == ({"epoch": 3}, [])
    os.truncate(tmp_path / "last.pt", 100)
    state, damage = load_last(tmp_path)
    assert state == {"epoch": 2}
    assert "last.pt: damaged (100 bytes" in damage[0]
    os.truncate(tmp_path / "previous.pt", 0)
    with pytest.raises(InputError, match=r"no whole checkpoint is left: .*last.pt.*previous.pt"):
        load_last(tmp_path)


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path, monkeypatch):
    save_last(tmp_path, {"epoch": 1})
    real = os.replace

    def power_cut(source, target):
        real(source, target)
        if str(target).endswith("previous.pt"):
            raise RuntimeError("power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(RuntimeError, match="power cut"):
        save_last(tmp_path, {"epoch": 2})
    monkeypatch.undo()
    assert load_last(tmp_path) == ({"epoch": 2}, [])
    save_last(tmp_path, {"epoch": 3})
    assert load_last(tmp_path) == ({"epoch": 3}, [])


def test_no_checkpoint_yet_is_not_an_error(tmp_path):
    assert load_last(tmp_path) == (None, [])


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    save_checkpoint(tmp_path / "a.pt", {"x": Evil()})
    with pytest.raises(InputError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "pwned").exists()
