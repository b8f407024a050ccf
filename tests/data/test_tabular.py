import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import load
from bayesmooth.data.reading import read_npy, read_npz
from bayesmooth.errors import InputError

pandas = pytest.importorskip("pandas")
CSV = """id,text,width,label,height,clean_label,split
a,tall one,1.5,dog,2,dog,train
b,NA,3,cat,4,dog,train
c,small,5,cat,6.5,cat,test
"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="pets.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_a_table_gives_numbers_labels_clean_labels_ids_and_text(write):
    train = load("table", "train", path=write(CSV))
    assert train.class_names == ("cat", "dog")
    assert train.inputs.tolist() == [[1.5, 2], [3, 4]]
    assert train.labels.tolist() == [1, 0]
    assert train.clean_labels.tolist() == [1, 1]
    assert train.ids == ("a", "b")
    assert train.meta["text"][0] == "tall one"
    assert load("table", "test", path=write(CSV)).inputs.tolist() == [[5, 6.5]]


def test_parquet_and_tsv_are_read_as_csv(write, tmp_path):
    csv = load("table", "train", path=write(CSV))
    frame = pandas.read_csv(tmp_path / "pets.csv", keep_default_na=False)
    frame["label"] = frame["label"].astype("category")
    frame.to_parquet(tmp_path / "pets.parquet")
    for path in (tmp_path / "pets.parquet", write(CSV.replace(",", "\t"), "pets.tsv")):
        other = load("table", "train", path=str(path))
        assert torch.equal(other.inputs, csv.inputs)
        assert (other.labels.tolist(), other.ids) == (csv.labels.tolist(), csv.ids)


def test_one_file_a_split_is_numbered_as_the_train_file(write, tmp_path):
    write("x,label\n1,a\n2,b\n", "train.csv")
    write("x,label\n3,b\n", "test.csv")
    test = load("table", "test", path=str(tmp_path / "{split}.csv"))
    assert (test.class_names, test.labels.tolist()) == (("a", "b"), [1])


def test_columns_and_the_order_of_classes_can_be_given(write):
    path = write("x,y,kind\n1,2,b\n3,4,a\n")
    given = load("table", path=path, label="kind", class_names=["b", "a"], features=["y"])
    assert given.inputs.tolist() == [[2], [4]]
    assert given.labels.tolist() == [0, 1]
    named = load("table", path=write("x,label\n1,1\n3,0\n"), class_names=["cat", "dog"])
    assert named.labels.tolist() == [1, 0]


def test_na_is_missing_unless_it_is_named_as_a_class(write):
    path = write("x,label\n1,NA\n3,ok\n")
    with pytest.raises(InputError, match=r"label, row 1: 'NA' is no class .* class_names"):
        load("table", path=path)
    assert load("table", path=path, class_names=["NA", "ok"]).labels.tolist() == [0, 1]


def test_a_column_of_paths_gives_pictures(picture_dir):
    rows = "path,label\ntrain/cat/0.png,cat\ntrain/dog/0.png,dog\n"
    (picture_dir / "list.csv").write_text(rows)
    pictures = load("table", path=str(picture_dir / "list.csv"), size=8)
    assert pictures.inputs[torch.tensor([1])][0, :, 4, 4].tolist() == [10, 10, 250]
    (picture_dir / "list.csv").write_text("x," + rows.replace("\nt", "\n1,t"))
    both = load("table", path=str(picture_dir / "list.csv"), size=8)
    assert both.inputs.tolist() == [[1], [1]]
    assert both.pictures[torch.tensor([0])].shape == (1, 3, 96, 96)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,label\n1,a\n,b\n", "row 2, column 'x': nan is not a finite number"),
        ("x,label\n1,a\ninf,b\n", "row 2, column 'x': inf"),
        ("x,label\n1,a\n1e300,b\n", r"row 2, column 'x': 1e\+300"),
        ("x,y,label\n1,1,a\n?,2,b\n2,3,b\n", r"row 2, column 'x': \? is not a finite number"),
        ("x,label\n1,a\n2,\n", "label, row 2: '' is no class"),
        ("x,y\n1,2\n", "no column 'label', only x, y"),
        ("x,label\n1,a,7\n", "row 1 has 3 fields, the header 2"),
        ("x,label\n", "no rows"),
        ("", "empty; its first line must name the columns"),
        (b"x,label\n1,\x81\n", "cannot be read as cp1252 .* name its encoding"),
        ("text,label\nhello,a\n", "nothing to learn from"),
        ('x,label\n1,"a\n', "line 2 has a stray quotation mark"),
    ],
)
def test_a_wrong_table_is_named_with_its_place(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load("table", path=write(content))
    assert "pets.csv" in str(caught.value)


def test_features_that_are_no_numbers_or_not_there_are_named(write):
    path = write("x,y,label\n1,2,a\nsmall,3,b\n")
    with pytest.raises(InputError, match="row 2, column 'x': small is not a finite number"):
        load("table", path=path, features=["x"])
    with pytest.raises(InputError, match="no column 'z' among the features"):
        load("table", path=path, features=["z"])


def test_a_split_that_is_not_there_says_how_to_give_one(write):
    with pytest.raises(InputError, match=r"add a column `split`, or put \{split\} in the path"):
        load("table", "test", path=write("x,label\n1,a\n"))
    with pytest.raises(InputError, match="no row whose column `split` is 'test'"):
        load("table", "test", path=write("x,label,split\n1,a,train\n"))


def test_a_parquet_file_that_is_none_is_refused(write):
    for content in (b"", b"PAR1 and more PAR1", b"PAR1" * 20):
        with pytest.raises(InputError, match="not a table that can be read"):
            load("table", path=write(content, "pets.parquet"))


CELLS = st.text('xlabel,12.\n"\r\t\x00é', max_size=30).map(lambda text: f"x,label\n{text}".encode())


@given(CELLS | st.binary(max_size=40))
def test_any_bytes_are_a_table_or_an_input_error(tmp_path_factory, result_or_input_error, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(data)
    result_or_input_error("fuzz.csv", load, "table", path=str(path))


def test_columns_called_as_the_classes_come_in_their_order(write):
    path = write("dog,cat,fish,label\n.7,.2,.1,dog\n.1,.8,.1,cat\n.2,.2,.6,fish\n")
    examples = load("table", "train", path=path)
    assert examples.class_names == ("cat", "dog", "fish")
    assert torch.equal(examples.inputs.argmax(1), examples.labels)


def test_numbers_are_standardised_by_the_training_rows_alone(write):
    rows = "1,10,a,train\n3,10,b,train\n100,10,b,test\n"
    path = write(f"x,constant,label,split\n{rows}")
    train, test = (load("table", split, path=path) for split in ("train", "test"))
    assert (train.mean, train.std) == ((2, 10), (1, 1))
    assert train.batch(torch.tensor([0, 1])).tolist() == [[-1, 0], [1, 0]]
    assert test.batch(torch.tensor([0])).tolist() == [[98, 0]]
    raw = load("table", "test", path=path, standardize=False)
    assert raw.batch(torch.tensor([0])).tolist() == [[100, 10]]


def test_one_file_per_split_is_standardised_by_the_train_file(write, tmp_path):
    write("x,label\n1,a\n3,b\n", "train.csv")
    write("x,label\n7,b\n", "test.csv")
    test = load("table", "test", path=str(tmp_path / "{split}.csv"))
    assert test.batch(torch.tensor([0])).tolist() == [[5]]


def test_categories_become_columns_of_zero_and_one(write):
    rows = "".join(
        f"{colour},{i / 7},{'ab'[i % 2]}\n" for i, colour in enumerate(["red", "blue"] * 4)
    )
    train = load("table", path=write(f"colour,x,label\n{rows}"), features=["colour"])
    assert train.inputs.tolist() == [[0, 1], [1, 0]] * 4
    assert (train.mean, train.std) == ((0, 0), (1, 1))
    assert load("table", path=write(f"colour,x,label\n{rows}")).inputs.shape == (8, 3)


def test_a_category_is_numbered_as_in_the_training_rows(write):
    rows = "".join(f"{c},a,train\n" for c in ["red", "blue"] * 4) + "green,a,test\nred,a,test\n"
    test = load("table", "test", path=write(f"colour,label,split\n{rows}"))
    assert test.inputs.tolist() == [[0, 0], [0, 1]]


NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("Unnamed: 0", range(10), "row numbers"),
        ("", range(10), "row numbers"),
        ("customer_id", NUMBERS, "an id"),
        ("userId", NUMBERS, "an id"),
        ("n", range(5, 15), "row numbers"),
        ("kept", [3, 7, 8, 12, 13, 20, 21, 22, 40, 41], "row numbers"),
        ("shuffled", [4, 2, 0, 1, 3, 9, 8, 6, 7, 5], "row numbers"),
        ("nothing", [""] * 10, "empty"),
    ],
)
def test_row_numbers_and_ids_are_left_out_and_said(write, name, values, why):
    rows = "".join(
        f"{v},{x},{'ab'[i % 2]}\n" for i, (v, x) in enumerate(zip(values, NUMBERS, strict=True))
    )
    path = write(f"{name},x,label\n{rows}")
    examples = load("table", path=path)
    assert examples.inputs.flatten().tolist() == NUMBERS
    assert len(examples.notes) == 1
    assert f"({why})" in examples.notes[0]
    if name and why != "empty":
        assert load("table", path=path, features=[name, "x"]).inputs.shape == (10, 2)


def test_decimal_commas_and_semicolons_are_understood(write):
    examples = load("table", path=write("x;y;label\n1,5;-2,25;a\n3;4,0;b\n"))
    assert examples.inputs.tolist() == [[1.5, -2.25], [3, 4]]
    quoted = load("table", path=write('x,label\n"1,5",a\n"3,25",b\n'))
    assert quoted.inputs.tolist() == [[1.5], [3.25]]
    with pytest.raises(InputError, match=r"column 'x': 1,234 may be 1\.234 or 1234"):
        load("table", path=write('x,label\n"1,234",a\n"5,678",b\n'))


def test_a_column_of_vectors_is_taken_as_it_is(tmp_path):
    frame = pandas.DataFrame({"v": [[1.0, 2], [3, 4]], "n": [1, 2], "label": ["a", "b"]})
    frame.to_parquet(tmp_path / "v.parquet")
    examples = load("table", path=str(tmp_path / "v.parquet"))
    assert examples.inputs.tolist() == [[1, 2], [3, 4]]
    assert examples.mean is None
    frame["v"] = [[1.0], [3, 4]]
    frame.to_parquet(tmp_path / "v.parquet")
    with pytest.raises(
        InputError, match="column 'v': its vectors must be numbers, all of one length"
    ):
        load("table", path=str(tmp_path / "v.parquet"))


def test_a_column_of_true_labels_that_is_named_must_be_there(write):
    with pytest.raises(InputError, match=r"no column 'truth', only id, text"):
        load("table", "train", path=write(CSV), clean_label="truth")


X = np.arange(12, dtype=np.float64).reshape(4, 3)


def test_an_npz_gives_all_that_is_in_it(tmp_path):
    images = np.zeros((4, 5, 6, 3), np.uint8)
    np.savez(
        tmp_path / "e.npz",
        embeddings=X, labels=["b", "a", "b", "b"], clean_labels=["a", "a", "b", "b"],
        ids=[7, 8, 9, 10], texts=list("wxyz"), images=images,
    )  # fmt: skip
    examples = load("embeddings", path=str(tmp_path / "e.npz"))
    assert np.array_equal(examples.inputs.numpy(), X)
    assert examples.labels.tolist() == [1, 0, 1, 1]
    assert examples.clean_labels.tolist() == [0, 0, 1, 1]
    assert examples.ids == ("7", "8", "9", "10")
    assert examples.meta == {"text": list("wxyz")}
    assert examples.pictures.shape == (4, 3, 5, 6)


def test_labels_may_be_bytes(tmp_path):
    np.savez(tmp_path / "e.npz", embeddings=X, labels=np.array([b"b", b"a", b"a", b"b"]))
    assert load("embeddings", path=str(tmp_path / "e.npz")).class_names == ("a", "b")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesmooth.data.reading.LIMIT", 1 << 20)
    path = tmp_path / "e.npz"
    np.savez_compressed(path, embeddings=np.zeros((1 << 15, 16)), labels=np.zeros(1 << 15, int))
    with pytest.raises(InputError, match=r"more than 100 times as many; .* with numpy\.savez"):
        read_npz(path)
    np.savez(path, embeddings=np.zeros((1 << 15, 16)))
    assert read_npz(path)["embeddings"].shape == (1 << 15, 16)


@pytest.mark.parametrize(("inputs", "labels"), [("X", "y"), ("features", "labels")])
def test_other_usual_names_and_image_paths_are_known(tmp_path, inputs, labels):
    content = {
        inputs: X,
        labels: [0, 1, 1, 0],
        "images": list("abcd"),
        "class_names": ["cat", "dog"],
    }
    np.savez_compressed(tmp_path / "e.npz", **content)
    examples = load("embeddings", path=str(tmp_path / "e.npz"))
    assert examples.class_names == ("cat", "dog")
    assert examples.labels.tolist() == [0, 1, 1, 0]
    assert examples.meta == {"path": list("abcd")}
    assert examples.pictures.items == list("abcd")


def test_predicted_probabilities_are_no_embeddings(tmp_path):
    path, p = str(tmp_path / "e.npz"), np.full((4, 2), 0.5)
    np.savez(path, pred_probs=p, X=-X, embeddings=X, labels=[0, 1, 1, 0])
    both = load("embeddings", path=path, probabilities=True)
    assert np.array_equal(both.inputs.numpy(), X)
    assert np.array_equal(both.subset([1, 3]).predicted.numpy(), p[:2])
    assert load("embeddings", path=path).predicted is None
    np.savez(path, pred_probs=p, labels=[0, 1, 1, 0])
    alone = load("embeddings", path=path, probabilities=True)
    assert alone.inputs.shape == (4, 0)
    assert np.array_equal(alone.predicted.numpy(), p)
    with pytest.raises(InputError, match=r"only labels, pred_probs; .* probabilities=True"):
        load("embeddings", path=path)


def test_a_split_is_numbered_as_the_train_file_and_labels_may_lie_apart(tmp_path):
    for split, labels in (("train", ["a", "b", "a", "c"]), ("test", ["c", "c", "b", "b"])):
        np.save(tmp_path / f"x-{split}.npy", X)
        np.save(tmp_path / f"y-{split}.npy", labels)
    options = {"path": str(tmp_path / "x-{split}.npy"), "labels": str(tmp_path / "y-{split}.npy")}
    assert load("embeddings", "test", **options).labels.tolist() == [2, 2, 1, 1]
    with pytest.raises(InputError, match=r"put \{split\} in it"):
        load("embeddings", "test", path=str(tmp_path / "x-train.npy"))
    with pytest.raises(InputError, match="of labels with labels="):
        load("embeddings", path=str(tmp_path / "x-train.npy"))


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(X), X.astype(">f4"), X.astype(np.float16), np.arange(3, dtype=">i8"),
        np.array(["ü", "longer"]), np.array(["ü", "b"], dtype=">U2"), np.array([True, False]),
    ],
)  # fmt: skip
def test_arrays_of_every_order_and_width_come_back(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(read_npy(tmp_path / "a.npy"), array)
    np.savez(tmp_path / "a.npz", one=array, two=array)
    assert np.array_equal(read_npz(tmp_path / "a.npz")["two"], array)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.where(X == 7, np.nan, X)}, r"embeddings\[2, 1\] is nan; must be finite"),
        ({"embeddings": X[:3]}, "labels of shape"),
        ({"embeddings": X[0]}, "must be N × D"),
        ({"embeddings": np.array([["a"] * 3] * 4)}, "must be numbers"),
        ({"embeddings": X[:0]}, "shape"),
        ({"labels": [0.5, 1, 0, 1]}, "labels, row 1: 0.5 is no class"),
        ({"labels": [[0], [1], [0], [1]]}, "N labels"),
        ({"labels": np.array([{}, 1, 0, 1], dtype=object)}, "labels: not an array of numbers"),
        ({"class_names": ["a"]}, "labels, row 2: '1' is not one of the classes a"),
        ({"texts": [1, 2, 3, 4]}, "must be N strings"),
        ({"images": X}, "images are float64 of shape .* must be paths"),
        ({"ids": ["a"]}, "1 ids for 4 inputs"),
        ({"pred_probs": X[:3]}, "3 predicted for 4 inputs"),
        ({"pred_probs": X[0]}, "must be N × D"),
        ({"probabilities": np.full((4, 2), np.inf)}, r"probabilities\[0, 0\] is inf"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, changes, message):
    np.savez(tmp_path / "e.npz", **({"embeddings": X, "labels": [0, 1, 0, 1]} | changes))
    with pytest.raises(InputError, match=message):
        load("embeddings", path=str(tmp_path / "e.npz"), probabilities=True)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(X)[:-1], "ends too early|does not go with"),
        (npy(X).replace(b"(4, 3)", b"(4, 9" + b"9" * 9 + b")"), "does not go with"),
        (npy(X).replace(b"'<f8'", b"'<f7'"), "no type of numbers"),
        (npy(X).replace(b"'<f8'", b"'|O8'"), "objects are not read"),
        (npy(np.array(["a"])).replace(b"a\0\0\0", b"\0\xd8\0\0"), "characters that are none"),
        (npy(np.array(["a"])).replace(b"a\0\0\0", b"\0\0\0\x7f"), "characters that are none"),
        (b"", "not in numpy's format"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "not an array"),
    ],
)
def test_a_damaged_array_is_refused(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_npy(tmp_path / "a.npy")


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesmooth.data.reading.MAX_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "e.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", npy(np.zeros(1 << 20)))
    with pytest.raises(InputError, match="GB unpacked"):
        read_npz(tmp_path / "e.npz")


BUFFER = io.BytesIO()
np.savez_compressed(BUFFER, embeddings=X[:2], labels=["a", "b"])
FILES = {".npz": BUFFER.getvalue(), ".npy": npy(np.array(["a", "b"]))}


@given(
    st.sampled_from([".npz", ".npy"]), st.integers(0, 700), st.integers(0, 4), st.binary(max_size=4)
)
def test_any_damage_is_arrays_or_an_input_error(
    tmp_path_factory, result_or_input_error, suffix, at, cut, insert
):
    good = FILES[suffix]
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(good[:at] + insert + good[at + cut :])
    labels = str(path) if suffix == ".npy" else None
    result_or_input_error("fuzz", load, "embeddings", path=str(path), labels=labels)
