import gzip
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import AUGMENTATIONS, batches, load
from bayesmooth.data.reading import read_lines
from bayesmooth.data.sets import (
    parse_batch,
    parse_human,
    parse_idx,
    parse_keys,
    parse_labels,
    parse_names,
)
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
    assert train.labels.numbers.tolist() == [label for part in parts for label in part["labels"]]
    assert train.ids == tuple(name for part in parts for name in part["filenames"])
    assert train.class_names[3] == "class 3"
    # The file holds the red plane, then green, then blue, row by row.
    assert train.inputs[5, 1, 2, 7] == parts[1]["data"][1, 1024 + 2 * 32 + 7]


def test_cifar100_has_fine_labels(cifar_dir):
    test = load("cifar100", "test", cifar_dir, verify=False)
    assert (len(test), test.num_classes, test.class_names[42]) == (4, 100, "fine 42")


@pytest.fixture
def human_dir(cifar_dir):
    clean = load("cifar10", "train", cifar_dir, verify=False).labels.numbers.numpy()
    labels = {"clean_label": clean, "aggre_label": (clean + 1) % 10, "random_label1": clean}
    torch.save(labels, cifar_dir / "CIFAR-10_human.pt")
    clean = load("cifar100", "train", cifar_dir, verify=False).labels.numbers.numpy()
    labels = {"clean_label": clean, "noisy_label": (clean + 1) % 100}
    torch.save(labels, cifar_dir / "CIFAR-100_human.pt", _use_new_zipfile_serialization=False)
    return cifar_dir


@pytest.mark.parametrize(("name", "classes"), [("cifar10n", 10), ("cifar100n", 100)])
def test_human_labels_lie_on_top_of_the_clean_ones(human_dir, name, classes):
    train = load(name, "train", human_dir, verify=False)
    assert torch.equal(train.labels.numbers, (train.clean + 1) % classes)
    assert load(name, "test", human_dir, verify=False).clean is None


def test_the_human_labels_are_chosen_by_name(human_dir):
    train = load("cifar10n", "train", human_dir, labels="random1", verify=False)
    assert torch.equal(train.labels.numbers, train.clean)
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
        ({"labels": [0, 1, 2]}, r"labels of shape \(3,\): must be one per row, \(4,\)"),
        ({"labels": [0, 1, 2, "3"]}, "labels are not whole numbers"),
        ({"labels": [0, 1, 2, 10]}, r"labels\[3\]=10: must be from 0 to 9"),
        ({"labels": [0, -1, 2, 3]}, r"labels\[1\]=-1"),
        ({"labels": [0, 1, 2, 2**70]}, "labels are not whole numbers from 0 to 9"),
        ({"labels": [0, 1, 2, [3]]}, "labels are not whole numbers"),
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
    assert set(train.labels.numbers.bincount().tolist()) == {50_000 // train.num_classes}
    assert train.class_names[train.labels[0]] == {"cifar10": "frog", "cifar100": "cattle"}[name]
    for c in range(3):
        found = moments(train.inputs[:, c])
        assert found == pytest.approx((train.mean[c], train.std[c]), abs=1e-4)


def test_real_human_labels_are_wrong_at_the_published_rates(real_data):
    root = real_data("CIFAR-10_human.pt", "cifar-10-batches-py")
    for labels, published in (("aggre", 0.0901), ("random1", 0.1723)):
        train = load("cifar10n", "train", root, labels=labels)  # held against CIFAR's own labels
        wrong = (train.labels.numbers != train.clean).double().mean().item()
        assert wrong == pytest.approx(published, abs=5e-5)


HEADER = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])


def test_packed_and_unpacked_files_are_read_alike(mnist_dir):
    train, test = (load("mnist", split, mnist_dir, verify=False) for split in ("train", "test"))
    assert train.inputs.shape == (6, 1, 28, 28)
    assert test.labels.numbers.tolist() == [0, 1, 2, 3]
    assert train.class_names == tuple("0123456789")


def test_the_layout_of_torchvision_is_found_too(mnist_dir):
    (mnist_dir / "FashionMNIST").mkdir()
    (mnist_dir / "mnist").rename(mnist_dir / "FashionMNIST" / "raw")
    assert load("fashion_mnist", "train", mnist_dir, verify=False).class_names[9] == "Ankle boot"


def test_sizes_are_big_endian_and_rows_come_first():
    pixels = np.arange(24, dtype=np.uint8)
    assert np.array_equal(parse_idx(HEADER + pixels.tobytes(), "f", 3), pixels.reshape(2, 3, 4))


def corrupt_labels(raw):
    return raw[:-1] + b"\x0a"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-images-idx3-ubyte.gz", lambda raw: gzip.compress(raw)[:-40], "cut short"),
        ("train-images-idx3-ubyte.gz", lambda raw: gzip.compress(raw) + b"junk", "damaged"),
        ("train-images-idx3-ubyte.gz", lambda raw: b"\x1f\x8b" + raw, "damaged"),
        ("train-images-idx3-ubyte.gz", lambda raw: b"<html>" + raw, "begins 3c 68 74 6d"),
        ("train-images-idx3-ubyte.gz", lambda raw: raw[:-1], "4703 bytes for the shape"),
        ("train-labels-idx1-ubyte.gz", lambda raw: b"", "begins"),
        ("train-labels-idx1-ubyte.gz", corrupt_labels, r"labels\[5\]=10: must be from 0 to 9"),
        (
            "train-labels-idx1-ubyte.gz",
            lambda raw: raw[:7] + b"\x05" + raw[8:-1],
            r"labels of shape \(5,\): must be one per row, \(6,\)",
        ),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(mnist_dir, file, change, message):
    path = mnist_dir / "mnist" / file
    path.write_bytes(change(gzip.decompress(path.read_bytes())))
    with pytest.raises(InputError, match=message) as caught:
        load("mnist", "train", mnist_dir, verify=False)
    assert file in str(caught.value)


def test_other_content_than_the_public_mnist_is_refused_unless_told(mnist_dir):
    with pytest.raises(InputError, match=r"md5 is not the public file's.*verify=False"):
        load("mnist", "train", mnist_dir)


def test_a_bomb_is_not_unpacked(mnist_dir, monkeypatch):
    monkeypatch.setattr("bayesmooth.data.reading.LIMIT", 1 << 20)
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10 << 20)))
    with pytest.raises(InputError, match="more than 1 MB unpacked"):
        load("mnist", "train", mnist_dir, verify=False)


def test_a_folder_in_place_of_a_file_is_refused(mnist_dir):
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte.gz"
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load("mnist", "train", mnist_dir, verify=False)


@given(
    st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: HEADER[:8] + tail),
    st.sampled_from([1, 3]),
)
def test_any_bytes_are_an_array_or_an_input_error(result_or_input_error, data, ndim):
    result_or_input_error("file", parse_idx, data, "file", ndim)


def test_real_mnist_is_complete(real_data, moments):
    root = real_data("mnist")
    train, test = load("mnist", "train", root), load("mnist", "test", root)
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert moments(train.inputs) == pytest.approx((train.mean[0], train.std[0]), abs=1e-4)


def test_real_fashion_mnist_is_complete(real_data, moments):
    root = real_data("fashion-mnist")
    train, test = load("fashion_mnist", "train", root), load("fashion_mnist", "test", root)
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.class_names[train.labels[0]] == "Ankle boot"
    assert moments(train.inputs) == pytest.approx((train.mean[0], train.std[0]), abs=1e-4)


@pytest.fixture
def clothing_dir(tmp_path):
    """Three pictures in the layout of Clothing1M, its lists in `annotations`, names in the root."""
    image = pytest.importorskip("PIL.Image")
    keys = [f"images/{i}/{i}{i}/{i},{i}.jpg" for i in range(3)]
    root = tmp_path / "clothing1m"
    (root / "annotations").mkdir(parents=True)
    for i, key in enumerate(keys):
        (root / key).parent.mkdir(parents=True)
        image.new("RGB", (300 + i, 280), (80 * i,) * 3).save(root / key)
    (root / "category_names_eng.txt").write_text("\n".join(f"kind {k}" for k in range(14)) + "\n")
    lists = {
        "noisy_label_kv": [f"{key} {i}" for i, key in enumerate(keys)],
        "clean_label_kv": [f"{key} 13" for key in keys],
        "noisy_train_key_list": [keys[2], keys[0]],
        "clean_train_key_list": keys,
        "clean_val_key_list": keys[:1],
        "clean_test_key_list": keys[1:2],
    }
    for name, lines in lists.items():
        (root / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_key_lists_choose_and_label_lists_label(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.labels.numbers.tolist() == [2, 0]
    assert train.ids == ("images/2/22/2,2.jpg", "images/0/00/0,0.jpg")
    assert train.class_names[13] == "kind 13"
    for split, count in (("clean_train", 3), ("valid", 1), ("test", 1)):
        assert load("clothing1m", split, clothing_dir).labels.numbers.tolist() == [13] * count


def test_train_pictures_are_256_for_the_crop_to_224_and_test_pictures_its_middle(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.inputs[torch.tensor([0])].shape == (1, 3, 256, 256)
    assert load("clothing1m", "test", clothing_dir).input_shape == (3, 224, 224)
    _, inputs, _ = next(batches(train, 2, seed=0, augment=AUGMENTATIONS["crop224_flip"]))
    assert inputs.shape == (2, 3, 224, 224)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "noisy_train_key_list",
            b"images/9.jpg\n",
            r"line 1: 'images/9.jpg' has no label in noisy_l",
        ),
        (
            "noisy_train_key_list",
            b"\nimages/../../x.jpg",
            "line 2: .* leads out of the set's folder",
        ),
        ("noisy_train_key_list", b"/etc/passwd", "line 1: .* leads out"),
        ("noisy_train_key_list", b"", "no paths in it"),
        ("noisy_train_key_list", b"a.jpg\n\xff\xfe", "line 2: not UTF-8"),
        ("noisy_label_kv", b"images/0/00/0,0.jpg 14", "line 1: .* from 0 to 13"),
        ("noisy_label_kv", b"a.jpg 3\nb.jpg", "line 2: 'b.jpg': must be `path label`"),
        ("noisy_label_kv", b"a.jpg -1", "line 1"),
        ("noisy_label_kv", b"a.jpg 1e0", "line 1"),
    ],
)
def test_a_wrong_line_is_named(clothing_dir, file, content, message):
    path = clothing_dir / "clothing1m" / "annotations" / f"{file}.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load("clothing1m", "train", clothing_dir)
    assert str(path) in str(caught.value)


LINES = st.text("im/. 0129\n\t\x00ü", max_size=40).map(str.encode) | st.binary(max_size=40)


@given(LINES)
def test_any_bytes_are_lists_or_an_input_error(tmp_path_factory, result_or_input_error, data):
    path = tmp_path_factory.getbasetemp() / "list.txt"
    path.write_bytes(data)
    result_or_input_error("list.txt", lambda: parse_keys(read_lines(path), str(path)))
    result_or_input_error("list.txt", lambda: parse_labels(read_lines(path), str(path), 14))
