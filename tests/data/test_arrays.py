import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth import audit
from bayesmooth.data import open_source
from bayesmooth.data.arrays import read_npy
from bayesmooth.errors import InputError

X = np.arange(12, dtype=np.float64).reshape(4, 3)


def test_an_npz_gives_all_that_is_in_it(tmp_path):
    images = np.zeros((4, 5, 6, 3), np.uint8)
    np.savez(
        tmp_path / "e.npz",
        embeddings=X, labels=["b", "a", "b", "b"], clean_labels=["a", "a", "b", "b"],
        ids=[7, 8, 9, 10], texts=list("wxyz"), images=images,
    )  # fmt: skip
    examples = open_source(tmp_path / "e.npz")
    assert np.array_equal(examples.inputs.numpy(), X)
    assert examples.labels.numbers.tolist() == [1, 0, 1, 1]
    assert examples.clean.tolist() == [0, 0, 1, 1]
    assert examples.ids == ("7", "8", "9", "10")
    assert examples.meta == {"text": list("wxyz")}
    assert examples.pictures.shape == (4, 3, 5, 6)


@pytest.mark.parametrize(("inputs", "labels"), [("X", "y"), ("features", "labels")])
def test_other_usual_names_and_image_paths_are_known(tmp_path, inputs, labels):
    content = {inputs: X, labels: [0, 1, 1, 0], "images": list("abcd"), "class_names": ["cat", "dog"]}
    np.savez_compressed(tmp_path / "e.npz", **content)
    examples = open_source(tmp_path / "e.npz")
    assert examples.class_names == ("cat", "dog")
    assert examples.labels.numbers.tolist() == [0, 1, 1, 0]
    assert examples.meta == {"path": list("abcd")}
    assert examples.pictures.items == list("abcd")


def test_predicted_probabilities_are_no_embeddings(tmp_path):
    path, p = tmp_path / "e.npz", np.full((4, 2), 0.5)
    np.savez(path, pred_probs=p, X=-X, embeddings=X, labels=[0, 1, 1, 0])
    both = open_source(path)
    assert np.array_equal(both.inputs.numpy(), X)
    assert np.array_equal(both.subset([1, 3]).predicted.numpy(), p[:2])
    np.savez(path, pred_probs=p, labels=[0, 1, 1, 0])
    assert open_source(path).inputs.shape == (4, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.where(X == 7, np.nan, X)}, r"embeddings\[2, 1\] is nan; must be finite"),
        ({"embeddings": X[:3]}, "embeddings of shape"),
        ({"data": X, "target": [0, 1]}, "data, target: none is called labels, y, embeddings"),
        ({"embeddings": X[0]}, "must be 4 × D"),
        ({"embeddings": np.array([["a"] * 3] * 4)}, "must be numbers"),
        ({"embeddings": X[:0]}, "shape"),
        ({"labels": [0.5, 1, 0, 1]}, r"labels, row 0 \(counted from 0\): 0.5 is not a class"),
        ({"labels": [[0], [1], [0], [1]]}, "N labels"),
        ({"labels": np.array([{}, 1, 0, 1], dtype=object)}, "labels: not a numpy array that"),
        ({"class_names": ["a"]}, r"labels, row 1 \(counted from 0\): '1' is not one of the classes a"),
        ({"texts": [1, 2, 3, 4]}, "must be N strings"),
        ({"images": X}, "neither N × D nor pictures"),
        ({"ids": ["a"]}, "1 ids for 4 rows"),
        ({"clean_labels": [0, 1, 0, 1, 1]}, "5 clean_labels for 4 rows"),
        ({"labels": list("abab"), "clean_labels": ["a", "", "a", "b"]}, "clean_labels, row 1 .*: '' is not a class"),
        ({"pred_probs": X[:3]}, "pred_probs of shape"),
        ({"pred_probs": X[0]}, "must be 4 × D"),
        ({"probabilities": np.full((4, 2), np.inf)}, r"probabilities\[0, 0\] is inf"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, changes, message):
    np.savez(tmp_path / "e.npz", **({} if "data" in changes else {"embeddings": X, "labels": [0, 1, 0, 1]}) | changes)
    with pytest.raises(InputError, match=message):
        open_source(tmp_path / "e.npz")


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(X)[:-1], "not a numpy array .* ends too early"),
        (npy(X).replace(b"'<f8'", b"'<f7'"), "not a numpy array"),
        (npy(X).replace(b"'<f8'", b"'|O8'"), "Object arrays cannot be loaded"),
        (npy(np.array(["a"])).replace(b"a\0\0\0", b"\0\0\xff\0"), "not a numpy array"),
        (b"", "not a numpy array"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "not a numpy array"),
    ],
)
def test_a_damaged_array_is_refused(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_npy(tmp_path / "a.npy")


def claim(shape, kind="<f8"):
    """A .npy of a kilobyte whose header claims a shape."""
    buffer = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(800)


@pytest.mark.parametrize("huge", [claim((10**12, 3)), claim((10**12, 0)), claim((10**12,), "<U0")])
def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path, huge):
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "huge.npy").write_bytes(huge)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("embeddings.npy", npy(X))
        archive.writestr("labels.npy", huge)
    for rows, labels in (("huge.npz", None), ("huge.npy", None), ("rows.npy", tmp_path / "huge.npy")):
        with pytest.raises(InputError, match=r"huge\.np"):
            audit(tmp_path / rows, labels=labels)


BUFFER = io.BytesIO()
np.savez_compressed(BUFFER, embeddings=X[:2], labels=["a", "b"])
FILES = {".npz": BUFFER.getvalue(), ".npy": npy(np.array(["a", "b"]))}


@given(st.sampled_from([".npz", ".npy"]), st.integers(0, 700), st.integers(0, 4), st.binary(max_size=4))
def test_any_damage_is_arrays_or_an_input_error(tmp_path_factory, result_or_input_error, suffix, at, cut, insert):
    good = FILES[suffix]
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(good[:at] + insert + good[at + cut :])
    labels = str(path) if suffix == ".npy" else None
    result_or_input_error("fuzz", open_source, path, labels=labels)


@pytest.mark.parametrize(("labels", "message"), [([0, 1, 0], "3 labels for 4"), ([[0], [1], [0], [1]], "one per row")])
def test_labels_beside_rows_are_one_per_row(tmp_path, labels, message):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(InputError, match=message):
        open_source(tmp_path / "x.npy", labels=tmp_path / "y.npy")
