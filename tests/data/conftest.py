"""Small data sets of every kind."""

import numpy as np
import pytest
import torch

from bayesmooth.data import Columns, Labels, Source, open_source
from bayesmooth.data.opening import choose_inputs


@pytest.fixture
def pictures():
    """Twenty pictures of 3 × 8 × 8 bytes in four classes."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8))
    return Source(inputs, Labels(torch.arange(20) % 4, ("a", "b", "c", "d")), name="pictures")


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

    def open_data(what, labels=None, **names):
        columns = Columns(**names)
        return choose_inputs(open_source(what, columns, labels), columns)

    return open_data


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("BAYESMOOTH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Twelve reddish cats and twelve bluish dogs, of which the one called 5 lies among the cats."""
    image, rng = pytest.importorskip("PIL.Image"), np.random.default_rng(0)
    for i in range(24):
        folder = tmp_path / "photos" / ("cat" if i % 2 == 0 or i == 5 else "dog")
        pixels = rng.integers(0, 60, (20, 30, 3)) + [[180, 0, 0], [0, 0, 180]][i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "photos"
