import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import load
from bayesmooth.data.idx import parse_idx
from bayesmooth.errors import InputError

HEADER = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])


def test_packed_and_unpacked_files_are_read_alike(mnist_dir):
    train, test = (load("mnist", split, mnist_dir, verify=False) for split in ("train", "test"))
    assert train.inputs.shape == (6, 1, 28, 28)
    assert test.labels.tolist() == [0, 1, 2, 3]
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
        ("train-labels-idx1-ubyte.gz", corrupt_labels, "label 5 is 10; must be from 0 to 9"),
        (
            "train-labels-idx1-ubyte.gz",
            lambda raw: raw[:7] + b"\x05" + raw[8:-1],
            "6 images in .* 5 labels",
        ),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(mnist_dir, file, change, message):
    path = mnist_dir / "mnist" / file
    path.write_bytes(change(gzip.decompress(path.read_bytes())))
    with pytest.raises(InputError, match=message) as caught:
        load("mnist", "train", mnist_dir, verify=False)
    assert file in str(caught.value)


def test_other_content_than_the_public_file_is_refused_unless_told(mnist_dir):
    with pytest.raises(InputError, match=r"md5 is not the public file's.*verify=False"):
        load("mnist", "train", mnist_dir)


def test_a_bomb_is_not_unpacked(mnist_dir, monkeypatch):
    monkeypatch.setattr("bayesmooth.data.files.read_bytes.__defaults__", (None, 1 << 20))
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
