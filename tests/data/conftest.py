"""Small files in the public layouts, and the way to the real ones."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth.data import Columns, Labels, Source, open_source
from bayesmooth.data.prepare import choose_inputs
from bayesmooth.errors import InputError


@pytest.fixture
def real_data():
    """The folder of real data sets; `real_data("mnist")` skips where that one is absent."""

    def need(*files):
        root = os.environ.get("BAYESMOOTH_DATA")
        if not root or not all(Path(root, file).exists() for file in files):
            pytest.skip(f"BAYESMOOTH_DATA has no {', '.join(files)}")
        return root

    return need


@pytest.fixture(scope="session")
def result_or_input_error():
    """Call it; the only exception that may come out is an InputError that names the file."""

    def attempt(name, function, *arguments, **options):
        try:
            return function(*arguments, **options)
        except InputError as error:
            return error if name in str(error) else pytest.fail(f"{error} does not name {name}")

    return attempt


@pytest.fixture
def moments():
    """(mean, std) of bytes scaled to [0, 1], from their histogram: exact and fast on a million pictures."""

    def compute(pixels):
        share = pixels.flatten().bincount(minlength=256).double() / pixels.numel()
        value = torch.arange(256).double() / 255
        mean = (share * value).sum()
        return mean.item(), (share * (value - mean) ** 2).sum().sqrt().item()

    return compute


@pytest.fixture
def pictures():
    """Twenty pictures of 3 × 8 × 8 bytes in four classes."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8))
    return Source(inputs, Labels(torch.arange(20) % 4, ("a", "b", "c", "d")), name="pictures")


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


@pytest.fixture
def picture_dir(tmp_path):
    """train/{cat,dog} with 3 pictures each, test/cat with one: left half of a class's colour."""
    image = pytest.importorskip("PIL.Image")
    colours = {"cat": (250, 10, 10), "dog": (10, 10, 250)}
    for split, name, count in (("train", "cat", 3), ("train", "dog", 3), ("test", "cat", 1)):
        folder = tmp_path / split / name
        folder.mkdir(parents=True)
        for i in range(count):
            image.new("RGB", (40, 30 + i), colours[name]).save(folder / f"{i}.png")
    return tmp_path


@pytest.fixture
def write(tmp_path):
    def write(content, name="pets.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def open_data():
    """Open a source and choose its inputs; rows that cannot be learned from stay."""

    def open_data(what, labels=None, cache=None, **names):
        columns = Columns(**names)
        return choose_inputs(open_source(what, columns, labels), columns, False, cache, True)

    return open_data
