import re
import signal
import subprocess
import sys

import pytest

from bayesmooth import cli
from bayesmooth.train.loop import Loop
from bayesmooth.train.recipe import families, recipe_text

TINY = ["--set", "data.limit=100", "--set", "train.epochs=2", "--set", "model.hidden=[4]", "--quiet"]


@pytest.fixture
def run(capsys):
    """Call a command line; its exit code, and what it wrote."""

    def call(*line):
        code = cli.main([str(word) for word in line])
        written = capsys.readouterr()
        return code, written.out, written.err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two small runs, made by the command line."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("ce", "ivon"):
        assert cli.main(["train", f"digits-{name}", "--out", str(place / name), *TINY]) == 0
    return place


def test_train_prints_the_final_figures_and_where_they_are(run, tmp_path):
    code, out, err = run("train", "digits-ivon", "--out", tmp_path / "run", *TINY)
    assert code == 0
    assert err == ""
    assert out.startswith(f"{tmp_path / 'run'}\n")
    assert out.split()[1:5] == ["figure", "mean", "averaged", "accuracy"]
    untested = ["--set", "evaluate.test=false", *TINY[:-1]]
    _, out, err = run("train", "digits-ivon", "--out", tmp_path / "untested", *untested)
    assert "test" not in out.replace(str(tmp_path / "untested"), "")
    assert "validation.accuracy" in out
    assert [line.split("  ")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]  # no terminal


def test_predictions_do_not_overwrite_the_data(run, tmp_path):
    rows = "".join(f"{i * i % 17},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "data.csv").write_text(text := f"size,label\n{rows}")
    data, place = tmp_path / "data.csv", tmp_path / "run"
    assert run("train", data, "--out", place, "--set", "train.epochs=1", "--quiet")[0] == 0
    (tmp_path / "new.csv").write_text("size\n4\n")
    for given in (data, tmp_path / "new.csv"):  # those that the run learned from are safe, too
        code, _, err = run("predict", place, given, "--out", data)
        assert (code, data.read_text()) == (2, text)
        assert "the data themselves" in err


def test_train_takes_one_encoder_and_says_where_several_are_compared(run):
    code, _, err = run("train", "texts.csv", "--text", "text", "--encoder", "plain,minilm")
    assert (code, "--encoder plain,minilm: train takes one; `bayesmooth audit` compares several" in err) == (2, True)


def test_ctrl_c_saves_and_the_run_goes_on(run, tmp_path, monkeypatch):
    real, place = Loop.step, tmp_path / "run"

    def stop(loop, batch):
        real(loop, batch)
        if loop.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stop)
        code, _, err = run("train", "digits-ivon", "--out", place, *TINY)
    assert (code, err) == (130, f"bayesmooth: interrupted and saved; `bayesmooth train {place}` goes on\n")
    assert run("train", place, "--quiet")[0] == 0


def test_a_refused_recipe_leaves_its_directory_free(run, tmp_path):
    place = tmp_path / "run"
    code, _, err = run("train", "digits-ivon", "--out", place, *TINY, "--set", "optimizer.lr=-1")
    assert code == 2
    assert "lr=-1" in err
    assert run("train", "digits-ivon", "--out", place, *TINY)[0] == 0


def test_compare_prints_a_table_and_draws_a_plot(run, trained, tmp_path):
    code, out, err = run("compare", trained / "ce", trained / "ivon", "--plot", tmp_path / "plot.png")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["run", "status"], [str(trained / "ce"), "finished"], [str(trained / "ivon"), "finished"],
    ]  # fmt: skip
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "plot.png") in err
    log = tmp_path / "run.log"
    log.write_text("what a job printed")
    assert run("compare", log, trained / "ce")[1].count("\n") == 2
    assert run("compare", log) == (2, "", f"bayesmooth: {log}: a file; name the directories of runs\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "digits-ivom"], "did you mean 'digits-ivon' or 'digits-sam' or 'digits-ls'?"),
        (["train", "digits-ivon", "--set", "optimizer.lrr=1"], "unknown key 'lrr' in [optimizer]; did you mean 'lr'?"),
        (["train", "digits-ivon", "--device", "tpu9"], "device 'tpu9': torch has none here"),
        (["train", "digits-ivon", "--label", "kind"], "digits-ivon: no data, so there are no columns to name"),
        (["compare", "nowhere"], "nowhere: not a run"),
        (["data", "embed"], "data embed: which one?"),
        (["data", "embed", "digts"], "did you mean 'digits'?"),
        (["data", "embed", "source", "--set", "path"], "write key=value"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(line, message, run):
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert err.startswith("bayesmooth: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_bug_shows_its_traceback(monkeypatch):
    monkeypatch.setattr("bayesmooth.train.recipe.families", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["recipes"])


@pytest.mark.parametrize("command", cli.MODULES)
def test_every_command_explains_itself_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert f"  bayesmooth {command}" in shown
    assert len(shown.splitlines()) < 75
    assert cli.main([]) == 0
    assert f"\n  {command} " in capsys.readouterr().out


def test_recipes_are_listed_and_printed(run):
    code, out, _ = run("recipes")
    assert code == 0
    assert [line.split("  ")[-1].strip() for line in out.splitlines()] == [about for about, _ in families().values()]
    assert "digits-{ce,ls,sam,ivon}" in out
    assert run("recipes", "digits-ivon")[1] == recipe_text("digits-ivon")


def test_data_are_listed(run):
    code, out, _ = run("data", "list")
    assert code == 0
    assert "cifar-10-batches-py" in out


EXPLAIN = """
import contextlib, io, sys
from bayesmooth import cli
for command in [*cli.MODULES, "--help", "--version"]:
    sys.argv = ["bayesmooth", command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        cli.main()
    for name in ("torch", "numpy", "bayesmooth.train"):
        assert name not in sys.modules, (command, name)
"""


def test_every_command_is_explained_without_loading_torch():
    subprocess.run([sys.executable, "-c", EXPLAIN], check=True)


def test_what_the_help_says_of_choices_and_defaults_is_what_there_is(capsys):
    """It names them itself, so that nothing must be loaded."""
    from bayesmooth.data.opening import FILES
    from bayesmooth.fitting.choose import IVON_GRID
    from bayesmooth.optim.schedule import ENOUGH
    from reproduce.study import SCALES

    def words(command):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        return " ".join(capsys.readouterr().out.split())

    said = words("audit")
    assert {*FILES, ".gz"} <= {*re.findall(r"\.\w+", said)}
    said = words("train")
    assert f"{len(IVON_GRID)} settings of IVON" in said
    assert f"from {ENOUGH} of them on" in said
    assert f"{{{','.join(SCALES)}}}" in words("studies")
    assert words("clean").startswith("usage: bayesmooth clean labels [decisions] [option …]")
