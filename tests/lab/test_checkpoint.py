import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.errors import InputError
from bayesmooth.lab import checkpoint

STATE = {"weights": torch.arange(2000.0), "progress": {"epoch": 3, "best": 0.5}, "none": None}


def test_what_is_saved_is_loaded_and_torch_opens_it_too(tmp_path):
    checkpoint.save(tmp_path / "a.pt", STATE)
    for loaded in (
        checkpoint.load(tmp_path / "a.pt"),
        torch.load(tmp_path / "a.pt", weights_only=True),
    ):
        assert torch.equal(loaded["weights"], STATE["weights"])
        assert loaded["progress"] == STATE["progress"]


@given(st.integers(0, 10**6), st.sampled_from(["cut", "flip"]))
def test_every_damage_is_found(tmp_path_factory, place, damage):
    path = tmp_path_factory.mktemp("damage") / "a.pt"
    checkpoint.save(path, STATE)
    content = bytearray(path.read_bytes())
    place %= len(content)
    if damage == "cut":
        content = content[:place]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        checkpoint.load(path)


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(tmp_path):
    for epoch in (1, 2, 3):
        checkpoint.save_last(tmp_path, {"epoch": epoch})
    assert checkpoint.load_last(tmp_path) == ({"epoch": 3}, [])
    os.truncate(tmp_path / "last.pt", 100)
    state, damage = checkpoint.load_last(tmp_path)
    assert state == {"epoch": 2}
    assert "last.pt: damaged (100 bytes" in damage[0]
    os.truncate(tmp_path / "previous.pt", 0)
    with pytest.raises(InputError, match=r"no whole checkpoint is left: .*last.pt.*previous.pt"):
        checkpoint.load_last(tmp_path)


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path, monkeypatch):
    checkpoint.save_last(tmp_path, {"epoch": 1})
    real = os.replace

    def power_cut(source, target):
        real(source, target)
        if str(target).endswith("previous.pt"):
            raise RuntimeError("power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(RuntimeError, match="power cut"):
        checkpoint.save_last(tmp_path, {"epoch": 2})
    monkeypatch.undo()
    assert checkpoint.load_last(tmp_path) == ({"epoch": 2}, [])
    checkpoint.save_last(tmp_path, {"epoch": 3})
    assert checkpoint.load_last(tmp_path) == ({"epoch": 3}, [])


def test_no_checkpoint_yet_is_not_an_error(tmp_path):
    assert checkpoint.load_last(tmp_path) == (None, [])


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    checkpoint.save(tmp_path / "a.pt", {"x": Evil()})
    with pytest.raises(InputError, match="not a checkpoint"):
        checkpoint.load(tmp_path / "a.pt")
    assert not (tmp_path / "pwned").exists()
