import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import load
from bayesmooth.data.cifar import parse_batch, parse_human, parse_names
from bayesmooth.errors import InputError


def rewrite(path, **changes):
    content = pickle.loads(path.read_bytes()) | changes
    path.write_bytes(pickle.dumps(content, protocol=2))


def test_five_files_make_the_train_split_in_their_order(cifar_dir):
    train = load("cifar10", "train", cifar_dir, verify=False)
    parts = [
        pickle.loads((cifar_dir / "cifar-10-batches-py" / f"data_batch_{i}").read_bytes())
        for i in range(1, 6)
    ]
    assert train.inputs.shape == (20, 3, 32, 32)
    assert train.labels.tolist() == [label for part in parts for label in part["labels"]]
    assert train.ids == tuple(name for part in parts for name in part["filenames"])
    assert train.class_names[3] == "class 3"
    # The file holds the red plane, then green, then blue, row by row.
    assert train.inputs[5, 1, 2, 7] == parts[1]["data"][1, 1024 + 2 * 32 + 7]


def test_cifar100_has_fine_labels(cifar_dir):
    test = load("cifar100", "test", cifar_dir, verify=False)
    assert (len(test), test.num_classes, test.class_names[42]) == (4, 100, "fine 42")


@pytest.fixture
def human_dir(cifar_dir):
    clean = load("cifar10", "train", cifar_dir, verify=False).labels.numpy()
    labels = {"clean_label": clean, "aggre_label": (clean + 1) % 10, "random_label1": clean}
    torch.save(labels, cifar_dir / "CIFAR-10_human.pt")
    clean = load("cifar100", "train", cifar_dir, verify=False).labels.numpy()
    labels = {"clean_label": clean, "noisy_label": (clean + 1) % 100}
    torch.save(labels, cifar_dir / "CIFAR-100_human.pt", _use_new_zipfile_serialization=False)
    return cifar_dir


@pytest.mark.parametrize(("name", "classes"), [("cifar10n", 10), ("cifar100n", 100)])
def test_human_labels_lie_on_top_of_the_clean_ones(human_dir, name, classes):
    train = load(name, "train", human_dir, verify=False)
    assert torch.equal(train.labels, (train.clean_labels + 1) % classes)
    assert load(name, "test", human_dir, verify=False).clean_labels is None


def test_the_human_labels_are_chosen_by_name(human_dir):
    train = load("cifar10n", "train", human_dir, labels="random1", verify=False)
    assert torch.equal(train.labels, train.clean_labels)
    with pytest.raises(InputError, match="has no 'worse_label', only aggre_label, clean_label"):
        load("cifar10n", "train", human_dir, labels="worse", verify=False)
    with pytest.raises(InputError, match="must be one of aggre"):
        load("cifar10n", "train", human_dir, labels="best", verify=False)


def test_human_labels_for_other_pictures_are_refused(human_dir):
    rewrite(human_dir / "cifar-10-batches-py" / "data_batch_2", labels=[0, 0, 0, 0])
    rewrite(human_dir / "cifar-10-batches-py" / "data_batch_3", labels=[9, 9, 9, 9])
    with pytest.raises(InputError, match=r"clean_label\[\d+\]=\d, but CIFAR says \d"):
        load("cifar10n", "train", human_dir, verify=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": np.zeros((4, 3071), np.uint8)}, "N × 3072"),
        ({"data": np.zeros((4, 3072), np.int32)}, "N × 3072"),
        ({"data": [1, 2]}, "N × 3072"),
        ({"labels": [0, 1, 2]}, "`labels` are not 4 whole numbers"),
        ({"labels": [0, 1, 2, "3"]}, "`labels` are not 4 whole numbers"),
        ({"labels": [0, 1, 2, 10]}, r"labels\[3\]=10: must be from 0 to 9"),
        ({"labels": [0, -1, 2, 2**70]}, r"labels\[1\]=-1"),
        ({"filenames": ["a"]}, "`filenames` are not 4 strings"),
        ({"filenames": [b"\xff.png", "b", "c", "d"]}, "not UTF-8"),
    ],
)
def test_a_wrong_batch_is_named_with_its_place(cifar_dir, changes, message):
    rewrite(cifar_dir / "cifar-10-batches-py" / "data_batch_4", **changes)
    with pytest.raises(InputError, match=message) as caught:
        load("cifar10", "train", cifar_dir, verify=False)
    assert "data_batch_4" in str(caught.value)


def test_other_content_than_the_public_file_is_refused_unless_told(cifar_dir):
    with pytest.raises(InputError, match=r"batches\.meta: its md5 is not the public file's"):
        load("cifar10", "train", cifar_dir)


GOOD = pickle.dumps(
    {
        "data": np.zeros((1, 3072), np.uint8),
        "labels": [3],
        "filenames": ["a.png"],
        "label_names": ["a"],
    },
    2,
)


@given(st.integers(0, 200), st.integers(0, 6), st.binary(max_size=6))
def test_any_damage_is_a_batch_or_an_input_error(result_or_input_error, at, cut, insert):
    # The pixels are dull: damage what is before and after them.
    at = at if at < 150 else len(GOOD) - (at - 150)
    broken = GOOD[:at] + insert + GOOD[at + cut :]
    result_or_input_error("file", parse_batch, broken, "file", "labels", 10)
    result_or_input_error("file", parse_names, broken, "file", "label_names")
    result_or_input_error("file", parse_human, broken, "file", "labels", 1, 10)


@pytest.mark.parametrize(
    ("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
def test_real_cifar_is_the_public_one(real_data, moments, name, folder):
    root = real_data(folder)
    train, test = load(name, "train", root), load(name, "test", root)  # md5 of every file
    assert (len(train), len(test)) == (50_000, 10_000)
    assert set(train.labels.bincount().tolist()) == {50_000 // train.num_classes}
    assert train.class_names[train.labels[0]] == {"cifar10": "frog", "cifar100": "cattle"}[name]
    for c in range(3):
        found = moments(train.inputs[:, c])
        assert found == pytest.approx((train.mean[c], train.std[c]), abs=1e-4)


def test_real_human_labels_are_wrong_at_the_published_rates(real_data):
    root = real_data("CIFAR-10_human.pt", "cifar-10-batches-py")
    for labels, published in (("aggre", 0.0901), ("random1", 0.1723)):
        train = load("cifar10n", "train", root, labels=labels)  # held against CIFAR's own labels
        wrong = (train.labels != train.clean_labels).double().mean().item()
        assert wrong == pytest.approx(published, abs=5e-5)
