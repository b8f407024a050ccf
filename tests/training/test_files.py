import errno
import os
import signal

import pytest

from bayesmooth.errors import InputError
from bayesmooth.training import files


def test_a_full_disk_leaves_the_old_content_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    files.write_atomically(path, "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a\.txt: cannot be written: No space left.*is intact"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "log"
    for line in ("one", "two"):
        files.append_line(path, line)
    with path.open("a") as file:
        file.write("thr")
    assert files.lines(path) == ["one", "two"]
    files.keep_lines(path, 1)
    assert path.read_text() == "one\n"
    with pytest.raises(InputError, match="has 1 complete lines, and the checkpoint comes after 3"):
        files.keep_lines(path, 3)


def test_the_lock_holds_others_off_and_dies_with_its_process(tmp_path):
    hear, tell = os.pipe()
    other = os.fork()
    if not other:
        with files.locked(tmp_path):
            os.write(tell, b"held")
            signal.pause()
    assert os.read(hear, 4) == b"held"
    assert files.is_locked(tmp_path)
    with (
        pytest.raises(InputError, match=f"another process is training in it .process {other} on"),
        files.locked(tmp_path),
    ):
        pass
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert not files.is_locked(tmp_path)
    with files.locked(tmp_path):
        assert files.is_locked(tmp_path)
