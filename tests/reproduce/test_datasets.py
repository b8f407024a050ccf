"""The public sets: small files in their layouts, the real ones where they are, and files that would do harm."""

import gzip
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import AUGMENTATIONS, batches, check, datasets, load
from bayesmooth.errors import InputError
from reproduce import datasets as public
from reproduce.datasets import (
    DATASETS,
    load_pickle,
    load_torch,
    parse_batch,
    parse_human,
    parse_idx,
    parse_keys,
    parse_labels,
    parse_names,
    read_lines,
)


@pytest.fixture
def real_data():
    """The folder of real data sets; `real_data("mnist")` skips where that one is absent."""

    def need(*files):
        root = os.environ.get("BAYESMOOTH_DATA")
        if not root or not all(Path(root, file).exists() for file in files):
            pytest.skip(f"BAYESMOOTH_DATA has no {', '.join(files)}")
        return root

    return need


@pytest.fixture
def moments():
    """(mean, std) of bytes scaled to [0, 1], from their histogram: exact and fast on a million pictures."""

    def compute(pixels):
        share = pixels.flatten().bincount(minlength=256).double() / pixels.numel()
        value = torch.arange(256).double() / 255
        mean = (share * value).sum()
        return mean.item(), (share * (value - mean) ** 2).sum().sqrt().item()

    return compute


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_dir(tmp_path):
    """MNIST's layout: 6 train and 4 test pictures; the test files are not packed."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, count in (("train", 6), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28))
        content = {"images-idx3": images, "labels-idx1": np.arange(count)}
        for kind, array in content.items():
            raw = idx_bytes(array)
            if prefix == "train":
                (folder / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / f"t10k-{kind}-ubyte").write_bytes(raw)
    return tmp_path


@pytest.fixture
def cifar_dir(tmp_path):
    """CIFAR-10's and CIFAR-100's layouts, 4 pictures a file."""
    rng = np.random.default_rng(0)

    def batch(key, classes):
        labels = rng.integers(0, classes, 4).tolist()
        files = [f"picture_{rng.integers(1000)}.png" for _ in labels]
        data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        return {"data": data, key: labels, "filenames": files, "batch_label": "some"}

    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    ten.mkdir()
    hundred.mkdir()
    names = {"label_names": [f"class {k}" for k in range(10)]}
    (ten / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    for file in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (ten / file).write_bytes(pickle.dumps(batch("labels", 10), protocol=2))
    names = {"fine_label_names": [f"fine {k}" for k in range(100)]}
    (hundred / "meta").write_bytes(pickle.dumps(names, protocol=4))
    for file in ("train", "test"):
        (hundred / file).write_bytes(pickle.dumps(batch("fine_labels", 100), protocol=4))
    return tmp_path


@pytest.mark.parametrize("name", DATASETS)
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


def test_a_set_is_found_where_its_folder_is(mnist_dir):
    found = {name: each.is_found(mnist_dir) for name, each in datasets().items()}
    assert (found["digits"], found["mnist"], found["cifar10"]) == (True, True, False)
    for dataset in datasets().values():
        assert (dataset.splits[0], dataset.splits[-1]) == ("train", "test")


def test_check_tells_what_each_split_holds_or_what_is_wrong(mnist_dir):
    good, bad = check("mnist", mnist_dir, verify=False), check("mnist", mnist_dir)
    assert [(row["ok"], row["examples"], row["shape"]) for row in good] == [
        (True, 6, [1, 28, 28]),
        (True, 4, [1, 28, 28]),
    ]
    assert all(not row["ok"] and "md5" in row["problem"] for row in bad)


def rewrite(path, **changes):
    content = pickle.loads(path.read_bytes()) | changes
    path.write_bytes(pickle.dumps(content, protocol=2))


def test_five_files_make_the_train_split_in_their_order(cifar_dir):
    train = load("cifar10", "train", cifar_dir, verify=False)
    parts = [pickle.loads((cifar_dir / "cifar-10-batches-py" / f"data_batch_{i}").read_bytes()) for i in range(1, 6)]
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
    message = r"batches\.meta: its md5 is not the public file's.*verify=False"
    with pytest.raises(InputError, match=message):
        load("cifar10", "train", cifar_dir)


GOOD = pickle.dumps(
    {"data": np.zeros((1, 3072), np.uint8), "labels": [3], "filenames": ["a.png"], "label_names": ["a"]}, 2
)


@given(st.integers(0, 200), st.integers(0, 6), st.binary(max_size=6))
def test_any_damage_is_a_batch_or_an_input_error(result_or_input_error, at, cut, insert):
    # The pixels are dull: damage what is before and after them.
    at = at if at < 150 else len(GOOD) - (at - 150)
    broken = GOOD[:at] + insert + GOOD[at + cut :]
    result_or_input_error("file", parse_batch, broken, "file", "labels", 10)
    result_or_input_error("file", parse_names, broken, "file", "label_names")
    result_or_input_error("file", parse_human, broken, "file", "labels", 1, 10)


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
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


def test_a_bomb_is_not_unpacked(mnist_dir, monkeypatch):
    monkeypatch.setattr(public, "LIMIT", 1 << 20)
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


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: HEADER[:8] + tail), st.sampled_from([1, 3]))
def test_any_bytes_are_an_array_or_an_input_error(result_or_input_error, data, ndim):
    result_or_input_error("file", parse_idx, data, "file", ndim)


@pytest.mark.parametrize(("name", "first"), [("mnist", "5"), ("fashion_mnist", "Ankle boot")])
def test_real_mnist_is_complete(real_data, moments, name, first):
    root = real_data(name.replace("_", "-"))
    train, test = load(name, "train", root), load(name, "test", root)
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.class_names[train.labels[0]] == first
    assert moments(train.inputs) == pytest.approx((train.mean[0], train.std[0]), abs=1e-4)


KEYS, LABELS = "noisy_train_key_list", "noisy_label_kv"


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
        (KEYS, b"images/9.jpg\n", r"line 1: 'images/9.jpg' has no label in noisy_l"),
        (KEYS, b"\nimages/../../x.jpg", "line 2: .* leads out of the set's folder"),
        (KEYS, b"/etc/passwd", "line 1: .* leads out"),
        (KEYS, b"", "no paths in it"),
        (KEYS, b"a.jpg\n\xff\xfe", "line 2: not UTF-8"),
        (LABELS, b"images/0/00/0,0.jpg 14", "line 1: .* from 0 to 13"),
        (LABELS, b"a.jpg 3\nb.jpg", "line 2: 'b.jpg': must be `path label`"),
        (LABELS, b"a.jpg -1", "line 1"),
        (LABELS, b"a.jpg 1e0", "line 1"),
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


CONTENT = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "swapped": np.arange(4, dtype=">i4"),
    "labels": [0, 1, 255, 70_000, -3, 2**40],
    "names": ["Ölkanne", "b"],
    "nested": {"a": (1, True, None, 0.5, (), [])},
}


def equal(these, those):
    return these.keys() == those.keys() and all(
        np.array_equal(these[key], those[key]) if isinstance(those[key], np.ndarray) else these[key] == those[key]
        for key in those
    )


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_containers_and_arrays_come_back_as_they_were_written(protocol):
    assert equal(load_pickle(pickle.dumps(CONTENT, protocol), "file"), CONTENT)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_save_come_back_in_both_formats(zipped):
    buffer = io.BytesIO()
    torch.save(CONTENT, buffer, _use_new_zipfile_serialization=zipped)
    assert equal(load_torch(buffer.getvalue(), "file"), CONTENT)


def test_strings_of_python_2_are_text_byte_by_byte():
    assert load_pickle(b"\x80\x02}U\x01aU\x02\xff\x00s.", "file") == {"a": "\xff\x00"}


class Call:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


HOSTILE = {
    "a command": pickle.dumps({"a": Call(os.system, "touch hacked")}, 2),
    "a command, protocol 4": pickle.dumps({"a": Call(os.system, "touch hacked")}, 4),
    "eval": pickle.dumps({"a": Call(eval, "1")}, 2),
    "numpy's other functions": pickle.dumps({"a": Call(np.zeros, 10**12)}, 2),
    "a codec that unpacks": b"\x80\x02c_codecs\nencode\n\x8c\x01b\x8c\x04zlib\x86R.",
    "a memo at 2^32": b"\x80\x02}r\xff\xff\xff\xff.",
    "two billion bytes announced": b"\x80\x02}X\x01\x00\x00\x00aB\xff\xff\xff\x7fs.",
    "a persistent id": b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x00bQs.",
    "an instance": b"\x80\x02}X\x01\x00\x00\x00a(i__main__\nX\ns.",
    "no dict": pickle.dumps([1], 2),
    "cut short": pickle.dumps(CONTENT, 2)[:-20],
    "an array called": b"\x80\x02cnumpy\nndarray\n)R.",
    "an array patched": b"\x80\x02cnumpy\nndarray\n}b.",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_nothing_else_gets_in(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if data.startswith(b"\x80\x02}r"):  # a large memo index alone is harmless here
        assert load_pickle(data, "file") == {}
        return
    says = r"file: asks for 'posix\.system'" if b"posix" in data else "file"
    with pytest.raises(InputError, match=says):
        load_pickle(data, "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("call", [Call(os.system, "touch hacked"), Call(eval, "1"), Call(np.zeros, 10**12)])
def test_nothing_else_gets_in_through_torch(call, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({"a": call}, buffer, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"file: not a file of torch\.save that can be read"):
        load_torch(buffer.getvalue(), "file")
    assert not list(tmp_path.iterdir())


def test_a_zip_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(public, "LIMIT", 1 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2 << 20))
    with pytest.raises(InputError, match="unpacks to more than 1 MB"):
        load_torch(buffer.getvalue(), "file")


def test_arrays_must_have_the_bytes_of_their_shape():
    good = pickle.dumps({"a": np.zeros(7, dtype=np.uint8)}, 2)
    for shape in (b"K\x08\x85", b"J\xff\xff\xff\xff\x85", b"K\x00J\xff\xff\xff\x7f\x86"):
        with pytest.raises(InputError, match="file: "):
            load_pickle(good.replace(b"K\x07\x85", shape), "file")


def test_a_zip_without_a_sane_pickle_is_refused():
    for names in ([], ["a/data.pkl", "b/data.pkl"]):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(name, b".")
        with pytest.raises(InputError, match=r"not a file of torch\.save"):
            load_torch(b"PK" + buffer.getvalue()[2:], "file")


@given(st.data())
def test_any_bytes_are_a_dict_or_an_input_error(result_or_input_error, data):
    good = pickle.dumps(CONTENT, data.draw(st.sampled_from([2, 4])))
    at = data.draw(st.integers(0, len(good)))
    broken = good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    for content in (broken, data.draw(st.binary(max_size=40))):
        result_or_input_error("file", load_pickle, content, "file")
        result_or_input_error("file", load_torch, content, "file")


ZIPPED = io.BytesIO()
torch.save(CONTENT, ZIPPED)


@given(st.integers(0, len(ZIPPED.getvalue())), st.binary(min_size=1, max_size=8))
def test_any_damage_to_a_zip_is_a_dict_or_an_input_error(result_or_input_error, at, damage):
    good = ZIPPED.getvalue()
    broken = good[:at] + damage + good[at + len(damage) :]
    result_or_input_error("file", load_torch, broken, "file")
