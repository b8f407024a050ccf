"""Copies that were changed a little, and pictures on which nothing can be seen."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.audit import audit
from bayesmooth.audit.looks import look_at

Image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")
Filter = pytest.importorskip("PIL.ImageFilter")


def draw(seed: int, size: int = 120) -> Any:
    """A picture of smooth shapes with fine grain, unlike those of other seeds."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    shapes = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), float)
    grain = rng.normal(0, 12, (size, size, 1))
    return Image.fromarray((shapes + grain).clip(0, 255).astype(np.uint8))


def change(picture: Any, size: int, quality: int) -> Any:
    file = io.BytesIO()
    picture.resize((size, size)).save(file, "JPEG", quality=quality)
    return Image.open(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 20, copies of the first ten, and three pictures that show nothing."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    for i in range(40):
        draw(i).save(tmp_path / ("cat" if i < 20 else "dog") / f"{i}.png")
    for i in range(10):
        change(draw(i), 60 + 20 * i, 30 + 6 * i).save(tmp_path / "cat" / f"copy-{i}.jpg")
    Image.new("RGB", (90, 90), (250, 250, 250)).save(tmp_path / "dog" / "blank.png")
    Image.eval(draw(50), lambda value: value // 10).save(tmp_path / "dog" / "dark.png")
    draw(51).filter(Filter.GaussianBlur(8)).save(tmp_path / "dog" / "blurred.png")
    return tmp_path


def test_copies_survive_resizing_and_compression_and_odd_pictures_are_named(photos: Path) -> None:
    made = audit(photos, encoder=lambda batch: torch.rand(len(batch), 6), quiet=True)
    first = made.columns()["duplicate_of"]
    copies = dict(zip(made.ids, first, strict=True))
    assert {id for id, of in copies.items() if of} == {
        f"cat/{name}" for i in range(10) for name in (f"{i}.png", f"copy-{i}.jpg")
    }
    assert all(copies[f"cat/{i}.png"] == copies[f"cat/copy-{i}.jpg"] for i in range(10))
    odd = {problem.kind: problem.ids for problem in made.found.problems}
    assert odd == {f"{kind}_picture": (f"dog/{kind}.png",) for kind in ("blank", "dark", "blurred")}


def test_ordinary_pictures_raise_no_alarm() -> None:
    pictures = np.stack([np.asarray(draw(i, 40)) for i in range(60)])
    looks = look_at(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    assert looks is not None
    assert not any(bool(odd.any()) for odd in looks.find_odd().values())
