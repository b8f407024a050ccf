"""Models from elsewhere: they train, stop, go on, and are found again."""

import sys

import pytest
import torch
from torch import nn

from bayesmooth.cli import main
from bayesmooth.errors import InputError
from bayesmooth.train import Recipe, Run, train
from bayesmooth.train.loop import make_model

MODULE = """
from torch import nn

def make(num_classes: int, input_shape, width: int = 8, normalise: bool = False):
    norm = [nn.BatchNorm1d(width)] if normalise else []
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *norm, nn.ReLU(), nn.Linear(width, num_classes))

def frozen(num_classes, input_shape):
    model = make(num_classes, input_shape, normalise=True)
    model[:4].requires_grad_(False)
    return model

def wrong_shape(num_classes):
    return nn.Flatten()

def no_module():
    return 3

number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module `mine` in the working directory, as a user's project has it."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def recipe(tiny):
    def make(**model):
        return tiny(model=model, optimizer={"name": "ivon", "lr": 0.1, "hess_init": 5.0})

    return make


def test_a_factory_trains_is_audited_and_resumed_by_its_name(mine, capsys):
    (mine / "r.toml").write_text(
        "[data]\nlimit = 60\n[model]\nname = 'mine:make'\nwidth = 5\n"
        "[optimizer]\nname = 'ivon'\nlr = 0.1\nhess_init = 5.0\n[train]\nepochs = 1\n"
    )
    assert main(["train", "r.toml", "--out", "run", "--quiet"]) == 0
    sys.modules.pop("mine")  # another process starts without it
    for line in (["audit", "run", "--quiet"], ["train", "run", "--quiet"]):
        assert main(line) == 0
    assert Run.open("run").model()[1].out_features == 5
    (mine / "mine.py").rename(mine / "moved.py")
    sys.modules.pop("mine", None)
    capsys.readouterr()
    for command in ("audit", "train"):
        assert main([command, "run"]) == 2
        assert "'mine:make': cannot be imported: No module named 'mine'" in capsys.readouterr().err


def test_the_arguments_of_a_factory_are_keys_and_part_of_the_hash(mine, recipe):
    narrow, wide = recipe(name="mine:make"), recipe(name="mine:make", width=9)
    assert narrow.model.options == {"width": 8, "normalise": False}
    assert narrow.hash != wide.hash
    assert narrow.hash == recipe(name="mine:make", width=8).hash
    assert Recipe.from_dict(wide.to_dict()) == wide
    with pytest.raises(InputError, match=r"unknown key 'witdh' in \[model\]; did you mean 'width'"):
        recipe(name="mine:make", witdh=9)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine:mkae", r"cannot be imported: module 'mine' has no attribute 'mkae'"),
        ("nowhere.models:make", r"No module named 'nowhere'.*PYTHONPATH"),
        ("mine:number", "is a int; name a function or a class"),
        ("mine:no_module", r"\[model\] mine:no_module: it gives a int"),
        ("mine:wrong_shape", r"it gives \(1, 64\) .* must give logits of shape \(1, 10\)"),
        ("mlpp", r"did you mean 'mlp'\?; a model of your own is package\.module:factory"),
    ],
)
def test_what_cannot_be_a_model_is_refused_with_the_reason(mine, recipe, name, says, tmp_path):
    with pytest.raises(InputError, match=says):
        train(recipe(name=name), tmp_path / "run", quiet=True)


def test_weights_come_from_a_file_and_a_new_head_is_fresh(recipe, tmp_path):
    start = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 7))
    torch.save(start.state_dict(), tmp_path / "start.pt")
    section = {"name": "mlp", "hidden": [16], "weights": str(tmp_path / "start.pt")}
    facts = {"num_classes": 10, "input_shape": (1, 8, 8)}
    model = make_model(recipe(**section, new_head=True), **facts)
    fresh = make_model(recipe(name="mlp", hidden=[16]), **facts)
    assert torch.equal(model[1].weight, start[1].weight)
    assert torch.equal(model[3].weight, fresh[3].weight)
    with pytest.raises(InputError, match=r"\[model\] mlp: .*of other classes.* new_head"):
        make_model(recipe(**section), **facts)
    run = train(recipe(**section, new_head=True), tmp_path / "run", quiet=True)
    (tmp_path / "start.pt").unlink()  # a run does not need the file it started from
    assert Run.open(run.path).model()[1].out_features == 16


def test_what_the_factory_freezes_stays_as_it_is_and_is_no_part_of_the_posterior(mine, recipe, tmp_path):
    run = train(recipe(name="mine:frozen"), tmp_path / "run", quiet=True)
    before = make_model(run.recipe, num_classes=10, input_shape=(1, 8, 8))
    for name, weight in run.model().state_dict().items():
        changed = not torch.equal(weight, before.state_dict()[name])
        assert changed == name.startswith("4."), name  # batch-norm statistics are frozen, too
    assert set(run.posterior().mean) == {"4.weight", "4.bias"}


def test_the_template_for_ones_own_pictures_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    image = pytest.importorskip("PIL.Image")
    for kind, colour in (("cats", (200, 30, 30)), ("dogs", (30, 30, 200))):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for i in range(40):
            image.new("RGB", (70, 64), colour).save(tmp_path / "pictures" / kind / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "own"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    short = ["--set", "train.epochs=1", "--quiet"]
    assert main(["train", "mine.toml", "--out", "run", *short]) == 0
    (tmp_path / "table.csv").write_text("x,y,label\n" + "1,2,a\n3,1,b\n" * 60)
    table = ["name=source", "path=table.csv", "label=label", "augment=none"]
    lines = (tmp_path / "mine.toml").read_text().splitlines()
    (tmp_path / "mine.toml").write_text("\n".join(x for x in lines if not x.startswith("size")))
    changes = [word for each in table for word in ("--set", f"data.{each}")]
    changes += ["--set", "model.name=mlp"]
    assert main(["train", "mine.toml", "--out", "table", *changes, *short]) == 0
