import errno
import os
import signal

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


def test_what_lies_beside_a_file_is_never_taken_for_ours(tmp_path):
    (tmp_path / "a.txt.tmp").write_text("somebody's")
    files.write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt.tmp").read_text() == "somebody's"


@pytest.mark.parametrize("make", [files.make_folder, files.replace_with])
def test_what_a_killed_process_left_is_swept_when_it_is_old_and_ours(tmp_path, make):
    left = [".a.txt.0123abcd.tmp", ".a.txt.fedc9876.tmp"]
    others = [".a.txt.mine.tmp", ".b.txt.0123abcd.tmp", ".a.txt.0123abcd.tmp.bak"]
    for name in (left[0], *others):
        (tmp_path / name).write_text("half")
    (tmp_path / left[1]).mkdir()
    (tmp_path / left[1] / "part").touch()
    (tmp_path / ".a.txt.00000000.tmp").touch()  # of a process that is at work
    for name in (*left, *others):
        os.utime(tmp_path / name, (0, 0))
    make(tmp_path / "a.txt", lambda beside: None)
    assert {f.name for f in tmp_path.iterdir()} == {"a.txt", ".a.txt.00000000.tmp", *others}


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_new_file_has_what_the_umask_leaves_and_an_old_one_keeps_its_permissions(tmp_path, umask, mode):
    tmp_path.chmod(0o777)
    before = os.umask(umask)
    try:
        files.replace_with(tmp_path / "new", lambda beside: (beside.write_text(""), beside.chmod(0)))
        (tmp_path / "old").touch(0o640)
        (tmp_path / "old").chmod(0o640)
        files.write_atomically(tmp_path / "old", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("make", [files.make_folder, files.replace_with])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_stops_half_way_leaves_nothing(tmp_path, make, error):
    def stop(beside):
        (beside / "part" if beside.is_dir() else beside).write_text("half")
        raise error

    with pytest.raises((InputError, KeyboardInterrupt)):
        make(tmp_path / "new", stop)
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_the_old_content(tmp_path):
    (tmp_path / "a").write_text("old")
    other = os.fork()
    if not other:

        def die(beside):
            beside.write_text("ne")
            os.kill(os.getpid(), signal.SIGKILL)

        files.replace_with(tmp_path / "a", die)
    os.waitpid(other, 0)
    assert (tmp_path / "a").read_text() == "old"
    files.write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"


def test_a_folder_appears_whole_and_never_replaces_another(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        files.make_folder(tmp_path / name, lambda beside: (beside / "a").write_text("1"))
        assert (tmp_path / name / "a").read_text() == "1"
    with pytest.raises(InputError, match="new: cannot be written"):
        files.make_folder(tmp_path / "new", lambda beside: (beside / "b").write_text("2"))
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_place_that_takes_no_files_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for make in (files.make_folder, files.replace_with):
        with pytest.raises(InputError, match=r"new: cannot be written: Not a directory"):
            make(tmp_path / "file" / "new", lambda beside: None)


@pytest.mark.parametrize("content", ["[]", "3", "", "[" * 100_000])
def test_json_that_holds_no_object_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json: (holds a|not readable)"):
        files.read_json(tmp_path / "a.json")


def test_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "log"
    assert files.records(path) == []
    for line in ('{"a": 1}', '{"a": 2}'):
        files.append_line(path, line)
    with path.open("a") as file:
        file.write('{"a": ')
    assert files.records(path) == [{"a": 1}, {"a": 2}]


def test_a_line_that_is_no_record_is_refused_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for damage in (b"garbage", b"3", b"\xff\x00", b"[]"):
        path.write_bytes(b'{"epoch": 1}\n' + damage + b"\n")
        with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: .*put the file back"):
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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("kind"), r"^f\.json: not a noise file that can be read \(KeyError: 'kind'\)"),
        (OSError(13, "Permission denied"), r"^f\.json: cannot be read \(Permission denied\)"),
        (InputError("has no rows"), r"^f\.json: has no rows"),
    ],
)
def test_whatever_goes_wrong_inside_names_the_file_and_the_way_out(error, message):
    with (
        pytest.raises(InputError, match=message + "; copy it again$"),
        files.name_errors("f.json", "noise file", "; copy it again"),
    ):
        raise error
    with pytest.raises(KeyboardInterrupt), files.name_errors("f.json", "noise file"):
        raise KeyboardInterrupt
