import pytest

from bayesmooth.data import DATASETS, Source, check, describe_datasets, load
from bayesmooth.errors import InputError

PUBLIC = ["mnist", "fashion_mnist", "cifar10", "cifar100", "cifar10n", "cifar100n", "clothing1m"]


def test_digits_need_no_files_and_their_splits_are_disjoint(tmp_path):
    pytest.importorskip("sklearn")
    train, test = load("digits", "train", tmp_path), load("digits", "test", tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    assert set(train.ids).isdisjoint(test.ids)
    assert train.inputs.shape[1:] == (1, 8, 8)
    standard = train.as_float(train.inputs)
    assert standard.mean().item() == pytest.approx(0, abs=0.01)
    assert standard.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_missing_set_says_which_files_go_where_and_what_brings_them(name, tmp_path):
    with pytest.raises(InputError) as caught:
        load(name, "train", tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{name}: not found in {tmp_path}")
    assert DATASETS[name].files in message
    assert "https://" in message or "http://" in message
    assert "BAYESMOOTH_DATA" in message
    assert "DIR" not in message


def test_the_data_directory_is_the_argument_then_the_variable_then_data(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESMOOTH_DATA", str(tmp_path / "variable"))
    with pytest.raises(InputError, match="variable"):
        load("mnist")
    with pytest.raises(InputError, match="argument"):
        load("mnist", data_dir=tmp_path / "argument")
    monkeypatch.delenv("BAYESMOOTH_DATA")
    with pytest.raises(InputError, match="not found in data: mnist"):
        load("mnist")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cifar", "train"), {}, "data set 'cifar' is not known; did you mean 'cifar10"),
        (("digits", "valid"), {}, "split 'valid' is not known; there are 'test' and 'train'"),
        (("mnist", "train"), {"verfy": 1}, "option 'verfy' is not known; did you mean 'verify'"),
        (("digits", "train"), {"size": 1}, "option 'size' is not known; there are none"),
        (("source", "train"), {}, "source: give its path with path="),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(arguments, options, message):
    with pytest.raises(InputError, match=message):
        load(*arguments, **options)


def test_every_set_is_described_in_plain_data(tmp_path):
    rows = describe_datasets(tmp_path)
    assert [row["name"] for row in rows] == list(DATASETS)
    assert {row["name"] for row in rows if row["found"]}.isdisjoint(PUBLIC)
    assert all(row["about"] and row["splits"] and row["files"] and row["bring"] for row in rows)


def test_a_set_is_found_where_its_folder_is(mnist_dir):
    found = {row["name"]: row["found"] for row in describe_datasets(mnist_dir)}
    assert found["digits"]
    assert found["mnist"]
    assert not found["cifar10"]


def test_check_tells_what_each_split_holds_or_what_is_wrong(mnist_dir):
    good, bad = check("mnist", mnist_dir, verify=False), check("mnist", mnist_dir)
    assert [(row["ok"], row["examples"], row["shape"]) for row in good] == [
        (True, 6, [1, 28, 28]),
        (True, 4, [1, 28, 28]),
    ]
    assert all(not row["ok"] and "md5" in row["problem"] for row in bad)


def test_loaders_know_their_splits_and_return_examples(mnist_dir):
    for dataset in DATASETS.values():
        assert dataset.splits[0] == "train"
        assert dataset.splits[-1] == "test"
    assert isinstance(load("mnist", "test", mnist_dir, verify=False), Source)
