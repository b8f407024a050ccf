import numpy as np
import pytest
import torch

from bayesmooth.data import load
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError

pil = pytest.importorskip("PIL.Image")


def test_the_middle_is_cut_out_at_the_scale_of_the_short_side(tmp_path):
    picture = pil.new("RGB", (80, 40), (0, 0, 0))
    picture.paste((255, 255, 255), (20, 0, 60, 40))  # the middle square, as high as the picture
    picture.save(tmp_path / "wide.png")
    encoded = (tmp_path / "wide.png").read_bytes()
    for item in ("wide.png", encoded):
        square = ImageFiles(tmp_path, [item], 20)[torch.tensor([0])][0]
        assert (square[:, :, 1:-1] == 255).all()  # the edge is smoothed
        assert ImageFiles(tmp_path, [item], 20, 10)[torch.tensor([0])].shape == (1, 3, 10, 10)


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    picture = pil.new("RGB", (40, 40))
    picture.paste((255, 255, 255), (0, 0, 40, 20))  # the upper half
    exif = pil.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    seen = ImageFiles(tmp_path, ["turned.jpg"], 20)[torch.tensor([0])][0].float()
    assert seen[:, :, 12:].mean() > 250  # the upper half is on the right now
    assert seen[:, :, :8].mean() < 5


RAMP = np.linspace(0, 1, 64 * 64).reshape(64, 64)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("grey16.png", (RAMP * 65535).astype(np.uint16)),
        ("grey16.tif", (RAMP * 65535).astype(np.uint16)),
        ("grey32.tif", (RAMP * 2e9).astype(np.int32)),
        ("signed32.tif", (RAMP * 4e9 - 2e9).astype(np.int32)),
        ("unit.tif", RAMP.astype(np.float32)),
        ("float.tif", (RAMP * 4000 - 1000).astype(np.float32)),
        ("grey8.png", (RAMP * 255).astype(np.uint8)),
    ],
)
def test_a_ramp_from_black_to_white_stays_one_whatever_its_numbers(tmp_path, name, numbers):
    pil.fromarray(numbers).save(tmp_path / name)
    seen = ImageFiles(tmp_path, [name], 64)[torch.tensor([0])][0].float()
    assert seen.std((1, 2)).sub(73.6).abs().max() < 1
    assert seen.mean((1, 2)).sub(127.5).abs().max() < 1


def test_a_format_that_starts_programs_is_not_opened_whatever_its_name(tmp_path):
    pil.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.png: not a picture .*cannot identify"):
        ImageFiles(tmp_path, ["a.png"], 8)[torch.tensor([0])]


def break_picture(path, how):
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"hello", "cut": whole[: len(whole) // 2]}[how])


@pytest.mark.parametrize(
    ("how", "message"), [("empty", "cannot identify"), ("text", "cannot identify"), ("cut", "not a picture")]
)
def test_a_broken_picture_is_named(picture_dir, how, message):
    broken = picture_dir / "train" / "dog" / "1.png"
    break_picture(broken, how)
    with pytest.raises(InputError, match=message) as caught:
        load("folder", "train", path=str(picture_dir)).batch(torch.arange(6))
    assert str(broken) in str(caught.value)


def test_a_picture_that_vanishes_or_is_too_large_is_named(picture_dir, monkeypatch):
    train = load("folder", "train", path=str(picture_dir))
    (picture_dir / "train" / "cat" / "2.png").unlink()
    with pytest.raises(InputError, match=r"2\.png: cannot be read \(No such file"):
        train.batch(torch.tensor([2]))
    monkeypatch.setattr("bayesmooth.data.pictures.MAX_PIXELS", 100)
    with pytest.raises(InputError, match=r"0\.png: has 40 × 30 pixels, more than 100"):
        train.batch(torch.tensor([0]))
    monkeypatch.setattr(pil, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"0\.png"):
        train.batch(torch.tensor([0]))


def test_no_pictures_are_an_empty_batch(tmp_path):
    assert ImageFiles(tmp_path, [], 8)[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 8, 8)
