import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.train import Recipe, train
from bayesmooth.train.recipe import families, find_differences, recipe_text

IVON = "[optimizer]\nname = 'ivon'\nlr = 0.2\n"


def write(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            IVON + "weight_deacy = 1e-3",
            "recipe.toml: unknown key 'weight_deacy' in [optimizer]; did you mean 'weight_decay'?",
        ),
        ("[optimiser]\nlr = 1", "recipe.toml: unknown section [optimiser]; did you mean 'optimizer'?"),
        ("[loss]\nname = 'lss'", "recipe.toml: [loss]: unknown name 'lss'; did you mean 'ls'"),
        ("[loss]\nname = 'ce'\nalpha = 0.1", "recipe.toml: unknown key 'alpha' in [loss]; there are 'name'"),
        ("[train]\nepochs = 'many'", "recipe.toml: [train] epochs = 'many': must be a whole number"),
        ("[train]\nepochs = true", "recipe.toml: [train] epochs = True: must be a whole number"),
        ("[train]\nseed = 9223372036854775808", "seed = 9223372036854775808: must be < 9223372036854775808"),
        ("[data]\nseed = 99999999999999999999", "recipe.toml: [data] seed = 99999999999999999999: must be <"),
        ("[train]\nepochs = 0", "recipe.toml: [train] epochs = 0: must be ≥ 1"),
        ("[train]\nclip_norm = nan", "recipe.toml: [train] clip_norm = nan: must be a number"),
        ("[train]\nprecision = 'half'", "must be one of 'float32', 'bfloat16'"),
        ("[data]\nvalidation = 1.0", "recipe.toml: [data] validation = 1.0: must be < 1"),
        ("[data]\naugment = 'crop_flop'", "[data] augment: unknown name 'crop_flop'; did you mean 'crop_flip'"),
        ("[optimizer]\nname = 'ivon'", "recipe.toml: [optimizer] needs 'lr'; it has no default"),
        ("[corruption]\nseed = 'mine'", "[corruption] seed = 'mine': must be a whole number or one of 'run'"),
        ("[model]\nname = 'mlp'\nhidden = 'wide'", "recipe.toml: [model] hidden = 'wide': must be a list"),
        ("[model]\nname = 'mlp'\nhidden = [8, 0.5]", "recipe.toml: [model] hidden = [8, 0.5]: must be"),
        ("[model]\nname = 'cnn'\nnum_classes = 3", "unknown key 'num_classes' in [model]"),
        ("epochs = 3", "'epochs' stands outside of a section"),
        ("[train\nepochs = 3", "recipe.toml: not a recipe that can be read (TOMLDecodeError"),
    ],
)
def test_a_mistake_gives_its_place_the_rule_and_the_way_out(tmp_path, text, message):
    with pytest.raises(InputError) as raised:
        Recipe.load(write(tmp_path, text))
    assert message in str(raised.value)


def test_a_missing_file_and_a_broken_override_are_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        Recipe.load(tmp_path / "nowhere.toml")
    for wrong in ("optimizer.lr", "lr=3", ".lr=3", "optimizer.=3"):
        with pytest.raises(InputError, match=r"write section\.key=value"):
            Recipe.load(write(tmp_path, ""), [wrong])


def test_the_hash_sees_values_and_not_how_they_are_written_and_changes_name_what_differs(tiny):
    same = tiny(optimizer={"name": "ivon", "lr": 1, "beta1": 0.9})
    assert same.hash == tiny(optimizer={"lr": 1.0, "name": "ivon"}).hash
    assert same.hash != tiny(optimizer={"name": "ivon", "lr": 1, "beta1": 0.8}).hash
    assert same.hash in same.title
    one, other = (tiny(), tiny(optimizer={"name": "sgd", "lr": 0.5, "momentum": 0.9}, train={"seed": 3}))
    assert find_differences([one, one]) == [{}, {}]
    assert find_differences([one, other])[1] == {"optimizer.lr": 0.5, "train.seed": 3}


def test_overrides_are_read_as_toml_or_as_text(tmp_path):
    changes = [
        "optimizer.lr=.5",
        "loss.name=ls",
        "model.widths=[4, 8]",
        "train.channels_last=true",
        "train.clip_norm=inf",
    ]
    recipe = Recipe.load(write(tmp_path, ""), changes)
    assert recipe.optimizer.options["lr"] == 0.5
    assert recipe.loss.name == "ls"
    assert recipe.model.options["widths"] == (4, 8)
    assert recipe.train.channels_last
    assert recipe.train.clip_norm == math.inf


@given(st.text(), st.floats(min_value=0), st.lists(st.integers(-(2**60), 2**60)))
def test_whatever_is_written_is_read_back(tmp_path_factory, text, number, whole):
    tree = {"data": {"name": "source", "path": text}, "train": {"clip_norm": number}}
    recipe = Recipe.from_dict(tree | {"model": {"name": "mlp", "hidden": whole}})
    assert Recipe.load(write(tmp_path_factory.mktemp("toml"), recipe.to_toml())) == recipe


SHIPPED = [name for _, members in families().values() for name in members]
ON_A_LAPTOP = [name for name in SHIPPED if name.startswith(("digits", "mnist"))]
CIFAR = [name for name in SHIPPED if name.startswith("cifar")]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_loads_says_what_it_is_and_belongs_to_one_run(name):
    recipe = Recipe.load(name)
    assert recipe_text(name).startswith("# ")
    assert "[method" not in recipe_text(name)
    others = [Recipe.load(other).hash for other in SHIPPED if other != name]
    assert recipe.hash not in others


def test_a_member_of_a_family_has_the_shared_lines_and_its_own_in_their_place(tmp_path, monkeypatch):
    text = "# about\n\n[a]\nx = 1 # one\ny = 2\n\n[method.m.a]\nx = 3\n\n[method.n.a]\nz = 4\n"
    (tmp_path / "f.toml").write_text(text)
    monkeypatch.setattr("bayesmooth.train.recipe.RECIPES", [tmp_path])
    m, n = "# about\n\n[a]\nx = 3\ny = 2\n", "# about\n\n[a]\nx = 1 # one\ny = 2\nz = 4\n"
    assert families.__wrapped__() == {"f-{m,n}": ("about", {"f-m": m, "f-n": n})}


@pytest.mark.parametrize("name", ON_A_LAPTOP)
def test_every_laptop_recipe_trains(name, tmp_path, request):
    if name.startswith("mnist"):
        request.getfixturevalue("data_dir")
    few = ["train.epochs=1", "train.batch_size=1000", "evaluate.test=false"]
    run = train(Recipe.load(name, few), tmp_path / "run", quiet=True)
    assert run.status == "finished"


@pytest.mark.parametrize("name", CIFAR)
def test_every_cifar_recipe_has_the_papers_settings(name):
    recipe = Recipe.load(name)
    data, noise, method = name.split("-")
    assert recipe.model.name == "resnet34"
    assert (recipe.train.epochs, recipe.train.batch_size, recipe.data.validation) == (200, 50, 0)
    options, schedule = recipe.optimizer.options, recipe.schedule
    assert options.get("momentum", options.get("beta1")) == 0.9
    decay = {"cifar10": 1e-3, "cifar100": 5e-4 if noise == "pairflip20" else 2e-4}[data]
    assert options["weight_decay"] == decay
    if method == "ivon":
        assert (schedule.name, schedule.options["warmup"], options["beta2"]) == ("cosine", 5 / 200, 1 - 1e-5)
        assert "ess" not in options
    else:
        assert (schedule.name, schedule.options["milestones"]) == ("steps", (100 / 200, 150 / 200))
    rates = {"cifar10": {"ls": 0.05, "sam": 0.05, "ivon": 0.2}}
    table = {
        "symmetric20": {"ls": 0.1, "sam": 0.05, "ivon": 0.8},
        "symmetric40": {"ls": 0.1, "sam": 0.1, "ivon": 0.8},
        "pairflip20": {"ls": 0.1, "sam": 0.1, "ivon": 0.5},
    }
    assert options["lr"] == (rates[data] if data in rates else table[noise])[method]
    hessians = {"cifar10": 0.9, "cifar100": 0.5 if noise == "pairflip20" else 0.2}
    assert options.get("hess_init", hessians[data]) == hessians[data]
