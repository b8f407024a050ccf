import errno
import os
import signal

import pytest

from bayesmooth import files
from bayesmooth.errors import InputError


def test_a_full_disk_leaves_the_old_content_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    files.write_atomically(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"a\.txt: cannot be written: No space left.*is intact"):
        files.write_atomically(path, "new")
    with pytest.raises(InputError, match=r"[ab]\.txt: cannot be written: No space left"):
        files.write_together(tmp_path, {"a.txt": "new", "b.txt": "new"})
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_new_file_has_what_the_umask_leaves_and_an_old_one_keeps_its_permissions(tmp_path, umask, mode):
    tmp_path.chmod(0o777)
    before = os.umask(umask)
    try:
        files.write_atomically(tmp_path / "new", lambda beside: (beside.write_text(""), beside.chmod(0)))
        (tmp_path / "old").touch(0o640)
        (tmp_path / "old").chmod(0o640)
        files.write_atomically(tmp_path / "old", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("make", [files.make_folder, files.write_atomically])
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

        files.write_atomically(tmp_path / "a", die)
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


@pytest.mark.parametrize("content", ["[]", "3", "", "[" * 100_000])
def test_json_that_holds_no_object_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json: (holds a|not a JSON object)"):
        files.read_json(tmp_path / "a.json")


def test_a_torn_last_line_is_dropped_and_a_line_that_is_no_record_is_refused_with_its_number(tmp_path):
    path = tmp_path / "log"
    assert files.records(path) == []
    for line in ('{"a": 1}', '{"a": 2}'):
        files.append_line(path, line)
    with path.open("a") as file:
        file.write('{"a": ')
    assert files.records(path) == [{"a": 1}, {"a": 2}]
    for damage in (b"garbage", b"3", b"\xff\x00", b"[]"):
        path.write_bytes(b'{"epoch": 1}\n' + damage + b"\n")
        with pytest.raises(InputError, match=r"log, line 2: .*put the file back"):
            files.records(path)


@pytest.mark.parametrize(("name", "says"), [("a.xyz", "must end in .png, .svg"), ("folder.png", "is a directory")])
def test_a_file_that_cannot_be_written_is_refused_beforehand(name, says, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=says):
        files.check_output(tmp_path / name, (".png", ".svg"))
    files.check_output(tmp_path / "new" / "new.PNG", (".png", ".svg"))
    assert [file.name for file in tmp_path.iterdir()] == ["folder.png"]


def test_a_place_that_takes_no_files_is_refused_beforehand_and_a_new_one_is_made_with_its_first_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"new: cannot be written .*; choose another place"):
        files.check_directory(tmp_path / "file" / "new")
    for make in (files.make_folder, files.write_atomically):
        with pytest.raises(InputError, match=r"new: cannot be written: "):
            make(tmp_path / "file" / "new", lambda beside: None)
    files.check_directory(tmp_path / "new" / "place")
    assert not (tmp_path / "new").exists()
    files.write_atomically(tmp_path / "new" / "place" / "file", "")
    assert (tmp_path / "new" / "place" / "file").exists()


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
