import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from bayesmooth import files
from bayesmooth.errors import InputError


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


def test_a_passing_look_at_the_lock_holds_nobody_off(tmp_path):
    with open(tmp_path / "lock", "w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        with files.locked(tmp_path):
            assert files.is_locked(tmp_path)


def test_a_line_that_is_no_record_is_refused_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for damage in (b"garbage", b"3", b"\xff\x00", b"[]"):
        path.write_bytes(b'{"epoch": 1}\n' + damage + b"\n")
        with pytest.raises(
            InputError, match=r"metrics\.jsonl, line 2: .* delete the run and train"
        ):
            files.records(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/a.png", "there is no directory"),
        ("a.xyz", "must end in .png, .svg"),
        ("folder.png", "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_beforehand(name, says, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=says):
        files.check_output(tmp_path / name, (".png", ".svg"))
    files.check_output(tmp_path / "new.PNG", (".png", ".svg"))
    assert [file.name for file in tmp_path.iterdir()] == ["folder.png"]


def test_a_directory_for_results_is_made_or_refused(tmp_path):
    files.check_directory(tmp_path / "new" / "place")
    assert (tmp_path / "new" / "place").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: cannot be made: .*; choose another place"):
        files.check_directory(tmp_path / "file")


def test_the_library_loads_on_windows_where_there_is_no_fcntl(tmp_path):
    code = """
import sys, types, torch, pathlib, subprocess, multiprocessing, asyncio, ctypes
sys.platform, sys.modules["fcntl"] = "win32", None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *given: print(given[1:]))
import bayesmooth
from bayesmooth import files
with open(sys.argv[1], "w") as file:
    print(files._try_lock(file, shared=False))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "(2, 1)\nTrue\n"  # one byte, without waiting
