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

from bayesmooth.data import AUGMENTATIONS, batches, load
from bayesmooth.errors import InputError
from bayesmooth.files import name_errors
from reproduce import datasets as public
from reproduce.datasets import DATASETS, embed_data, load_pickle, load_torch, parse_batch, parse_idx

TEN = "cifar-10-batches-py"


@pytest.fixture
def real_data():
    """The folder of real data sets; `real_data("mnist")` skips where that one is absent."""

    def need(*files):
        root = os.environ.get("BAYESMOOTH_DATA")
        if not root or not all(Path(root, file).exists() for file in files):
            pytest.skip(f"BAYESMOOTH_DATA has no {', '.join(files)}")
        return root

    return need


def find_moments(pixels):
    """(mean, std) of bytes scaled to [0, 1], from their histogram: exact and fast on a million pictures."""
    share = pixels.flatten().bincount(minlength=256).double() / pixels.numel()
    value = torch.arange(256).double() / 255
    mean = (share * value).sum()
    return mean.item(), (share * (value - mean) ** 2).sum().sqrt().item()


@pytest.fixture
def mnist_dir(tmp_path):
    """MNIST's layout: 6 train and 4 test pictures; the test files are not packed."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, count in (("train", 6), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28))
        for kind, array in {"images-idx3": images, "labels-idx1": np.arange(count)}.items():
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            raw = header + array.astype(np.uint8).tobytes()
            packed, ending = (gzip.compress(raw), ".gz") if prefix == "train" else (raw, "")
            (folder / f"{prefix}-{kind}-ubyte{ending}").write_bytes(packed)
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

    contents = {f"{TEN}/batches.meta": {"label_names": [f"class {k}" for k in range(10)]}}
    contents |= {f"{TEN}/data_batch_{i}": batch("labels", 10) for i in range(1, 6)}
    contents[f"{TEN}/test_batch"] = batch("labels", 10)
    contents["cifar-100-python/meta"] = {"fine_label_names": [f"fine {k}" for k in range(100)]}
    contents["cifar-100-python/test"] = batch("fine_labels", 100)
    for file, content in contents.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(pickle.dumps(content, protocol=2))
    clean = np.concatenate([contents[f"{TEN}/data_batch_{i}"]["labels"] for i in range(1, 6)])
    labels = {"clean_label": clean, "aggre_label": (clean + 1) % 10, "random_label1": clean}
    torch.save(labels, tmp_path / "CIFAR-10_human.pt")
    return tmp_path


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
    lists = {LABELS: [f"{key} {i}" for i, key in enumerate(keys)], KEYS: [keys[2], keys[0]]}
    lists |= {"clean_label_kv": [f"{key} 13" for key in keys], "clean_test_key_list": keys[1:2]}
    for name, lines in lists.items():
        (root / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n\n")
    return tmp_path


# ---- where they lie ----


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


def test_a_file_that_is_not_the_public_one_is_refused_unless_it_is_not_verified(mnist_dir):
    for split, count in (("train", 6), ("test", 4)):
        assert load("mnist", split, mnist_dir, verify=False).inputs.shape == (count, 1, 28, 28)
        with pytest.raises(InputError, match=r"its md5 is not the public file's.*verify=False"):
            load("mnist", split, mnist_dir)


def test_the_layout_of_torchvision_is_found_too(mnist_dir):
    (mnist_dir / "FashionMNIST").mkdir()
    (mnist_dir / "mnist").rename(mnist_dir / "FashionMNIST" / "raw")
    assert load("fashion_mnist", "train", mnist_dir, verify=False).class_names[9] == "Ankle boot"


# ---- what they hold ----


def test_packed_and_unpacked_files_are_read_alike(mnist_dir):
    train, test = (load("mnist", split, mnist_dir, verify=False) for split in ("train", "test"))
    assert train.inputs.shape == (6, 1, 28, 28)
    assert test.labels.numbers.tolist() == [0, 1, 2, 3]
    assert train.class_names == tuple("0123456789")


def test_five_files_make_the_train_split_in_their_order(cifar_dir):
    train = load("cifar10", "train", cifar_dir, verify=False)
    parts = [pickle.loads((cifar_dir / TEN / f"data_batch_{i}").read_bytes()) for i in range(1, 6)]
    assert train.inputs.shape == (20, 3, 32, 32)
    assert train.labels.numbers.tolist() == [label for part in parts for label in part["labels"]]
    assert train.ids == tuple(name for part in parts for name in part["filenames"])
    assert train.class_names[3] == "class 3"
    # The file holds the red plane, then green, then blue, row by row.
    assert train.inputs[5, 1, 2, 7] == parts[1]["data"][1, 1024 + 2 * 32 + 7]
    assert load("cifar100", "test", cifar_dir, verify=False).class_names[42] == "fine 42"


def test_human_labels_lie_on_top_of_the_clean_ones_and_are_chosen_by_name(cifar_dir):
    aggregated, first = (load("cifar10n", "train", cifar_dir, labels=n, verify=False) for n in ("aggre", "random1"))
    assert torch.equal(aggregated.labels.numbers, (aggregated.clean + 1) % 10)
    assert torch.equal(first.labels.numbers, first.clean)
    assert load("cifar10n", "test", cifar_dir, verify=False).clean is None
    with pytest.raises(InputError, match=r"CIFAR-10_human\.pt: .*'worse_label'"):
        load("cifar10n", "train", cifar_dir, labels="worse", verify=False)
    with pytest.raises(InputError, match="must be one of 'aggre'"):
        load("cifar10n", "train", cifar_dir, labels="best", verify=False)


def test_human_labels_for_other_pictures_are_refused(cifar_dir):
    path = cifar_dir / TEN / "data_batch_2"
    content = pickle.loads(path.read_bytes())
    content["labels"] = [(label + 1) % 10 for label in content["labels"]]
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(InputError, match=r"CIFAR-10_human\.pt: its clean labels are not those of CIFAR-10"):
        load("cifar10n", "train", cifar_dir, verify=False)


def test_key_lists_choose_and_label_lists_label(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.labels.numbers.tolist() == [2, 0]
    assert train.ids == ("images/2/22/2,2.jpg", "images/0/00/0,0.jpg")
    assert train.class_names[13] == "kind 13"
    assert load("clothing1m", "test", clothing_dir).labels.numbers.tolist() == [13]


def test_train_pictures_are_256_for_the_crop_to_224_and_test_pictures_its_middle(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.inputs[torch.tensor([0])].shape == (1, 3, 256, 256)
    assert load("clothing1m", "test", clothing_dir).input_shape == (3, 224, 224)
    _, inputs, _ = next(batches(train, 2, seed=0, augment=AUGMENTATIONS["crop224_flip"]))
    assert inputs.shape == (2, 3, 224, 224)


@pytest.mark.parametrize(
    ("name", "folder", "first"),
    [
        ("mnist", "mnist", "5"),
        ("fashion_mnist", "fashion-mnist", "Ankle boot"),
        ("cifar10", TEN, "frog"),
        ("cifar100", "cifar-100-python", "cattle"),
    ],
)
def test_the_real_set_is_the_public_one(real_data, name, folder, first):
    root = real_data(folder)
    train, test = load(name, "train", root), load(name, "test", root)  # md5 of every file
    assert (len(train), len(test)) == (50_000 + 10_000 * ("mnist" in name), 10_000)
    assert train.class_names[train.labels[0]] == first
    for c in range(train.inputs.shape[1]):
        assert find_moments(train.inputs[:, c]) == pytest.approx((train.mean[c], train.std[c]), abs=1e-4)


def test_real_human_labels_are_wrong_at_the_published_rates(real_data):
    root = real_data("CIFAR-10_human.pt", TEN)
    for labels, published in (("aggre", 0.0901), ("random1", 0.1723)):
        train = load("cifar10n", "train", root, labels=labels)  # held against CIFAR's own labels
        wrong = (train.labels.numbers != train.clean).double().mean().item()
        assert wrong == pytest.approx(published, abs=5e-5)


# ---- files that are damaged, wrong or hostile ----


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-images-idx3-ubyte.gz", lambda raw: gzip.compress(raw)[:-40], "download it again"),
        ("train-images-idx3-ubyte.gz", lambda raw: gzip.compress(raw) + b"junk", "not a whole file"),
        ("train-images-idx3-ubyte.gz", lambda raw: b"<html>" + raw, "begins 3c 68 74 6d"),
        ("train-images-idx3-ubyte.gz", lambda raw: raw[:-1], "4703"),
        ("train-labels-idx1-ubyte.gz", lambda raw: b"", "begins"),
        ("train-labels-idx1-ubyte.gz", lambda raw: raw[:-1] + b"\x0a", r"labels\[5\]=10: must be from 0 to 9"),
        ("train-labels-idx1-ubyte.gz", lambda raw: raw[:7] + b"\x05" + raw[8:-1], "5 labels for 6 pictures"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(mnist_dir, file, change, message):
    path = mnist_dir / "mnist" / file
    path.write_bytes(change(gzip.decompress(path.read_bytes())))
    with pytest.raises(InputError, match=message) as caught:
        load("mnist", "train", mnist_dir, verify=False)
    assert file in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": np.zeros((4, 3071), np.uint8)},
        {"data": np.zeros((4, 3072), np.int32)},
        {"data": [1, 2]},
        {"labels": [0, 1, 2]},
        {"labels": [0, 1, 2, "3"]},
        {"labels": [0, 1, 2, 10]},
        {"labels": [0, -1, 2, 3]},
        {"labels": [0, 1, 2, 2**70]},
        {"filenames": ["a"]},
    ],
)
def test_a_wrong_batch_is_named(cifar_dir, changes):
    path = cifar_dir / TEN / "data_batch_4"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | changes, protocol=2))
    with pytest.raises(InputError, match="data_batch_4: "):
        load("cifar10", "train", cifar_dir, verify=False)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (KEYS, b"images/9.jpg\n", "images/9.jpg"),
        (KEYS, b"\nimages/../../x.jpg", "leads out of the set's folder"),
        (KEYS, b"/etc/passwd", "leads out"),
        (KEYS, b"a.jpg\n\xff\xfe", "not a text in UTF-8"),
        (KEYS, b"images/0/00/0,0.jpg", r"labels\[0\]=14: must be from 0 to 13"),
        (LABELS, b"a.jpg 3\nb.jpg", "not a list of `path label`"),
        (LABELS, b"a.jpg 1e0", "1e0"),
    ],
)
def test_a_wrong_list_is_named(clothing_dir, file, content, message):
    folder = clothing_dir / "clothing1m" / "annotations"
    (folder / f"{LABELS}.txt").write_text("images/0/00/0,0.jpg 14")
    (folder / f"{file}.txt").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load("clothing1m", "train", clothing_dir)
    assert str(folder / file) in str(caught.value)


def test_a_bomb_is_not_unpacked(mnist_dir, monkeypatch):
    monkeypatch.setattr(public, "LIMIT", 1 << 20)
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10 << 20)))
    with pytest.raises(InputError, match="more than 1 MB unpacked"):
        load("mnist", "train", mnist_dir, verify=False)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2 << 20))
    with pytest.raises(InputError, match="more than 1 MB unpacked"):
        load_torch(buffer.getvalue())


CONTENT = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "swapped": np.arange(4, dtype=">i4"),
    "labels": [0, 1, 255, 70_000, -3, 2**40],
    "names": ["Ölkanne", "b"],
    "nested": {"a": (1, True, None, 0.5, (), [])},
}


def dump_torch(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_the_text_of_python_2_is_read_byte_by_byte_and_a_large_memo_takes_no_memory():
    assert load_pickle(b"\x80\x02}U\x01aU\x02\xff\x00s.") == {"a": "\xff\x00"}
    assert load_pickle(b"\x80\x02}r\xff\xff\xff\xff.") == {}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_containers_and_arrays_come_back_as_they_were_written(protocol):
    for found in (load_pickle(pickle.dumps(CONTENT, protocol)), load_torch(dump_torch(CONTENT))):
        assert found.keys() == CONTENT.keys()
        assert all(np.array_equal(found[key], CONTENT[key]) for key in ("data", "fortran", "swapped"))
        assert all(found[key] == CONTENT[key] for key in ("labels", "names", "nested"))


class Call:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


CALLS = (Call(os.system, "touch hacked"), Call(eval, "1"), Call(np.zeros, 10**12))
GOOD = pickle.dumps({"a": np.zeros(7, dtype=np.uint8)}, 2)
HOSTILE = [
    *(pickle.dumps({"a": call}, protocol) for call in CALLS for protocol in (2, 4)),
    b"\x80\x02c_codecs\nencode\n\x8c\x01b\x8c\x04zlib\x86R.",  # a codec that unpacks
    b"\x80\x02}X\x01\x00\x00\x00aB\xff\xff\xff\x7fs.",  # two billion bytes announced
    b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x00bQs.",  # a persistent id
    b"\x80\x02}X\x01\x00\x00\x00a(i__main__\nX\ns.",  # an instance
    b"\x80\x02cnumpy\nndarray\n)R.",  # an array called
    b"\x80\x02cnumpy\nndarray\n}b.",  # an array patched
    GOOD.replace(b"K\x07\x85", b"K\x08\x85"),  # an array longer than its bytes
    pickle.dumps([1], 2),
    pickle.dumps(CONTENT, 2)[:-20],
    b"",
]


def read_by_name(read, *arguments):
    with name_errors("file", "public file"):
        return read(*arguments)


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_but_arrays_and_containers_gets_in(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="file: "):
        read_by_name(load_pickle, data)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", data)
    for content in (data, buffer.getvalue()):
        with pytest.raises(InputError, match="file: "):
            read_by_name(load_torch, content)
    assert not list(tmp_path.iterdir())


@given(st.data())
def test_any_bytes_are_content_or_an_input_error(result_or_input_error, data):
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [3], "filenames": ["a.png"]}
    good = data.draw(st.sampled_from([pickle.dumps(CONTENT, 2), dump_torch(CONTENT), pickle.dumps(batch, 2)]))
    at = data.draw(st.integers(0, len(good)))
    broken = good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    for content in (broken, data.draw(st.binary(max_size=40))):
        for read, *arguments in ((load_pickle,), (load_torch,), (parse_batch, "labels", ("a", "b")), (parse_idx, 3)):
            result_or_input_error("file", read_by_name, read, content, *arguments)


# ---- embeddings ----


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    embed_data("digits", folder, limit=100, encoder="plain")
    return {split: load("source", split, folder, path="features/digits-100-{split}.npz") for split in ("train", "test")}


@pytest.mark.parametrize(("split", "count"), [("train", 100), ("test", 50)])
def test_features_keep_the_labels_of_their_pictures(embedded, split, count):
    pictures = load("digits", split)
    assert embedded[split].labels.numbers.equal(pictures.labels[:count])
    assert embedded[split].class_names == pictures.class_names


def test_components_are_uncorrelated_sorted_and_of_mean_square_one(embedded):
    rows = embedded["train"].inputs.double()
    assert rows.square().mean() == pytest.approx(1, rel=1e-5)
    covariance = rows.T @ rows / len(rows)
    variances = covariance.diagonal()
    assert (variances.diff() <= 1e-6).all()
    torch.testing.assert_close(covariance, variances.diag(), rtol=0, atol=1e-4)
