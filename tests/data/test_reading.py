import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data.reading import load_pickle, load_torch, name_errors
from bayesmooth.errors import InputError

CONTENT = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "swapped": np.arange(4, dtype=">i4"),
    "labels": [0, 1, 255, 70_000, -3, 2**40],
    "names": ["Ölkanne", "b"],
    "nested": {"a": (1, True, None, 0.5, (), [])},
}


def equal(these, those):
    return these.keys() == those.keys() and all(
        np.array_equal(these[key], those[key])
        if isinstance(those[key], np.ndarray)
        else these[key] == those[key]
        for key in those
    )


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_containers_and_arrays_come_back_as_they_were_written(protocol):
    assert equal(load_pickle(pickle.dumps(CONTENT, protocol), "file"), CONTENT)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_save_come_back_in_both_formats(zipped):
    buffer = io.BytesIO()
    torch.save(CONTENT, buffer, _use_new_zipfile_serialization=zipped)
    assert equal(load_torch(buffer.getvalue(), "file"), CONTENT)


def test_strings_of_python_2_are_text_byte_by_byte():
    assert load_pickle(b"\x80\x02}U\x01aU\x02\xff\x00s.", "file") == {"a": "\xff\x00"}


class Call:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


HOSTILE = {
    "a command": pickle.dumps({"a": Call(os.system, "touch hacked")}, 2),
    "a command, protocol 4": pickle.dumps({"a": Call(os.system, "touch hacked")}, 4),
    "eval": pickle.dumps({"a": Call(eval, "1")}, 2),
    "numpy's other functions": pickle.dumps({"a": Call(np.zeros, 10**12)}, 2),
    "a codec that unpacks": b"\x80\x02c_codecs\nencode\n\x8c\x01b\x8c\x04zlib\x86R.",
    "a memo at 2^32": b"\x80\x02}r\xff\xff\xff\xff.",
    "two billion bytes announced": b"\x80\x02}X\x01\x00\x00\x00aB\xff\xff\xff\x7fs.",
    "a persistent id": b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x00bQs.",
    "an instance": b"\x80\x02}X\x01\x00\x00\x00a(i__main__\nX\ns.",
    "no dict": pickle.dumps([1], 2),
    "cut short": pickle.dumps(CONTENT, 2)[:-20],
    "an array called": b"\x80\x02cnumpy\nndarray\n)R.",
    "an array patched": b"\x80\x02cnumpy\nndarray\n}b.",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_nothing_else_gets_in(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if data.startswith(b"\x80\x02}r"):  # a large memo index alone is harmless here
        assert load_pickle(data, "file") == {}
        return
    with pytest.raises(InputError, match="file"):
        load_pickle(data, "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "call", [Call(os.system, "touch hacked"), Call(eval, "1"), Call(np.zeros, 10**12)]
)
def test_nothing_else_gets_in_through_torch(call, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({"a": call}, buffer, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"file: not a file of torch\.save that can be read"):
        load_torch(buffer.getvalue(), "file")
    assert not list(tmp_path.iterdir())


def test_a_zip_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr("bayesmooth.data.reading.LIMIT", 1 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2 << 20))
    with pytest.raises(InputError, match="unpacks to more than 1 MB"):
        load_torch(buffer.getvalue(), "file")


def test_what_a_file_asks_for_is_said():
    with pytest.raises(InputError, match=r"file: asks for 'posix\.system'"):
        load_pickle(HOSTILE["a command"], "file")


def test_arrays_must_have_the_bytes_of_their_shape():
    good = pickle.dumps({"a": np.zeros(7, dtype=np.uint8)}, 2)
    for shape in (b"K\x08\x85", b"J\xff\xff\xff\xff\x85", b"K\x00J\xff\xff\xff\x7f\x86"):
        with pytest.raises(InputError, match="file: "):
            load_pickle(good.replace(b"K\x07\x85", shape), "file")


def test_a_zip_without_a_sane_pickle_is_refused():
    for names in ([], ["a/data.pkl", "b/data.pkl"]):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(name, b".")
        with pytest.raises(InputError, match=r"not a file of torch\.save"):
            load_torch(b"PK" + buffer.getvalue()[2:], "file")


@given(st.data())
def test_any_bytes_are_a_dict_or_an_input_error(result_or_input_error, data):
    good = pickle.dumps(CONTENT, data.draw(st.sampled_from([2, 4])))
    at = data.draw(st.integers(0, len(good)))
    broken = (
        good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    )
    for content in (broken, data.draw(st.binary(max_size=40))):
        result_or_input_error("file", load_pickle, content, "file")
        result_or_input_error("file", load_torch, content, "file")


ZIPPED = io.BytesIO()
torch.save(CONTENT, ZIPPED)


@given(st.integers(0, len(ZIPPED.getvalue())), st.binary(min_size=1, max_size=8))
def test_any_damage_to_a_zip_is_a_dict_or_an_input_error(result_or_input_error, at, damage):
    good = ZIPPED.getvalue()
    broken = good[:at] + damage + good[at + len(damage) :]
    result_or_input_error("file", load_torch, broken, "file")


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
        name_errors("f.json", "noise file", "; copy it again"),
    ):
        raise error
    with pytest.raises(KeyboardInterrupt), name_errors("f.json", "noise file"):
        raise KeyboardInterrupt
