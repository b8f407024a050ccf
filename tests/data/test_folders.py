"""Folders of pictures: what is a class, what is left out with a word, and what comes back after a review."""

import os
import unicodedata
from pathlib import Path

import pytest
import torch

from bayesmooth.data import open_source
from bayesmooth.errors import InputError

pil = pytest.importorskip("PIL.Image")


def test_hidden_folders_empty_ones_and_other_files_are_left_out(picture_dir):
    (picture_dir / "train" / ".cache").mkdir()
    (picture_dir / "train" / "audit").mkdir()
    (picture_dir / "train" / "audit" / "audit.html").write_text("a report")
    (picture_dir / "train" / "cat" / "notes.txt").write_text("not a picture")
    (picture_dir / "train" / "cat" / "0.png").rename(picture_dir / "train" / "cat" / "0.jfif")
    source = open_source(picture_dir)
    assert (len(source), source.class_names) == (6, ("cat", "dog"))
    assert not source.problems


def test_links_that_lead_up_are_not_followed_and_others_are_seen_when_opened(picture_dir):
    (picture_dir / "train" / "loop").symlink_to(picture_dir)
    (picture_dir / "train" / "cat" / "loop").symlink_to(picture_dir)
    (picture_dir / "train" / "dog" / "self.png").symlink_to("self.png")
    source = open_source(picture_dir)
    assert (len(source), source.ids[-1]) == (7, "dog/self.png")
    with pytest.raises(InputError, match=r"self\.png: cannot be read"):
        source.pictures[torch.tensor([6])]


def test_pictures_of_formats_that_are_not_read_are_a_finding(picture_dir):
    for name in ("cat/phone.HEIC", "dog/logo.svg"):
        (picture_dir / "train" / name).write_bytes(b"picture")
    (found,) = open_source(picture_dir).problems
    assert found.kind == "unknown_format"
    assert sorted(found.ids) == ["cat/phone.HEIC", "dog/logo.svg"]
    assert found.text.startswith("files left out: 2, such as cat/phone.HEIC; save them as JPEG or PNG")


def test_two_spellings_of_an_accent_are_one_class(picture_dir, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("out")
    composed, split = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    (picture_dir / "train" / "cat").rename(picture_dir / "train" / composed)
    (picture_dir / "train" / "dog").rename(picture_dir / "train" / split)
    assert len({composed, split}) == len(list((picture_dir / "train").iterdir())) == 2
    pil.new("RGB", (9, 9)).save(picture_dir / "train" / "x.png")
    (picture_dir / "train" / "emu").mkdir()
    pil.new("RGB", (9, 9)).save(picture_dir / "train" / "emu" / "0.png")
    source = open_source(picture_dir)
    assert source.class_names == (composed, "emu")
    assert source.labels.counts().tolist() == [6, 1]
    source.write(tmp_path / "out", {"emu/0.png": composed})
    moved = open_source(tmp_path / "out")
    assert (moved.class_names, len(moved)) == ((composed,), 7)
    (tmp_path / "t.csv").write_text(f"x,label\n1,{composed}\n2,{split}\n")
    assert open_source(tmp_path / "t.csv").class_names == (composed,)


def test_a_folder_that_cannot_be_opened_is_named(picture_dir, monkeypatch):
    listdir = os.listdir

    def refuse(top):  # as root no permission is missing
        if Path(top).name == "dog":
            raise PermissionError(13, "Permission denied", str(top))
        return listdir(top)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match=r"dog: cannot be read \(Permission denied\)"):
        open_source(picture_dir)


@pytest.mark.parametrize("place", ["cat/", ""])
def test_a_name_that_is_not_utf8_is_a_finding_and_the_rest_is_read(picture_dir, place):
    odd = os.fsencode(picture_dir / "train") + b"/" + place.encode() + b"caf\xe9.png"
    try:
        path = Path(os.fsdecode(odd)) if place else Path(os.fsdecode(odd), "0.png")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    except OSError:
        pytest.skip("this file system has no such names")
    source = open_source(picture_dir)
    (found,) = source.problems
    assert len(source) == 6
    assert "caf\\udce9.png" in found.ids[0]


def test_a_place_without_pictures_says_what_belongs_there(tmp_path):
    for _ in range(2):
        with pytest.raises(InputError, match=r"no pictures in its folders .*; put one folder per class"):
            open_source(tmp_path)
        (tmp_path / "cat").mkdir(exist_ok=True)
