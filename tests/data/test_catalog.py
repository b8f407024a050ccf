"""Data sets by name: of a user's own data the training rows decide how all others are read."""

import numpy as np
import pytest
import torch

from bayesmooth.data import load
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
TRAIN = "1,red,a,train\n3,blue,b,train\n,red,a,train\n3,blue,b,train\n" * 3


@pytest.fixture
def table(write):
    return write(f"x,colour,label,split\n{TRAIN}100,green,b,test\n,red,a,test\n")


def test_the_training_rows_number_scale_and_fill_those_of_the_test(table):
    train, test = (load("source", split, path=table) for split in ("train", "test"))
    assert train.mean[0] == test.mean[0] == pytest.approx(7 / 3)
    assert (len(train), len(test)) == (12, 2)
    assert test.inputs.tolist() == [[100, 0, 0], [pytest.approx(7 / 3), 0, 1]]
    assert test.labels.texts() == ["b", "a"]
    spread = np.std([1, 3, 7 / 3, 3])
    assert test.batch(torch.tensor([0]))[0, 0] == pytest.approx((100 - 7 / 3) / spread, rel=1e-5)
    assert "missing numbers count as the mean of their column: 3 in 'x'" in map(str, train.notes)
    raw = load("source", "test", path=table, standardize=False)
    assert raw.batch(torch.tensor([0])).tolist() == [[100, 0, 0]]


def test_one_file_per_split_is_read_as_the_train_file(write, tmp_path):
    write("x,label\n" + "1,a\n3,b\n" * 5, "train.csv")
    write("x,label\n7,b\n", "test.csv")
    test = load("source", "test", path=str(tmp_path / "{split}.csv"))
    assert (test.class_names, test.labels.texts()) == (("a", "b"), ["b"])
    assert test.batch(torch.tensor([0])).tolist() == [[5]]
    for split, labels in (("train", ["a", "b", "a", "c", "b", "c"]), ("test", ["c", "b"])):
        np.save(tmp_path / f"x-{split}.npy", np.arange(3.0 * len(labels)).reshape(-1, 3))
        np.save(tmp_path / f"y-{split}.npy", labels)
    options = {"path": str(tmp_path / "x-{split}.npy"), "labels": str(tmp_path / "y-{split}.npy")}
    assert load("source", "test", **options).labels.numbers.tolist() == [2, 1]


def test_a_split_that_is_not_there_says_how_to_give_one(write):
    for table in ("x,label\n" + "1,a\n3,b\n" * 3, "x,label,split\n" + "1,a,train\n3,b,train\n" * 3):
        with pytest.raises(InputError, match=r"has no 'test'; add a column `split` .*, or put \{split\} in the path"):
            load("source", "test", path=write(table))
    with pytest.raises(InputError, match="has no 'train'; add a column `split`"):  # it would learn the test
        load("source", "train", path=write("x,label,split\n" + "1,a,training\n3,b,test\n" * 3))


def test_folders_are_classes_and_pictures_come_in_a_fixed_order(picture_dir):
    train = load("folder", "train", path=str(picture_dir), size=16)
    assert train.class_names == ("cat", "dog")
    assert train.labels.numbers.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.ids[:2] == ("cat/0.png", "cat/1.png")
    assert train.input_shape == (3, 16, 16)
    assert train.inputs[torch.tensor([0, 4])][:, :, 8, 8].tolist() == [[250, 10, 10], [10, 10, 250]]


def test_classes_of_a_split_are_numbered_as_in_train(picture_dir):
    (picture_dir / "test" / "cat").rename(picture_dir / "test" / "dog")
    assert load("folder", "test", path=str(picture_dir)).labels.numbers.tolist() == [1]
    (picture_dir / "test" / "dog").rename(picture_dir / "test" / "emu")
    with pytest.raises(InputError, match="'emu' is not one of the classes cat, dog"):
        load("folder", "test", path=str(picture_dir))


def test_without_train_and_test_all_pictures_are_for_training(picture_dir):
    flat = load("folder", "train", data_dir=picture_dir, path="train")
    assert (len(flat), flat.name) == (6, "train/train")
    with pytest.raises(InputError, match="has no 'test'; add a column"):
        load("folder", "test", data_dir=picture_dir, path="train")


def test_a_place_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"folder: path='nowhere': found neither there"):
        load("folder", "train", data_dir=tmp_path, path="nowhere")


def test_digits_need_no_files_and_their_splits_are_disjoint(tmp_path):
    pytest.importorskip("sklearn")
    train, test = load("digits", "train", tmp_path), load("digits", "test", tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    assert set(train.ids).isdisjoint(test.ids)
    assert train.inputs.shape[1:] == (1, 8, 8)
    standard = train.batch(torch.arange(len(train)))
    assert standard.mean().item() == pytest.approx(0, abs=0.01)
    assert standard.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cifar", "train"), {}, "data set='cifar': must be .* did you mean 'cifar10"),
        (("digits", "valid"), {}, "split='valid': must be one of 'train', 'test'"),
        (("mnist", "train"), {"verfy": 1}, "option of mnist='verfy': must be .* did you mean 'verify'"),
        (("digits", "train"), {"size": 1}, "option of digits='size': there is none"),
        (("source", "train"), {}, "source: give its path with path="),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(arguments, options, message):
    with pytest.raises(InputError, match=message):
        load(*arguments, **options)
